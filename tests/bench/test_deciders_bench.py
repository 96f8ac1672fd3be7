"""The two deciders on the same workloads: the live engine's, and whole plans under a cluster's constraints.

A plan has room for as many jobs on a GPU as the live engine has slots; where one more comes, a parked job is
saved and leaves. Neither knows lengths; switches take 1 s, moves 8 s or 60 s (ADR 0037 has the tables).
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, Policy, PolicySettings
from gandiva_slurm.sim import live
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Truth
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import CLUSTER, W1, W1C, S, mean_jct_s, rho_of_jobs, settings, workload

SCALE = "gavel_scale300_s10"
SLOTS = 4
USERS = 30
#: Of the made workload: sizes of gangs with their weights, and the mean seconds between two arrivals.
SIZES, MEAN_S = {1: 50, 2: 20, 4: 20, 8: 10}, 150
MAKERS: dict[str, Callable[[PolicySettings], Policy]] = {"live": live.make, "plan": gandiva_fair.make}


@cache
def jobs_of(name: str) -> tuple[list[Spec], Truth]:
    """The jobs of a workload, and what is true of them; `at once`: all come at the start."""
    if name == "at once":
        rows, truth = workload(SCALE)
        return [replace(row, submit_ns=0) for row in rows], truth
    return gangs_of_many_users() if name == "30 users" else workload(name)


def gangs_of_many_users() -> tuple[list[Spec], Truth]:
    """Gangs of up to 8 GPUs, arriving by chance; a user's part of them falls as 1 over the user's number."""
    rows, truth = workload(SCALE)
    draw, at_s, specs = random.Random(USERS), 0.0, []
    for row in rows:
        at_s += draw.expovariate(1 / MEAN_S)
        (size,) = draw.choices([*SIZES], [*SIZES.values()])
        (user,) = draw.choices(range(USERS), [1 / (number + 1) for number in range(USERS)])
        steps, submit_ns = max(1, row.steps // 4), round(at_s * S)
        made = replace(row, submit_ns=submit_ns, size=size, user=f"u{user}", steps=steps)
        while made.size > 1 and not runs_anywhere(truth, made):
            made = replace(made, size=made.size // 2)
        specs.append(made)
    return specs, truth


def runs_anywhere(truth: Truth, job: Spec) -> bool:
    """True when it runs on each type, on one node or several."""
    places = [(name, is_local) for name in CLUSTER.counts for is_local in (True, False)]
    return all(truth.alone(job, job.size, *place) for place in places)


@dataclass(frozen=True)
class Limits:
    """What a cluster has that a plan may not pass; without any of it plans are free."""

    slots: int = SLOTS
    jobs: Callable[[list[Spec]], list[Spec]] = list
    cluster: Cluster = CLUSTER
    round_s: float = 0
    missed: float = 0
    told: str = ""


FREE, REAL = Limits(slots=0), Limits()


def ask(name: str, decider: str, restart_s: float, limits: Limits = REAL) -> float:
    """Run it, print a row of the table, and return the mean completion time in seconds."""
    specs, truth = jobs_of(name)
    known = settings(60, 1, restart_s)
    began_s = time.process_time()
    slots = 0 if decider == "live" else limits.slots
    costs = Costs(
        known.switch_ns,
        known.restart_ns,
        slots=slots,
        round_ns=round(limits.round_s * S),
        missed=limits.missed,
    )
    scene = Scene(limits.jobs(specs), limits.cluster, truth, costs)
    outcome = simulate(scene, MAKERS[decider](known))
    p99, worst = rho_of_jobs(outcome)
    room = f", {slots} slots" if slots else ""
    counts, took_s = outcome.counts, time.process_time() - began_s
    print(
        f"\n{name}, a move {restart_s:g} s, {decider}{room}{limits.told}: "
        f"mean JCT {mean_jct_s(outcome):,.0f} s, rho p99 {p99:.2f}, worst {worst:.2f}, "
        f"{counts['migrations']} moves, {counts['evictions']} evictions, {counts['refusals']} refusals, "
        f"{took_s:.1f} s of processor"
    )
    return mean_jct_s(outcome)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("restart_s", [8, 60])
@pytest.mark.parametrize("name", [W1, W1C, SCALE, "at once", "30 users"])
def test_whole_plans_under_the_constraints_of_a_cluster(name: str, restart_s: float) -> None:
    free = ask(name, "plan", restart_s, FREE)
    real = ask(name, "plan", restart_s)
    ask(name, "live", restart_s)
    assert real <= 1.03 * free


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", [0.3, 1])
@pytest.mark.parametrize("name", [W1, W1C])
def test_some_jobs_cannot_be_saved(name: str, part: float) -> None:
    def unsaved(specs: list[Spec]) -> list[Spec]:
        draw = random.Random(7)
        return [replace(spec, can_migrate=draw.random() >= part) for spec in specs]

    limits = Limits(jobs=unsaved, told=f", {part:.0%} of the jobs cannot be saved")
    assert ask(name, "plan", 8, limits) < ask(name, "live", 8, limits)


#: Two of three nodes of each type, the third, and all: what a job may use.
PARTITIONS = [None, frozenset({0, 1, 3, 4, 6, 7}), frozenset({2, 5, 8})]


@pytest.mark.parametrize("name", [W1, W1C])
def test_each_job_may_use_the_nodes_of_its_partition(name: str) -> None:
    def confined(specs: list[Spec]) -> list[Spec]:
        draw = random.Random(7)
        return [replace(spec, hosts=draw.choice(PARTITIONS)) for spec in specs]

    assert ask(name, "plan", 8, Limits(jobs=confined, told=", partitions")) > ask(name, "plan", 8)


@pytest.mark.parametrize("name", [W1, W1C])
def test_nodes_hold_as_many_jobs_as_their_memory(name: str) -> None:
    """A node has memory for two average jobs a GPU, running or parked."""
    roomy = Cluster([(host.gpu_type, len(host.gpus)) for host in CLUSTER.hosts], memory_mib=[800] * 9)

    def with_memory(specs: list[Spec]) -> list[Spec]:
        draw = random.Random(7)
        return [replace(spec, memory_mib=min(800, draw.choice((50, 100, 150)) * spec.size)) for spec in specs]

    limits = Limits(jobs=with_memory, cluster=roomy, told=", host memory")
    assert ask(name, "plan", 8, limits) <= 1.05 * ask(name, "plan", 8)


@pytest.mark.parametrize("round_s", [0.2, 1, 3])
@pytest.mark.parametrize("name", [W1, W1C])
def test_rounds_take_time(name: str, round_s: float) -> None:
    limits = Limits(round_s=round_s, told=f", rounds of {round_s:g} s")
    assert ask(name, "plan", 8, limits) <= 1.02 * ask(name, "plan", 8)


@pytest.mark.parametrize("part", [0.01, 0.1])
@pytest.mark.parametrize("name", [W1, W1C])
def test_nodes_miss_their_parts(name: str, part: float) -> None:
    limits = Limits(missed=part, told=f", {part:.0%} of the parts missed")
    assert ask(name, "plan", 8, limits) <= 1.02 * ask(name, "plan", 8)
