"""FfDL: gangs in order of arrival, packed or spread."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.baselines.ffdl import make, make_spread
from gandiva_slurm.policy.port import Plan, View
from tests.policy_world import SETTINGS, Case, a_job, a_view, check_on, on_cases, running

TWO_NODES = (("v", 4), ("v", 4))


def test_ffdl_packs_a_gang_on_the_tightest_node() -> None:
    busy = running(a_job(1, 1), (4,))
    assert make(SETTINGS).decide(a_view(TWO_NODES, [busy, a_job(2, 2)])).runs[2] == (5, 6)


def test_ffdl_spreads_a_gang_over_the_emptiest_nodes() -> None:
    busy = running(a_job(1, 1), (4,))
    assert make_spread(SETTINGS).decide(a_view(TWO_NODES, [busy, a_job(2, 3)])).runs[2] == (0, 1, 5)


def test_ffdl_packing_leaves_room_for_a_whole_node_where_spreading_does_not() -> None:
    jobs = [a_job(1, 1), a_job(2, 1, at_s=1), a_job(3, 4, at_s=2)]
    cluster = a_view(TWO_NODES, jobs, at_s=3).cluster
    packed, spread = (
        policy(SETTINGS).decide(a_view(TWO_NODES, jobs, at_s=3)).runs for policy in (make, make_spread)
    )
    assert len(cluster.hosts_of(packed[3])) == 1
    assert len(cluster.hosts_of(spread[3])) == 2


def test_ffdl_head_of_the_queue_blocks_those_behind_it() -> None:
    jobs = [a_job(1, 3), a_job(2, 2, at_s=1), a_job(3, 1, at_s=2)]
    plan = make(SETTINGS).decide(a_view((("v", 4),), jobs, at_s=3))
    assert set(plan.runs) == {1} and 2 in plan.notes


def test_ffdl_takes_the_largest_gang_of_one_moment_first() -> None:
    assert set(make(SETTINGS).decide(a_view((("v", 4),), [a_job(1, 1), a_job(2, 4)])).runs) == {2}


def in_order(view: View, plan: Plan) -> None:
    """Who waits came after all who were started at any time before."""
    waiting = [job.submit_ns for job in view.jobs.values() if job.job_id not in plan.runs]
    fresh = [
        job.submit_ns for job in view.jobs.values() if job.job_id in plan.runs and job.first_run_ns is None
    ]
    assert not waiting or not fresh or max(fresh) <= min(waiting)


@pytest.mark.parametrize("policy", [make, make_spread])
@on_cases(50)
def test_ffdl_gangs_are_whole_and_start_in_order_whatever_comes_and_goes(policy, case: Case) -> None:  # type: ignore[no-untyped-def]
    if case.outages:  # a job that lost its node queues again at its old place
        check_on(case, policy)
    else:
        check_on(case, policy, in_order)
