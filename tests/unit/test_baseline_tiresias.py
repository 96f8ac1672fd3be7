"""Tiresias: queues of attained GPU time, demotion at the limit, promotion of the starved."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gandiva_slurm.policy.baselines.ffdl import Ffdl
from gandiva_slurm.policy.baselines.placing import Pick, Ration, settle
from gandiva_slurm.policy.baselines.tiresias import Tiresias, make
from gandiva_slurm.policy.port import JobView, Plan, View
from tests.policy_world import (
    SETTINGS,
    Case,
    PolicyWorld,
    S,
    a_job,
    a_view,
    check_on,
    conserving,
    on_cases,
    running,
)


def spells(world: PolicyWorld, job_id: int) -> list[tuple[int, int]]:
    """When a job ran: (from, until) in seconds, joined."""
    found: list[tuple[int, int]] = []
    times = [moment.view.now_ns // S for moment in world.moments]
    for moment, until in zip(world.moments, times[1:], strict=False):
        if job_id in moment.plan.runs:
            begin = moment.view.now_ns // S
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, until))
    return found


@pytest.mark.parametrize(("size", "demoted_s"), [(1, 3600), (2, 1800), (4, 900)])
def test_tiresias_demotes_at_the_limit_of_gpu_time_to_the_second(size: int, demoted_s: int) -> None:
    jobs = [a_job(1, size, length_s=10**4), a_job(2, size, at_s=100, length_s=50)]
    world = PolicyWorld((("v", size),), make(SETTINGS)).run(jobs)
    assert spells(world, 1) == [(0, demoted_s), (demoted_s + 50, 10**4 + 50)]
    assert spells(world, 2) == [(demoted_s, demoted_s + 50)]


def test_tiresias_runs_a_queue_in_order_of_start_the_never_started_last() -> None:
    """Once both are in the last queue, the one that started first runs to its end."""
    jobs = [a_job(1, length_s=5000), a_job(2, at_s=10, length_s=5000), a_job(3, at_s=4000, length_s=10)]
    world = PolicyWorld((("v", 1),), make(SETTINGS)).run(jobs)
    assert spells(world, 1) == [(0, 3600), (7210, 8610)]
    assert spells(world, 2) == [(3600, 7200), (8610, 10010)]
    assert spells(world, 3) == [(7200, 7210)]


def test_tiresias_lets_who_started_go_on_before_older_jobs_that_never_did() -> None:
    older, started = a_job(1, 2), running(a_job(2, 2, at_s=5), (0, 1), ran_s=10, since_s=5)
    assert set(make(SETTINGS).decide(a_view((("v", 2),), [older, started], at_s=15)).runs) == {2}
    started.ran_ns = 1800 * S
    assert set(make(SETTINGS).decide(a_view((("v", 2),), [older, started], at_s=1805)).runs) == {1}
    started.ran_ns -= 1
    plan = make(SETTINGS).decide(a_view((("v", 2),), [older, started], at_s=1805))
    assert set(plan.runs) == {2} and plan.wake_ns == 1805 * S + 1


def test_tiresias_promotes_who_waited_knob_times_what_it_ran() -> None:
    jobs = [a_job(1, length_s=9000), a_job(2, at_s=100, length_s=3000), a_job(3, at_s=110, length_s=3000)]
    world = PolicyWorld((("v", 1),), Tiresias(SETTINGS, promote_knob=1)).run(jobs)
    assert spells(world, 1)[:2] == [(0, 3600), (7200, 10800)]
    never = PolicyWorld((("v", 1),), make(SETTINGS)).run(jobs)
    assert spells(never, 1) == [(0, 3600), (9600, 15000)]


def test_tiresias_skips_a_gang_that_does_not_fit_and_fills_behind_it() -> None:
    view = a_view((("v", 4),), [a_job(1, 3), a_job(2, 2), a_job(3, 1)])
    assert set(make(SETTINGS).decide(view).runs) == {1, 3}


def test_tiresias_leaves_running_jobs_where_they_are() -> None:
    stays = running(a_job(1, 2), (2, 3), ran_s=5)
    runs = make(SETTINGS).decide(a_view((("v", 4),), [stays, a_job(2, 1)], at_s=5)).runs
    assert runs == {1: (2, 3), 2: (0,)}


class ShortestService:
    """SRSF: least GPU time left first; knows all lengths."""

    name = "srsf"

    def decide(self, view: View) -> Plan:
        ration = Ration(view)
        picks: list[Pick] = []
        for job in sorted(view.jobs.values(), key=lambda job: (self.left(job), job.order)):
            pick = ration.pick(job, tuple(view.cluster.counts))
            picks += [pick] if pick else []
        return Plan(settle(view, picks))

    def left(self, job: JobView) -> int:
        assert job.length_ns is not None
        return (job.length_ns - job.ran_ns) * job.size


def heavy_tailed(count: int) -> list[JobView]:
    """Nine short jobs for each long one, gangs among them, arriving faster than they can be served."""
    return [
        a_job(
            n,
            size=(1, 1, 2, 1, 4)[n % 5],
            at_s=n * 260,
            length_s=30_000 if n % 10 == 3 else 200 + 97 * (n * n % 11),
        )
        for n in range(count)
    ]


def mean_jct_s(world: PolicyWorld, jobs: Iterable[JobView]) -> float:
    waits = [world.jct_s(job) for job in jobs]
    return sum(waits) / len(waits)


def test_tiresias_comes_close_to_srsf_and_far_below_fifo() -> None:
    jobs = heavy_tailed(120)
    shape = (("v", 4), ("v", 4))
    tiresias, fifo, srsf = (
        mean_jct_s(PolicyWorld(shape, policy).run(jobs), jobs)
        for policy in (make(SETTINGS), Ffdl(SETTINGS), ShortestService())
    )
    assert srsf <= tiresias < 1.5 * srsf
    assert tiresias < 0.5 * fifo


@on_cases(60)
def test_tiresias_plans_are_legal_and_work_conserving_whatever_comes_and_goes(case: Case) -> None:
    check_on(case, make, conserving)


@on_cases(40)
def test_tiresias_with_promotion_is_work_conserving_and_ends(case: Case) -> None:
    check_on(case, lambda settings: Tiresias(settings, (60, 600), promote_knob=2), conserving)
