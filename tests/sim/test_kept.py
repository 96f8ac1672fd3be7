"""What policies and the engine keep between questions, or leave out, changes speed alone, no result."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.moves.exchange import Exchange
from gandiva_slurm.policy.port import Plan, Policy, PolicySettings, View
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.world import Costs
from gandiva_slurm.slicing.stride import PassBook
from tests.sim.mixed import CLUSTER, W1, W1C, jct_s, settings, workload
from tests.slow import long_form


class Forgetful(GandivaFair):
    """Works all out anew at each question."""

    def decide(self, view: View) -> Plan:
        """Forget, then decide."""
        self._tickets._base = None
        if self._merit is not None:
            self._merit._forecast._guesses.clear()
            self._merit._forecast._accepted.clear()
            for sums in self._merit._lags._sums.values():
                sums.rates = None
        return super().decide(view)

    def _all_run(self, view: View) -> bool:
        return False


class ForgetfulWorld(SlurmWorld):
    """An engine that makes all placements, reports and eligible nodes anew."""

    def decide(self, view: View) -> Plan:
        """Forget, then decide."""
        self._made.clear()
        self.engine._placed.clear()
        if self.engine.decider._picture is not None:
            self.engine.decider._picture._eligible = None
        return super().decide(view)


def result(name: str, told: PolicySettings, policy: Policy) -> dict[int, float]:
    """Run the first jobs of a workload; return the completion time of each."""
    specs, truth = workload(name)
    costs = Costs(told.switch_ns, told.restart_ns, slots=4)
    return jct_s(simulate(Scene(specs[:40], CLUSTER, truth, costs), policy))


@pytest.mark.parametrize("by_engine", [False, True], ids=["at-once", "by-the-engine"])
@pytest.mark.parametrize(
    ("name", "move_s"), [long_form(W1, 0, why="4 s"), (W1, 8), long_form(W1C, 60, why="4 s")]
)
def test_results_are_those_of_one_that_forgets(
    monkeypatch: pytest.MonkeyPatch, name: str, move_s: int, by_engine: bool
) -> None:
    told = settings(120, move_s > 0, move_s)
    policy: Policy = gandiva_fair.make(told)
    want = result(name, told, SlurmWorld(told, policy) if by_engine else policy)
    monkeypatch.setattr(Exchange, "_is_best", lambda self: False)
    monkeypatch.setattr(Exchange, "_most", lambda self, source, target, unit: float("inf"))
    monkeypatch.setattr(PassBook, "_is_as_before", lambda self, tickets: False)
    forgetful = Forgetful(told)
    assert result(name, told, ForgetfulWorld(told, forgetful) if by_engine else forgetful) == want
