"""Guaranteed and opportunistic jobs: who makes way, who is promoted, and the guaranteed job's speed."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.packing.classes import KEEPS, MOST_PATIENCE_NS, PATIENCE_NS, Classes, Guard
from gandiva_slurm.policy.port import OPPORTUNISTIC, Cluster, JobView, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous, Oracle, Truth
from gandiva_slurm.sim.world import Costs
from tests.policy_world import FixedRates, a_job, a_view
from tests.sim_scenes import S, ends_s, spec

ONE, FOUR = Cluster([("v100", 1)]), Cluster([("v100", 4)])
#: `big` keeps 98 % beside `light` and a third beside `heavy`; `light` is slow beside anybody.
TABLE = Oracle(
    {
        "v100": {
            ("big", 1): {None: 10.0, ("light", 1): [9.8, 4.0], ("heavy", 1): [3.3, 7.0]},
            ("light", 1): {None: 10.0, ("big", 1): [4.0, 9.8]},
            ("heavy", 1): {None: 10.0, ("big", 1): [7.0, 3.3]},
        }
    }
)


def run(specs: list[Spec], cluster: Cluster, truth: Truth | None = None) -> Outcome:
    policy = gandiva_fair.make(PolicySettings(60 * S))
    return simulate(Scene(specs, cluster, truth or Homogeneous(), Costs(), is_checked=True), policy)


def model(job_id: int, name: str, minutes: float, **more: object) -> Spec:
    return spec(job_id, 1, length_s=0, model=name, steps=round(600 * minutes), **more)


def late(**more: object) -> dict[str, object]:
    return {"job_class": OPPORTUNISTIC, "user": "late", **more}


def test_an_opportunistic_job_makes_way_at_once_and_goes_on_later() -> None:
    jobs = [spec(0, 4, length_s=500, **late()), spec(1, 4, at_s=100, length_s=200)]
    assert ends_s(run(jobs, FOUR)) == [700.0, 300.0]


def test_of_idle_gpus_it_takes_those_that_guaranteed_jobs_leave() -> None:
    jobs = [spec(0, 2, length_s=300), *(spec(n, 1, length_s=300, **late()) for n in (1, 2, 3))]
    first, *others = ends_s(run(jobs, FOUR))
    assert first == 300.0
    assert others == [420.0] * 3, "three take turns on two, then go on"


def test_a_guaranteed_job_avoids_gpus_on_which_an_opportunistic_one_runs() -> None:
    jobs = [spec(0, 1, length_s=500, **late()), spec(1, 2, at_s=100, length_s=200)]
    outcome = run(jobs, FOUR)
    assert ends_s(outcome) == [500.0, 300.0]
    assert outcome.counts["migrations"] == 0


def test_it_is_a_guest_where_the_guaranteed_job_keeps_its_speed() -> None:
    """Guaranteed: 5 % slower at most; opportunistic: it gets on."""
    jobs = [model(0, "big", 100), model(1, "light", 10, at_s=1, **late())]
    outcome = run(jobs, ONE, TABLE)
    guaranteed, guest = ends_s(outcome)
    assert 6000 < guaranteed <= 6000 * 1.05
    assert guest < guaranteed
    assert (outcome.counts["packs_tried"], outcome.counts["packs_kept"]) == (1, 1)


def test_a_pair_that_slows_the_guaranteed_job_is_undone_at_once() -> None:
    """One look at a tenth of a quantum; then it waits until the GPU is free, or it is promoted."""
    jobs = [model(0, "big", 50), model(1, "heavy", 1, **late())]
    outcome = run(jobs, ONE, TABLE)
    guaranteed, other = ends_s(outcome)
    assert 3000 < guaranteed <= 3000 * 1.05 + 60
    assert other > 300
    assert (outcome.counts["packs_tried"], outcome.counts["packs_undone"]) == (1, 1)


def test_many_guests_do_not_slow_guaranteed_jobs() -> None:
    """Four guaranteed jobs fill their user's cluster; eight others live beside them."""
    hosts = [model(n, "big", 60, user="own") for n in range(4)]
    guests = [model(n, "light" if n % 2 else "heavy", 5, at_s=1, **late(user="own")) for n in range(4, 12)]
    outcome = run([*hosts, *guests], FOUR, TABLE)
    ends = ends_s(outcome)
    assert max(ends[:4]) <= 3600 * 1.05
    assert min(ends[4:]) < 3600


def promoted(view_s: float, jobs: list[JobView], ran: set[int], classes: Classes) -> dict[int, str]:
    view = a_view((("v100", 4),), jobs, round(view_s))
    found = classes.promote(view, ran, {}, {job.job_id: job.user for job in jobs})
    return {job_id: promotion.why for job_id, promotion in found.items()}


def test_whoever_waited_long_is_promoted_while_its_user_has_room() -> None:
    jobs = [a_job(1, 4, user="a"), a_job(2, 1, user="b", job_class=OPPORTUNISTIC)]
    classes = Classes()
    assert promoted(0, jobs, {1}, classes) == {}
    assert promoted(PATIENCE_NS / S - 1, jobs, {1}, classes) == {}
    assert not classes.is_guaranteed(jobs[1])
    assert "has room" in promoted(PATIENCE_NS / S, jobs, {1}, classes)[2]
    assert classes.is_guaranteed(jobs[1])


def test_whoever_runs_is_not_promoted_and_waits_anew_afterwards() -> None:
    jobs = [a_job(1, 4, user="a"), a_job(2, 1, user="b", job_class=OPPORTUNISTIC)]
    classes = Classes()
    promoted(0, jobs, {1}, classes)
    promoted(200, jobs, {1, 2}, classes)
    assert promoted(PATIENCE_NS / S + 100, jobs, {1}, classes) == {}


def test_beyond_its_users_share_it_is_promoted_only_after_very_long() -> None:
    jobs = [a_job(1, 4, user="a"), a_job(2, 2, user="b"), a_job(3, 1, user="b", job_class=OPPORTUNISTIC)]
    classes = Classes()
    promoted(0, jobs, {1}, classes)
    assert promoted(PATIENCE_NS / S + 1, jobs, {1}, classes) == {}
    assert "starve" in promoted(MOST_PATIENCE_NS / S, jobs, {1}, classes)[3]


def test_a_promoted_job_costs_its_own_user() -> None:
    """Two users, one with nothing but opportunistic jobs: from its promotion on each has half."""
    jobs = [
        *(spec(n, 1, length_s=3600, user="a") for n in range(4)),
        *(spec(n, 1, length_s=3600, **late()) for n in range(4, 8)),
    ]
    outcome = run(jobs, FOUR)
    ends = ends_s(outcome)
    assert max(ends[:4]) == pytest.approx(3600 + 3600 - 300, abs=180)


def guard_pairs(
    rates: FixedRates, guard: Guard, old: dict[int, int] | None = None
) -> list[tuple[int, int, bool]]:
    hosts = [(a_job(1, model="big"), "v100"), (a_job(2, model="big"), "v100")]
    guests = [a_job(3, model="light"), a_job(4, model="light")]
    return [tuple(pair) for pair in guard.match(hosts, guests, rates, old or {})]


@pytest.mark.parametrize(("kept", "want"), [(KEEPS, [(1, 3, False), (2, 4, False)]), (KEEPS - 0.01, [])])
def test_known_pairs_are_made_only_where_the_host_keeps_its_speed(kept: float, want: list) -> None:
    rates = FixedRates(packed={("big", "light"): (kept, 0.3)})
    assert guard_pairs(rates, Guard()) == want


def test_an_unknown_pair_is_tried_once_at_a_time_and_stays_on_its_gpu() -> None:
    guard = Guard()
    unknown = FixedRates(packed_default=None)
    assert guard_pairs(unknown, guard) == [(1, 3, True)]
    assert guard.is_trying
    assert guard_pairs(unknown, guard, {2: 4}) == [(2, 4, True)]
    assert (guard.tried, guard.kept, guard.undone) == (1, 0, 0)
    assert guard_pairs(FixedRates(packed={("big", "light"): (0.5, 0.5)}), guard) == []
    assert (guard.tried, guard.kept, guard.undone) == (1, 0, 1)
    assert not guard.is_trying


def test_nothing_is_tried_beside_a_host_whose_own_speed_is_not_known() -> None:
    rates = FixedRates(alone={("big", 1, "v100"): None}, packed_default=None)  # type: ignore[dict-item]
    assert guard_pairs(rates, Guard()) == []
