"""Themis: finish-time fairness, who may bid, what winning costs, and how unfair the worst off end."""

from __future__ import annotations

import itertools
import math

import pytest

from gandiva_slurm.policy.baselines.ffdl import Ffdl
from gandiva_slurm.policy.baselines.placing import Ration, Types
from gandiva_slurm.policy.baselines.themis import Bid, Themis, auction, make
from gandiva_slurm.policy.port import JobView, View
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

LEASE_S = 1200


def a_bid(job: JobView, gain: float, rho: float = 1.0) -> Bid:
    return Bid(job, rho, gain)


def sold(view: View, *bids: Bid) -> dict[int, float]:
    """Who wins, and the part of its lease that it keeps."""
    return {pick.job.job_id: part for pick, part in auction(list(bids), Ration(view), Types(view))}


def test_themis_auction_maximises_the_product_of_gains() -> None:
    """Two gangs of two gain more together than one of four: exp(0.3 + 0.3) against exp(0.5)."""
    view = a_view((("v", 4),), [])
    assert set(sold(view, a_bid(a_job(1, 4), 0.5), a_bid(a_job(2, 2), 0.3), a_bid(a_job(3, 2), 0.3))) == {
        2,
        3,
    }
    assert set(sold(view, a_bid(a_job(1, 4), 0.7), a_bid(a_job(2, 2), 0.3), a_bid(a_job(3, 2), 0.3))) == {1}


def test_themis_winner_keeps_what_its_absence_would_not_give_to_others() -> None:
    """c = product of the others' values with it over theirs without it."""
    view = a_view((("v", 4),), [])
    parts = sold(view, a_bid(a_job(1, 4), 0.7), a_bid(a_job(2, 2), 0.3), a_bid(a_job(3, 1), 0.1))
    assert parts[1] == pytest.approx(math.exp(-0.4))
    parts = sold(view, a_bid(a_job(1, 2), 0.7), a_bid(a_job(2, 2), 0.3), a_bid(a_job(3, 2), 0.2))
    assert parts == {1: pytest.approx(math.exp(-0.2)), 2: pytest.approx(math.exp(-0.2))}
    assert sold(view, a_bid(a_job(1, 2), 0.7), a_bid(a_job(2, 2), 0.3)) == {1: 1.0, 2: 1.0}


def test_themis_rho_is_time_shared_over_time_on_an_nth() -> None:
    """Two jobs on four GPUs: an Nth is two GPUs, so a gang of four takes twice its length there."""
    gang, small = a_job(1, 4, length_s=100), a_job(2, 1, length_s=100)
    view = a_view((("v", 4),), [gang, small])
    policy = Themis(SETTINGS)
    policy.decide(view)
    assert policy.rho(gang, view) == pytest.approx(0.5)
    assert policy.rho(small, view) == pytest.approx(1.0)
    assert policy.rho(small, view, wait_ns=50 * S) == pytest.approx(1.5)


def test_themis_contention_is_the_mean_over_a_jobs_life() -> None:
    """Alone for 100 s, then one of three for 100 s: two jobs on average."""
    first = a_job(1, 4, length_s=1000)
    policy = Themis(SETTINGS)
    policy.decide(a_view((("v", 4),), [first]))
    three = [first, a_job(2, at_s=100), a_job(3, at_s=100)]
    policy.decide(a_view((("v", 4),), three, at_s=100))
    view = a_view((("v", 4),), three, at_s=200)
    policy.decide(view)
    first.progress = 0.1
    assert policy.rho(first, view) == pytest.approx((200 + 900) / (1000 * 2))


def test_themis_lets_only_the_worst_off_fifth_bid() -> None:
    """Of ten jobs two may bid for the one GPU, whatever the other eight would gain."""
    waited = [a_job(n, at_s=0, length_s=1000) for n in (1, 2)]
    fresh = [a_job(n, at_s=900, length_s=10) for n in range(3, 11)]
    view = a_view((("v", 1),), [*waited, *fresh], at_s=901)
    assert set(Themis(SETTINGS).decide(view).runs) == {1}
    assert set(Themis(SETTINGS, fairness=0.0).decide(view).runs) == {3}


def test_themis_keeps_leases_and_auctions_when_they_end() -> None:
    jobs = [a_job(1, length_s=5000), a_job(2, at_s=1, length_s=5000)]
    world = PolicyWorld((("v", 1),), make(SETTINGS)).run(jobs)
    turns = [(moment.view.now_ns // S, *moment.plan.runs) for moment in world.moments]
    assert turns[0] == (0, 1) and turns[1] == (1, 1)
    assert turns[2][0] <= LEASE_S and turns[2][1] == 2, "the one that waited is worse off"
    assert all(later[0] - sooner[0] >= 60 for sooner, later in itertools.pairwise(turns[1:-1]))


def test_themis_deals_what_no_bidder_wants_to_the_others() -> None:
    jobs = [a_job(n, at_s=n, length_s=100) for n in range(5)]
    assert len(make(SETTINGS).decide(a_view((("v", 4),), jobs, at_s=9)).runs) == 4


def test_themis_moves_nobody_whose_lease_is_renewed() -> None:
    job = running(a_job(1, 2, length_s=9000), (2, 3), ran_s=5)
    assert make(SETTINGS).decide(a_view((("v", 4),), [job], at_s=5)).runs == {1: (2, 3)}


def rhos(world: PolicyWorld, jobs: list[JobView], gpus: int) -> list[float]:
    """Finish-time fairness as it came out, against 1/N of the cluster with all the trace's jobs."""
    return [
        world.jct_s(job) * S / (job.length_ns * max(1.0, job.size * len(jobs) / gpus))
        for job in jobs
        if job.length_ns is not None
    ]


def test_themis_worst_rho_is_small_where_first_come_first_served_is_unfair() -> None:
    """All at once, long gangs in front: first come, first served lets the short ones wait for all."""
    kinds = [(4, 40_000)] * 4 + [(2, 20_000)] * 4 + [(1, 4000), (1, 8000)] * 4
    jobs = [a_job(n, size, at_s=n, length_s=length_s) for n, (size, length_s) in enumerate(kinds)]
    themis, fifo = (
        max(rhos(PolicyWorld((("v", 4), ("v", 4)), policy).run(jobs), jobs, 8))
        for policy in (make(SETTINGS), Ffdl(SETTINGS))
    )
    assert themis <= 1.2
    assert fifo > 2.0


@on_cases(60)
def test_themis_plans_are_legal_and_work_conserving_whatever_comes_and_goes(case: Case) -> None:
    check_on(case, make, conserving)
