"""One decider: what plans come to through the daemons' engine, beside the plans at once; the limits beside.

`pytest -s tests/bench/test_deciders_bench.py` measures the whole table and prints it at its end.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SLOTS, SlurmWorld
from gandiva_slurm.sim.world import Costs
from tests.bench.decisions import slowest_decision
from tests.bench.limits import judge
from tests.bench.limits import table as table
from tests.bench.loops import Took, measured
from tests.sim.mixed import CLUSTER, W1, W1C, mean_jct_s, rho_of_jobs, settings, workload

#: On a slow machine 300 jobs at once take half an hour.
pytestmark = pytest.mark.timeout(3600)
SCALE300, QUANTUM_S, SWITCH_S = "gavel_scale300_s10", 60, 1
#: A move takes so long, in seconds.
CHEAP, DEAR = 8, 60


class Run(NamedTuple):
    """A workload, carried out at once or by the engine."""

    outcome: Outcome
    took: Took


class Load(NamedTuple):
    """A workload, and its limits; 0: none."""

    name: str
    #: mean completion time through the engine in seconds, with a cheap move and with a dear one
    limit_s: tuple[int, int] = (0, 0)
    #: worst finish-time fairness of a job, and that of the 99th percentile
    limit_rho: tuple[float, float] = (0.0, 0.0)
    #: mean completion time through the engine over that of the plans at once
    limit_over: float = 1.02


LOADS = [
    Load("W1", (15_400, 15_900), (1.2, 1.1)),
    Load("W1c", (32_500, 35_500), (1.2, 1.1)),
    Load("300 by chance"),
    Load("300 at once", limit_over=1.03),
    Load("30 users"),
]
PARTS = [(load, move_s) for load in LOADS for move_s in (CHEAP, DEAR)]
IDS = [f"{load.name}, {move_s} s".replace(" ", "-") for load, move_s in PARTS]
by_part = pytest.mark.parametrize(("load", "move_s"), PARTS, ids=IDS)


def specs_of(load: Load) -> list[Spec]:
    """Return the jobs of a workload."""
    if load.name in ("W1", "W1c"):
        return workload({"W1": W1, "W1c": W1C}[load.name])[0]
    specs = workload(SCALE300, 30 if load.name == "30 users" else 4)[0]
    return [replace(spec, submit_ns=0) for spec in specs] if load.name == "300 at once" else specs


@cache
def run(load: Load, move_s: int, by_engine: bool) -> Run:
    """Run it once for all tests that look at it."""
    told = settings(QUANTUM_S, SWITCH_S, move_s)
    policy = gandiva_fair.make(told)
    costs = Costs(told.switch_ns, told.restart_ns, slots=SLOTS)
    scene = Scene(specs_of(load), CLUSTER, workload(W1)[1], costs)
    world = SlurmWorld(told, policy)
    world.handle = inspect.unwrap(Engine.handle)  # without the tests' own checks
    return Run(*measured(lambda: simulate(scene, world if by_engine else policy)))


@by_part
def test_completion_time_by_the_engine(load: Load, move_s: int) -> None:
    limit_s = load.limit_s[move_s == DEAR]
    judge(f"{load.name}, {move_s} s: mean JCT (s)", mean_jct_s(run(load, move_s, True).outcome), limit_s)


@by_part
def test_completion_time_over_that_of_the_plans(load: Load, move_s: int) -> None:
    by_engine, at_once = (mean_jct_s(run(load, move_s, is_engine).outcome) for is_engine in (True, False))
    what = f"{load.name}, {move_s} s: mean JCT over that of the plans at once"
    judge(what, by_engine / at_once, load.limit_over, "{:.4f}")


@by_part
def test_shares_are_those_of_the_plans(load: Load, move_s: int) -> None:
    by_engine, at_once = (
        run(load, move_s, is_engine).outcome.summary()["users"] for is_engine in (True, False)
    )
    most = max(abs(by_engine[user]["share"] - at_once[user]["share"]) for user in by_engine)
    judge(f"{load.name}, {move_s} s: a user's share, greatest difference (%)", 100 * most, 0.5, "{:.2f}")


@by_part
def test_no_job_is_far_behind_its_isolated_share(load: Load, move_s: int) -> None:
    worst = rho_of_jobs(run(load, move_s, True).outcome)[1]
    judge(f"{load.name}, {move_s} s: worst rho", worst, load.limit_rho[0], "{:.2f}")


@by_part
def test_few_jobs_are_behind_their_isolated_share(load: Load, move_s: int) -> None:
    p99 = rho_of_jobs(run(load, move_s, True).outcome)[0]
    judge(f"{load.name}, {move_s} s: rho p99", p99, load.limit_rho[1], "{:.2f}")


@by_part
def test_processor_time_over_that_of_the_plans(load: Load, move_s: int) -> None:
    by_engine, at_once = (run(load, move_s, is_engine).took for is_engine in (True, False))
    what = f"{load.name}, {move_s} s: processor time over that of the plans ({at_once})"
    judge(what, by_engine.loops / at_once.loops, 2.0, "{:.2f}")


@pytest.mark.parametrize(("gpus", "limit"), [(10_000, 0.4), (100_000, 4.0)])
def test_one_round_of_a_large_cluster(gpus: int, limit: float) -> None:
    cpu_s, took = measured(lambda: slowest_decision(gpus, gpus // 2))
    loops = cpu_s * took.loops / took.cpu_s
    judge(f"one round of {gpus:,} GPUs, {gpus // 2:,} jobs ({cpu_s:.2f} s): loops", loops, limit, "{:.2f}")
