"""What gandiva_fair charges beyond its slices, and whom it lets be the host of a pair."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.policy.shares.groups import Group, Last
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.slicing.stride import STRIDE1
from tests.policy_world import S, a_job, a_view
from tests.sim_scenes import ends_s, spec

QUANTUM_S = 60


def test_what_is_held_past_the_end_of_a_slice_is_not_forgiven() -> None:
    """A gang of four parks late each time, and is more than a round of all GPUs ahead then."""
    policy, at_s = gandiva_fair.make(PolicySettings(QUANTUM_S * S)), 0
    jobs = {1: a_job(1, 4, user="gang")} | {n: a_job(n, 1, user=f"user{n % 2}") for n in range(2, 6)}
    for _ in range(300):
        runs = policy.decide(a_view((("v100", 4),), jobs.values(), at_s)).runs
        slice_s = QUANTUM_S + (30 if 1 in runs else 0)
        at_s += slice_s
        for job_id, job in jobs.items():
            job.gpus, job.is_running = runs.get(job_id, job.gpus), job_id in runs
            job.held_ns += slice_s * S * len(job.gpus) if job_id in runs else 0
    held: dict[str, float] = {}
    for job in jobs.values():
        held[job.user] = held.get(job.user, 0) + job.held_ns / (4 * at_s * S)
    assert held == pytest.approx(dict.fromkeys(("gang", "user0", "user1"), 1 / 3), rel=0.03)


def test_what_nobody_waited_for_is_no_debt() -> None:
    """Two users had what they wanted for an hour, one of them three times as much: then both are equal."""
    policy = gandiva_fair.make(PolicySettings(QUANTUM_S * S))
    jobs = {1: a_job(1, 3, user="many"), 2: a_job(2, 1, user="few")}
    policy.decide(a_view((("v100", 4),), jobs.values()))
    for job_id, gpus in ((1, (0, 1, 2)), (2, (3,))):
        jobs[job_id].gpus, jobs[job_id].is_running = gpus, True
        jobs[job_id].held_ns = 3600 * S * len(gpus)
    more = [a_job(3, 4, at_s=3600, user="few"), a_job(4, 4, at_s=3600, user="many")]
    policy.decide(a_view((("v100", 4),), [*jobs.values(), *more], 3600))
    passes = policy.passes()
    assert passes["many in "] == passes["few in "]


#: Jobs run as planned, others wait: of each (user, GPU types, running), and the users that owe for it.
V100, ANY = ("v100",), ()
WAITED_FOR = {
    "another user waits for its type": ([("ann", V100, True), ("bob", V100, False)], {"ann"}),
    "another user would take any type": ([("ann", V100, True), ("bob", ANY, False)], {"ann"}),
    "another user waits for another type": ([("ann", V100, True), ("bob", ("k80",), False)], set()),
    "its own jobs alone wait": ([("ann", V100, True), ("ann", V100, False), ("bob", ("k80",), False)], set()),
}


@pytest.mark.parametrize("case", WAITED_FOR)
def test_a_user_owes_for_gpus_that_others_could_have_had(case: str) -> None:
    stand, owing = WAITED_FOR[case]
    cluster, group = Cluster([("v100", 1), ("k80", 1)]), Group()
    group.jobs = {n: a_job(n, user=user, gpu_types=types) for n, (user, types, _) in enumerate(stand)}
    owners = {job_id: job.user for job_id, job in group.jobs.items()}
    of_user = {user: dict.fromkeys((n for n in owners if owners[n] == user), 1) for user in owners.values()}
    group.turns.set_members(dict.fromkeys(of_user, 1), of_user)
    gpu = {"v100": 0, "k80": 1}
    runs = {n: (gpu[types[0]],) for n, (_, types, is_on) in enumerate(stand) if is_on}
    last = Last(runs, dict.fromkeys(runs, ""), owners)
    group.note_waiting(last, "", cluster)
    for job_id in runs:
        group.turns.charge(owners[job_id], job_id, 5 * S)
    group.owe(dict.fromkeys(runs, 5 * S), last, cluster, most=3 * S)
    group.turns.settle(0)
    leads = group.turns.passes()[0]
    lowest = min(leads.values())
    assert {user for user, value in leads.items() if value > lowest} == owing
    assert all(value - lowest in (0, 3 * S * STRIDE1) for value in leads.values())


def pair_of(kept: float) -> Oracle:
    """Two of a model keep so much of their speed each on one GPU."""
    return Oracle({"v100": {("m", 1): {None: 10.0, ("m", 1): [10 * kept] * 2}}})


def ends_of(gpus: int, kept: float, *tickets: int) -> list[float]:
    """When equal jobs end that take 1,000 s alone, each of a user with these tickets."""
    specs = [spec(n, 1, length_s=0, user=f"user{n}", model="m", steps=10_000) for n in range(len(tickets))]
    told = {f"user{n}": count for n, count in enumerate(tickets)}
    policy = gandiva_fair.make(PolicySettings(QUANTUM_S * S, tickets=told))
    cluster = Cluster([("v100", gpus)])
    return ends_s(simulate(Scene(specs, cluster, pair_of(kept), tickets=told, is_checked=True), policy))


def test_users_with_a_job_each_share_a_gpu_where_both_gain() -> None:
    assert max(ends_of(1, 0.9, 1, 1)) < 1200, "by turns they would take 2,000 s"
    assert max(ends_of(1, 0.55, 1, 1)) < 1900
    assert sum(ends_of(3, 0.7, 1, 1, 1, 1)) / 4 < 1200, "by turns they would take 1,333 s"


def test_a_user_whose_only_job_would_lose_is_no_host() -> None:
    """By turns it is on for 0.9 of the time; always beside the other it would keep 0.55 of its speed."""
    first, second = ends_of(1, 0.55, 9, 1)
    assert first < 1000 / 0.89 and second < 2000
    first, second = ends_of(1, 0.8, 2, 1)
    assert first < 1000 / 0.8 < 1500 < second < 1600, "it is not always beside the other"
