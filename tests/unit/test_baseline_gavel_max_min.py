"""Gavel's max-min fairness behind the port: rounds by priority, packing, gangs, its own figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="needs the extra `sim`")


from gandiva_slurm.policy.baselines.gavel_max_min import GavelMaxMin, make, make_alone
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.workloads.load import Source, load
from tests.policy_world import (
    SETTINGS,
    Case,
    FixedRates,
    PolicyWorld,
    S,
    a_job,
    a_view,
    check_on,
    check_plan,
    conserving,
    on_cases,
    running,
)
from tests.slow import long_form

GAVEL = Path(__file__).parents[1] / "data/gavel"
TWO = (("new", 1), ("old", 1))


def test_realised_parts_come_near_the_allocation() -> None:
    """Gavel, OSDI 2020: within 5 % of the allocation after 100 rounds. Here thirds of one GPU."""
    policy, jobs = make(SETTINGS), [a_job(n, model=f"m{n}", length_s=10**6) for n in range(3)]
    runs: Counter[int] = Counter()
    for turn in range(100):
        plan = policy.decide(a_view((("gpu", 1),), jobs, at_s=60 * turn))
        runs.update(plan.runs.keys())
        for job in jobs:
            job.gpus, job.is_running = plan.runs.get(job.job_id, job.gpus), job.job_id in plan.runs
    assert set(runs.values()) <= {33, 34}


def test_jobs_that_are_alike_take_turns() -> None:
    policy, jobs = make(SETTINGS), [a_job(n, model="m") for n in range(4)]
    runs = Counter(
        job_id for turn in range(20) for job_id in policy.decide(a_view((("gpu", 1),), jobs, 60 * turn)).runs
    )
    assert set(runs.values()) == {5}


def test_each_runs_on_the_type_of_its_allocation() -> None:
    rates = FixedRates({("fast", 1, "new"): 4.0, ("fast", 1, "old"): 1.0, ("any", 1, "new"): 1.0})
    view = a_view(TWO, [a_job(1, model="any"), a_job(2, model="fast")], rates=rates)
    assert make(SETTINGS).decide(view).runs == {1: (1,), 2: (0,)}


def test_a_pair_that_gains_shares_a_gpu() -> None:
    rates = FixedRates(packed={("a", "b"): (0.8, 0.7)})
    view = a_view((("gpu", 1),), [a_job(1, model="a"), a_job(2, model="b")], rates=rates)
    assert make(SETTINGS).decide(view).runs == {1: (0,), 2: (0,)}
    assert len(make_alone(SETTINGS).decide(view).runs) == 1


@pytest.mark.parametrize("why", ["can_pack", "can_migrate"])
def test_who_may_not_be_packed_is_not(why: str) -> None:
    rates = FixedRates(packed={("a", "b"): (0.8, 0.7)})
    view = a_view((("gpu", 1),), [a_job(1, model="a", **{why: False}), a_job(2, model="b")], rates=rates)
    assert len(make(SETTINGS).decide(view).runs) == 1


def test_between_two_rounds_nobody_is_taken_off_and_what_is_idle_is_filled() -> None:
    policy = make(SETTINGS)
    jobs = [a_job(1, model="a"), a_job(2, model="b"), a_job(3, model="c")]
    first = policy.decide(a_view((("gpu", 2),), jobs)).runs
    stays, ended = sorted(first)
    left = [job for job in jobs if job.job_id != ended]
    for job in left:
        if job.job_id in first:
            running(job, first[job.job_id])
    second = policy.decide(a_view((("gpu", 2),), left, at_s=30))
    assert second.runs[stays] == first[stays] and len(second.runs) == 2
    assert second.wake_ns == 60 * S


def test_who_cannot_move_stays_on_his_gpus() -> None:
    stays = running(a_job(1, model="a", can_migrate=False), (1,))
    same = a_job(2, model="a", can_migrate=False)
    same.gpus = (1,)
    policy = make(SETTINGS)
    for turn in range(4):
        view = a_view((("gpu", 2),), [stays, same, a_job(3, model="b")], at_s=60 * turn)
        plan = policy.decide(view)
        check_plan(view, plan)
        assert len(plan.runs) == 2


def test_gpus_that_are_down_are_not_counted_on() -> None:
    policy, job = make(SETTINGS), a_job(1, model="a")
    assert policy.decide(a_view(TWO, [job], down=(0,))).runs == {1: (1,)}
    assert policy.decide(a_view(TWO, [job], at_s=60, down=(0, 1))).runs == {}


def test_a_stalled_allocation_gives_newcomers_nothing() -> None:
    policy = GavelMaxMin(SETTINGS, renew_ns=1920 * S)
    old, new = a_job(1, model="a"), a_job(2, at_s=100, model="b")
    assert policy.decide(a_view(TWO, [old])).runs == {1: (0,)}
    running(old, (0,))
    assert set(policy.decide(a_view(TWO, [old, new], at_s=120)).runs) == {1}
    assert set(policy.decide(a_view(TWO, [old, new], at_s=1920)).runs) == {1, 2}


def test_a_crowd_of_gangs_and_pairs_ends() -> None:
    models = ("a", "b", "c")
    rates = FixedRates(
        {("a", 1, "new"): 3.0, ("b", 2, "new"): 1.5, ("c", 4, "old"): 2.0},
        {("a", "b"): (2.0, 0.6), ("a", "a"): (0.5, 0.5)},
    )
    jobs = [a_job(n, (1, 2, 4)[n % 3], 20 * n, 150 + n, model=models[n % 3]) for n in range(24)]
    world = PolicyWorld((("new", 4), ("old", 4)), make(SETTINGS), rates, ((300, 900, (4, 5, 6, 7)),)).run(
        jobs
    )
    assert len(world.ends_ns) == 24


@on_cases(40)
def test_plans_are_legal_and_work_conserving_whatever_comes_and_goes(case: Case) -> None:
    check_on(case, make, conserving)


@pytest.mark.parametrize(
    ("trace", "packs", "theirs_s"),
    [
        long_form("gavel_poisson200_s0", False, 17460, why="3 s; with packs is in make test"),
        ("gavel_poisson200_s0", True, 16835),
        long_form("gavel_static100_s20", False, 37008, why="3 s; with packs is in make test"),
        ("gavel_static100_s20", True, 31871),
    ],
)
def test_it_is_hardly_worse_than_in_gavels_simulator(trace: str, packs: bool, theirs_s: float) -> None:
    """36 GPUs, 360 s rounds, no costs; theirs: average JCT of max_min_fairness_perf and _packed.

    Theirs leaves GPUs idle within rounds; ours feels gangs that are apart. Ours: 0.93, 0.93, 1.02, 1.03.
    """
    cluster = read_cluster("v100:3x4,p100:3x4,k80:3x4")
    source = Source(GAVEL / f"{trace}.trace", "gavel", GAVEL / "simulation_throughputs.json.xz")
    specs, truth = load(source, cluster)
    policy = GavelMaxMin(PolicySettings(360 * S, oracle=truth.rates), packs)
    outcome = simulate(Scene(specs, cluster, truth), policy, takes_oracle=True)
    assert outcome.summary()["avg_jct_s"] < 1.04 * theirs_s
