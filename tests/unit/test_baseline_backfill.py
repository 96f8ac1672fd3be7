"""EASY backfill: the head's start is promised, and nobody who fills in may break the promise."""

from __future__ import annotations

from gandiva_slurm.policy.baselines.backfill import UNLIMITED_NS, Backfill, make, remaining_ns, reserve
from gandiva_slurm.policy.port import JobView, Plan, View
from tests.policy_world import SETTINGS, Case, PolicyWorld, a_job, a_view, check_on, on_cases, running


def decide(view: View) -> Plan:
    return make(SETTINGS).decide(view)


def test_backfill_starts_jobs_in_order_while_they_fit() -> None:
    view = a_view((("v", 4),), [a_job(1, 2), a_job(2, 1), a_job(3, 2), a_job(4, 4)])
    assert set(decide(view).runs) == {1, 2}


def test_backfill_lets_only_jobs_pass_that_end_before_the_heads_start() -> None:
    """Three of four GPUs are free at 100 s, the head wants all four: one GPU is idle until then."""
    busy = running(a_job(1, 3, length_s=100), (0, 1, 2), ran_s=10)
    head = a_job(2, 4, at_s=1)
    just, late = a_job(3, at_s=2, length_s=90), a_job(4, at_s=2, length_s=91)
    assert set(decide(a_view((("v", 4),), [busy, head, just], at_s=10)).runs) == {1, 3}
    assert set(decide(a_view((("v", 4),), [busy, head, late], at_s=10)).runs) == {1}


def test_backfill_gives_long_jobs_what_the_head_leaves_over_once() -> None:
    busy = running(a_job(1, 4, length_s=100), (0, 1, 2, 3))
    jobs = [busy, a_job(2, 5, at_s=1), *(a_job(n, at_s=2, length_s=1000) for n in (3, 4))]
    assert set(decide(a_view((("v", 6),), jobs, at_s=5)).runs) == {1, 3}


def test_backfill_counts_all_that_end_with_the_one_the_head_waits_for() -> None:
    """At 100 s four GPUs are free, the head takes two: a long job may have one that is idle now."""
    pairs = [running(a_job(n, 2, length_s=100), (2 * n, 2 * n + 1)) for n in (0, 1)]
    jobs = [*pairs, a_job(2, 2, at_s=1), a_job(3, at_s=2, length_s=1000), a_job(4, at_s=2, length_s=1000)]
    jobs[2].size = 3
    assert set(decide(a_view((("v", 5),), jobs, at_s=5)).runs) == {0, 1, 3}


def test_backfill_may_use_other_types_than_the_reserved_one() -> None:
    busy = running(a_job(1, 1, length_s=10), (0,))
    head = a_job(2, 2, at_s=1, gpu_types=("v",))
    other = a_job(3, at_s=2, length_s=1000)
    assert decide(a_view((("v", 2), ("k", 2)), [busy, head, other], at_s=5)).runs == {1: (0,), 3: (2,)}


def test_backfill_plans_a_year_for_a_job_without_a_limit() -> None:
    assert remaining_ns(a_job(1, length_s=None)) == UNLIMITED_NS
    busy = running(a_job(1, 1, length_s=None), (0,))
    jobs = [busy, a_job(2, 2, at_s=1), a_job(3, at_s=2, length_s=10**6)]
    assert set(decide(a_view((("v", 2),), jobs, at_s=5)).runs) == {1, 3}


def test_backfill_passes_over_a_job_that_can_never_run() -> None:
    view = a_view((("v", 2),), [a_job(1, 3), a_job(2, 1, length_s=10**6)])
    assert set(decide(view).runs) == {2}


class Promises:
    """Writes down, from question to question, the latest start of whoever is first in the queue."""

    def __init__(self) -> None:
        self.starts_ns: dict[int, int] = {}

    def check(self, view: View, plan: Plan) -> None:
        head = next((job for job in view.jobs.values() if job.job_id not in plan.runs), None)
        if head is None:
            return
        start_ns = reserve(head, tuple(view.cluster.counts), view, dict(plan.runs)).start_ns
        assert start_ns <= self.starts_ns.get(head.job_id, start_ns)
        self.starts_ns[head.job_id] = start_ns


def plain(job: JobView) -> JobView:
    """Make the job one that any GPU will do for."""
    job.gpu_types, job.can_migrate = (), True
    return job


@on_cases(80)
def test_backfill_never_breaks_a_promise_to_the_head(case: Case) -> None:
    shape = tuple(("v", gpus) for _, gpus in case.shape)
    promises = Promises()
    world = PolicyWorld(shape, Backfill(SETTINGS), check=promises.check).run(plain(job) for job in case.jobs)
    for job_id, start_ns in promises.starts_ns.items():
        assert world.starts_ns[job_id] <= start_ns


@on_cases(60)
def test_backfill_plans_are_legal_whatever_comes_and_goes(case: Case) -> None:
    check_on(case, make)
