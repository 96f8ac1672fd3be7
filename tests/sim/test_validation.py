"""The simulated half of `gandiva mini validate`: its workload hangs on no hair, and needs its costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gandiva_slurm.mini.spec import parse_nodes
from gandiva_slurm.mini.validation import checks, plan, simulated
from gandiva_slurm.mini.validation.checks import Ended
from gandiva_slurm.mini.validation.costs import Costs
from gandiva_slurm.mini.validation.play import varied
from gandiva_slurm.mini.validation.report import simulated_ends
from gandiva_slurm.sim.outcome import Outcome

PACES_S = {"v100": 0.1007, "p100": 0.1258}
STEPS_S = {(kind, gpus): step_s for kind, step_s in PACES_S.items() for gpus in (1, 2, 4)}
#: About what a quiet machine has.
QUIET = Costs(
    look_s=0.4, slurm_s=0.6, load_s=1.3, reload_s=1.5, exit_s=0.05, save_s=0.02, told_s=2.8, switch_s=0.02,
    steps_s=STEPS_S, counts={},
)  # fmt: skip


def run(costs: Costs) -> Outcome:
    submitted_s = {job.name: job.at_s for job in plan.LONG}
    cast = simulated.Cast(plan.LONG, submitted_s, parse_nodes(plan.NODES), plan.QUANTUM_S, 1.0)
    return simulated.run(cast, costs)[0]


@pytest.fixture(scope="module")
def ends() -> Sequence[Ended]:
    return simulated_ends(run(QUIET))


def test_the_workload_is_what_it_is_to_be() -> None:
    outcome, sizes = run(QUIET), [job.gpus for job in plan.LONG]
    assert len(sizes) >= 24 and {job.user for job in plan.LONG} == {"user1", "user2", "user3"}
    assert {1, 2, 4} == set(sizes) and plan.LONG[-1].at_s >= 120
    assert outcome.counts["migrations"] >= checks.LEAST_MOVES
    assert outcome.counts["suspends"] >= 30, "jobs take turns"


def test_costs_that_are_a_little_off_change_little(ends: Sequence[Ended]) -> None:
    for costs in varied(QUIET):
        other = simulated_ends(run(costs))
        assert checks.check_jct(ends, other).ok and checks.check_shares(ends, other).ok
        assert checks.check_order(ends, other).ok


def test_a_simulation_without_the_costs_of_starts_does_not_agree(ends: Sequence[Ended]) -> None:
    free = replace(QUIET, slurm_s=0.0, load_s=0.0, exit_s=0.0)
    assert not checks.check_jct(ends, simulated_ends(run(free))).ok


def test_a_simulation_on_gpus_that_are_all_alike_does_not_agree(ends: Sequence[Ended]) -> None:
    alike = replace(QUIET, steps_s=dict.fromkeys(STEPS_S, 0.1007))
    assert not checks.check_jct(ends, simulated_ends(run(alike))).ok
