"""Philly: quotas of virtual clusters, borrowing and taking back, waiting for locality."""

from __future__ import annotations

from gandiva_slurm.policy.baselines.philly import RELAX_NS, Philly, make
from gandiva_slurm.policy.baselines.quotas import deal, used_gpus, vc_of
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View
from tests.policy_world import (
    SETTINGS,
    Case,
    PolicyWorld,
    S,
    a_job,
    a_view,
    check_on,
    idle_gpus,
    on_cases,
    running,
)

SHARES = PolicySettings(quantum_ns=60 * S, tickets={"a": 3, "b": 1})


def test_quotas_deal_whole_gpus_by_tickets() -> None:
    assert deal(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert deal(8, {"a": 3, "b": 1}) == {"a": 6, "b": 2}
    assert deal(2, {"a": 1, "b": 1, "c": 1}) == {"a": 1, "b": 1, "c": 0}


def test_philly_serves_the_least_used_quota_first_by_order_of_arrival_inside() -> None:
    jobs = [a_job(n, user="a") for n in range(1, 9)] + [a_job(n, at_s=1, user="b") for n in range(11, 19)]
    runs = make(SHARES).decide(a_view((("v", 8),), jobs, at_s=2)).runs
    assert sorted(runs) == [1, 2, 3, 4, 5, 6, 11, 12]


def test_philly_lends_what_others_do_not_use() -> None:
    jobs = [a_job(n, user="b") for n in range(1, 9)]
    assert len(make(SHARES).decide(a_view((("v", 8),), jobs)).runs) == 8


def test_philly_takes_borrowed_gpus_back_from_the_latest_for_a_job_within_its_quota() -> None:
    lent = [running(a_job(n, user="b"), (n - 1,), since_s=n) for n in range(1, 9)]
    plan = make(SHARES).decide(a_view((("v", 8),), [*lent, a_job(9, 4, at_s=50, user="a")], at_s=50))
    assert sorted(plan.runs) == [1, 2, 3, 4, 9]
    assert plan.runs[9] == (4, 5, 6, 7)
    assert "back to a" in plan.notes[8]


def test_philly_takes_nothing_back_beyond_the_borrowed_nor_for_a_job_over_quota() -> None:
    own = [running(a_job(n, user="b", vc="b"), (n - 1,)) for n in (1, 2)]
    more = [running(a_job(n, user="a"), (n - 1,)) for n in range(3, 9)]
    plan = make(SHARES).decide(a_view((("v", 8),), [*own, *more, a_job(9, user="a", at_s=5)], at_s=5))
    assert 9 not in plan.runs and len(plan.runs) == 8
    lent = [running(a_job(n, user="b"), (n - 1,)) for n in range(1, 9)]
    plan = make(SHARES).decide(a_view((("v", 8),), [*lent, a_job(9, 7, user="a", at_s=5)], at_s=5))
    assert 9 not in plan.runs and len(plan.runs) == 8


def some(first: int, count: int, user: str, since_s: int) -> list[JobView]:
    """Running one-GPU jobs of a user on GPUs from `first` on."""
    return [running(a_job(100 + n, user=user), (n,), since_s=since_s) for n in range(first, first + count)]


def test_philly_over_quota_takes_nothing_from_others_over_theirs() -> None:
    shares = PolicySettings(quantum_ns=60 * S, tickets={"a": 3, "b": 3, "c": 2})
    jobs = [*some(0, 4, "a", 1), *some(4, 4, "b", 2), a_job(9, user="a", at_s=5)]
    assert 9 not in make(shares).decide(a_view((("v", 8),), jobs, at_s=5)).runs


def test_philly_takes_from_each_only_what_it_borrowed() -> None:
    shares = PolicySettings(quantum_ns=60 * S, tickets={"a": 2, "b": 1, "c": 1})
    jobs = [*some(0, 2, "a", 1), *some(2, 3, "b", 9), *some(5, 3, "c", 2), a_job(9, 2, user="a", at_s=10)]
    plan = make(shares).decide(a_view((("v", 8),), jobs, at_s=10))
    assert set(plan.runs) == {9, 100, 101, 102, 103, 105, 106}


def test_philly_fills_what_a_stopped_gang_leaves_over() -> None:
    shares = PolicySettings(quantum_ns=60 * S, tickets={"a": 1, "b": 1})
    gang = running(a_job(1, 4, user="b"), (0, 1, 2, 3))
    jobs = [gang, a_job(2, user="a", at_s=5), a_job(3, user="b", at_s=6)]
    assert make(shares).decide(a_view((("v", 4),), jobs, at_s=7)).runs == {2: (0,), 3: (1,)}


def test_philly_waits_for_locality_and_relaxes_with_time() -> None:
    """Two GPUs are free on each of three nodes: a gang of six is spread over three only after a while."""
    busy = [running(a_job(n, 2, length_s=10**5), (4 * n - 4, 4 * n - 3)) for n in (1, 2, 3)]
    policy = Philly(SETTINGS)
    shape = (("v", 4),) * 3
    gang, pair = a_job(7, 6, at_s=100), a_job(8, 2, at_s=101)
    first = policy.decide(a_view(shape, [*busy, gang], at_s=100))
    assert 7 not in first.runs and "closer" in first.notes[7]
    assert first.wake_ns == 100 * S + RELAX_NS
    early = policy.decide(a_view(shape, [*busy, gang], at_s=399))
    assert 7 not in early.runs
    late = policy.decide(a_view(shape, [*busy, gang], at_s=400))
    assert late.runs[7] == (2, 3, 6, 7, 10, 11)
    beside = Philly(SETTINGS).decide(a_view(shape, [*busy, gang, pair], at_s=101))
    assert 8 in beside.runs, "a gang that waits for locality holds up nobody"


def test_philly_gang_of_four_starts_on_two_nodes_after_one_relaxing_and_not_before() -> None:
    busy = [running(a_job(n, 2, length_s=10**5), (4 * n - 4, 4 * n - 3)) for n in (1, 2)]
    world = PolicyWorld((("v", 4), ("v", 4)), make(SETTINGS))
    world.run(
        [
            *(a_job(job.job_id, 2, length_s=10**4) for job in busy),
            a_job(3, 3, length_s=10**4),
            a_job(4, 4, at_s=1),
        ]
    )
    assert world.starts_ns[4] >= RELAX_NS


@on_cases(60)
def test_philly_plans_are_legal_and_no_job_within_quota_loses_its_gpus(case: Case) -> None:
    policy: list[Philly] = []

    def fresh(settings: PolicySettings) -> Philly:
        policy.append(Philly(settings))
        return policy[-1]

    def check(view: View, plan: Plan) -> None:
        quota = policy[-1].quotas(view)
        lost = {job.job_id for job in view.jobs.values() if job.is_running} - plan.runs.keys()
        used = used_gpus(view, {*plan.runs, *lost})
        for job_id in lost:
            name = vc_of(view.jobs[job_id])
            assert used[name] > quota[name], (job_id, used, quota)

    check_on(case, fresh, check)


@on_cases(40)
def test_philly_without_locality_leaves_no_gpu_idle_in_vain(case: Case) -> None:
    """One-GPU jobs have no locality to wait for."""

    def check(view: View, plan: Plan) -> None:
        idle = {view.cluster.type_of[gpu] for gpu in idle_gpus(view, plan)}
        waits = [job for job in view.jobs.values() if job.job_id not in plan.runs and job.size == 1]
        assert not any(job.accepts(name) for job in waits for name in idle if job.can_migrate or not job.gpus)

    check_on(case, make, check)
