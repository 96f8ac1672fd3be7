"""gandiva_fair, which knows neither lengths nor rates, beside gavel_max_min, which is told rates.

Seeds 1 to 3 were looked at while the policy was made; those here were not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.baselines import gavel_max_min
from gandiva_slurm.policy.port import Policy, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.world import Costs
from tests.bench.limits import judge
from tests.bench.limits import table as table
from tests.bench.one_gpu import drawn, rows
from tests.sim.mixed import CLUSTER, mean_jct_s, rho_of_jobs, settings

#: Mean time between arrivals in seconds: a few jobs wait, or more and more do; gangs want more GPUs.
LOADS = {"busy": 600, "crowded": 400, "gangs": 1_000}
#: A switch and a move, in seconds.
COSTS = [(0, 0), (1, 8), (1, 60)]
JOBS = [
    "W1",
    *(f"{load} {seed}" for load in ("busy", "crowded") for seed in range(4, 9)),
    "gangs 4",
    "gangs 5",
]
#: How far behind it may be in the mean where all jobs have one GPU.
BEHIND = 1.03


def jobs_of(name: str) -> tuple[list[Spec], Oracle]:
    """Return the jobs of a workload: its load, and the seed."""
    if name == "W1":
        return rows()
    load, seed = name.split()
    return drawn(int(seed), mean_s=LOADS[load], gangs=load == "gangs")


@cache
def run(name: str, costs: tuple[int, int], make: Callable[[PolicySettings], Policy]) -> Outcome:
    """Run it; rates are told to policies whose paper takes them as given."""
    specs, truth = jobs_of(name)
    told, is_told = settings(60, *costs), getattr(make, "takes_oracle", False)
    policy = make(replace(told, oracle=truth.rates) if is_told else told)
    return simulate(Scene(specs, CLUSTER, truth, Costs(told.switch_ns, told.restart_ns)), policy, is_told)


PARTS = [(name, costs) for name in JOBS for costs in COSTS]
IDS = [f"{name}, {costs[1]} s".replace(" ", "-") for name, costs in PARTS]
by_part = pytest.mark.parametrize(("name", "costs"), PARTS, ids=IDS)
BOTH = (gandiva_fair.make, gavel_max_min.make)


@by_part
def test_beside_max_min(name: str, costs: tuple[int, int]) -> None:
    ours, theirs = (run(name, costs, make) for make in BOTH)
    where, limit = f"{name}, costs {costs[0]} s and {costs[1]} s", 1.0 if name.startswith("gangs") else BEHIND
    what = f"{where}: mean JCT over {mean_jct_s(theirs):,.0f} s"
    judge(what, mean_jct_s(ours) / mean_jct_s(theirs), limit, "{:.3f}")


@by_part
def test_worst_job_beside_max_min(name: str, costs: tuple[int, int]) -> None:
    (_, ours), (_, theirs) = (rho_of_jobs(run(name, costs, make)) for make in BOTH)
    judge(
        f"{name}, costs {costs[0]} s and {costs[1]} s: worst rho over {theirs:.2f}",
        ours / theirs,
        1.0,
        "{:.3f}",
    )
