"""Elastic jobs as the live daemons resize them, in virtual time: by a checkpoint and a requeue."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.port import Cluster, Plan, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.live import LivePolicy
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs
from tests.sim_scenes import S, ends_s, spec

QUANTUM_S, RESTART_S = 60, 10
#: GPUs are idle for so long before anybody grows into them (moves.min_run_s).
TURN_S = 1800
NODE = Cluster([("v100", 4)])


class Watched(LivePolicy):
    """The policy, and which GPUs each job had when."""

    def __init__(self) -> None:
        super().__init__(PolicySettings(QUANTUM_S * S, restart_ns=RESTART_S * S))
        self.sizes: dict[int, list[int]] = {}

    def decide(self, view: View) -> Plan:
        plan = super().decide(view)
        for job_id, gpus in plan.runs.items():
            seen = self.sizes.setdefault(job_id, [])
            if seen[-1:] != [len(gpus)]:
                seen.append(len(gpus))
        return plan


def run(*jobs: Spec) -> tuple[Outcome, Watched]:
    """Run with every invariant checked."""
    policy = Watched()
    costs = Costs(restart_ns=RESTART_S * S)
    return simulate(Scene(list(jobs), NODE, Homogeneous(), costs, is_checked=True), policy), policy


def test_it_grows_into_what_nobody_wants_and_ends_sooner() -> None:
    outcome, policy = run(spec(0, 2, length_s=20_000, min_size=1, max_size=4))
    assert policy.sizes[0] == [2, 4]
    ideal_s = TURN_S + (20_000 - TURN_S) / 2
    assert ends_s(outcome)[0] == pytest.approx(ideal_s, abs=3 * QUANTUM_S)
    assert (outcome.counts["grows"], outcome.counts["shrinks"]) == (1, 0)


def test_it_gives_way_to_whoever_comes_to_live_there() -> None:
    jobs = (spec(0, 2, length_s=40_000, min_size=1, max_size=4), spec(1, 1, 5000, 8000, user="v"))
    outcome, policy = run(*jobs)
    assert policy.sizes[0][:3] == [2, 4, 3]
    assert policy.sizes[1] == [1]
    assert outcome.books.start_ns[1] == 5000 * S, "it takes turns with the large one until that has given way"
    assert outcome.counts["shrinks"] >= 1


def test_others_are_as_they_were() -> None:
    outcome, policy = run(spec(0, 2, length_s=20_000))
    assert policy.sizes == {0: [2]} and ends_s(outcome) == [20_000]
