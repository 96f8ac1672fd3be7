"""gandiva_fair, which knows neither lengths nor rates, beside gavel_max_min, which is told rates.

Seeds 1 to 3 were looked at while the policy was made; those here were not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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

SEEDS = (4, 5, 6, 7, 8)
#: A switch and a move, in seconds.
COSTS = [(0, 0), (1, 8), (1, 60)]
JOBS = ["W1", *(f"one GPU, seed {seed}" for seed in SEEDS), "gangs, seed 4", "gangs, seed 5"]
#: How far behind it may be in the mean where all jobs have one GPU.
BEHIND = 1.03


def jobs_of(name: str) -> tuple[list[Spec], Oracle]:
    """Return the jobs by the name of their workload."""
    if name == "W1":
        return rows()
    has_gangs, seed = name.startswith("gangs"), int(name.split()[-1])
    return drawn(seed, mean_s=1_000 if has_gangs else 600, gangs=has_gangs)


def run(name: str, costs: tuple[int, int], make: Callable[[PolicySettings], Policy]) -> Outcome:
    """Run it; rates are told to policies whose paper takes them as given."""
    specs, truth = jobs_of(name)
    told, is_told = settings(60, *costs), getattr(make, "takes_oracle", False)
    policy = make(replace(told, oracle=truth.rates) if is_told else told)
    return simulate(Scene(specs, CLUSTER, truth, Costs(told.switch_ns, told.restart_ns)), policy, is_told)


@pytest.mark.parametrize("costs", COSTS, ids=["free", "8-s", "60-s"])
@pytest.mark.parametrize("name", JOBS, ids=[name.replace(" ", "-") for name in JOBS])
def test_beside_max_min(name: str, costs: tuple[int, int]) -> None:
    ours, theirs = (run(name, costs, make) for make in (gandiva_fair.make, gavel_max_min.make))
    where, limit = f"{name}, costs {costs[0]} s and {costs[1]} s", 1.0 if name.startswith("gangs") else BEHIND
    (_, worst), (_, their_worst) = rho_of_jobs(ours), rho_of_jobs(theirs)
    rho = f"{where}: worst rho over {their_worst:.2f}"
    judge(
        f"{where}: mean JCT over {mean_jct_s(theirs):,.0f} s",
        mean_jct_s(ours) / mean_jct_s(theirs),
        limit,
        "{:.3f}",
    )
    judge(rho, worst / their_worst, 1.0, "{:.3f}")
