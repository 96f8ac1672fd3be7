"""Every check of the demo passes on good records and fails on bad ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from gandiva_slurm.mini import demo_checks as checks
from gandiva_slurm.mini.demo_checks import JobRecord
from gandiva_slurm.mini.demo_holds import overlaps_in_events
from gandiva_slurm.mini.demo_parks import Park

MS, S = checks.NS_PER_MS, checks.NS_PER_S
LOSSES = [["0x1.8p+0", "0x1.4p+0", "0x1.2p+0"]]
TICKETS = {"user1": 100, "user2": 100, "user3": 100}


def job(job_id: int = 1, user: str = "user1", gpus: int = 1, **fields: Any) -> JobRecord:
    plain = {"state": "COMPLETED", "start_latency_s": 0.5, "losses": LOSSES, "reference": LOSSES}
    return JobRecord(job_id, f"job{job_id}", user, gpus, **{**plain, **fields})


JOBS = [job(1, "user1", 2), *(job(n, "user2", 1) for n in range(2, 6)), job(6, "user3", 4)]


def hold(user: str, gpus: int, t0_s: float, t1_s: float) -> dict[str, Any]:
    return {"user": user, "gpus": list(range(gpus)), "t0_ns": round(t0_s * S), "t1_ns": round(t1_s * S)}


def event(name: str, at_ms: float, job_id: int = 1, **fields: Any) -> dict[str, Any]:
    return {"event": name, "mono_ns": round(at_ms * MS), "node": "n1", "job": job_id, "restart": 0, **fields}


# --- shares -------------------------------------------------------------------------------------------


def shares(third_s: float) -> Mapping[str, Mapping[str, Any]]:
    """user3's gang for a third of 30 s (or as told); user1 and user2 two GPUs each beside it."""
    rest = [hold("user1", 2, third_s, 30), hold("user2", 2, third_s, 30)]
    return checks.user_shares([hold("user3", 4, 0, third_s), *rest], (0, 30 * S), TICKETS, JOBS, 4)


def test_shares_by_demand_and_tickets() -> None:
    users = shares(10)
    assert {name: row["gpu_s"] for name, row in users.items()} == {"user1": 40, "user2": 40, "user3": 40}
    assert all(row["share"] == row["entitled"] == pytest.approx(1 / 3) for row in users.values())
    assert checks.check_shares(users).ok


def test_shares_more_than_5_percent_off_fail() -> None:
    check = checks.check_shares(shares(10.6))
    assert not check.ok and "user3 35.3 % (1.060)" in check.text
    assert checks.check_shares(shares(10.4)).ok


def test_shares_count_only_the_window() -> None:
    before = [hold("user1", 4, -100, 0), hold("user1", 4, 30, 90)]
    users = checks.user_shares(before, (0, 30 * S), TICKETS, JOBS, 4)
    assert users["user1"]["gpu_s"] == 0
    assert not checks.check_shares(users).ok


def test_shares_of_nobody_fail() -> None:
    assert not checks.check_shares({}).ok


# --- losses and ends ----------------------------------------------------------------------------------


def test_losses_bit_for_bit() -> None:
    assert checks.check_losses([job()]).ok


@pytest.mark.parametrize(
    "bad",
    [
        {"reference": [["0x1.8p+0", "0x1.4p+0", "0x1.20001p+0"]]},
        {"reference": [LOSSES[0][:2]]},
        {"reference": []},
        {"losses": [], "reference": []},
        {"losses": [[]], "reference": [[]]},
        {"losses": [*LOSSES, ["0x1p+0"] * 3], "reference": [*LOSSES, ["0x1p+1"] * 3]},
    ],
)
def test_losses_that_differ_or_lack_fail(bad: dict[str, Any]) -> None:
    check = checks.check_losses([job(1), job(2, **bad)])
    assert not check.ok and "job2" in check.text


def test_a_job_that_did_not_complete_fails() -> None:
    assert checks.check_ends([job()]).ok
    assert not checks.check_ends([job(), job(2, state="FAILED")]).ok
    assert not checks.check_ends([]).ok


# --- one holder a GPU ---------------------------------------------------------------------------------


def turns(second_from_ms: float) -> list[dict[str, Any]]:
    return [
        event("grant", 0, 1, gpus=[0, 1]),
        event("release", 100, 1, gpus=[0, 1]),
        event("grant", second_from_ms, 2, gpus=[1, 2]),
        event("release", 200, 2, gpus=[1, 2]),
    ]


def test_holds_one_after_the_other_do_not_overlap() -> None:
    assert overlaps_in_events(turns(100)) == 0


def test_holds_at_once_overlap() -> None:
    events = sorted(turns(99.9), key=lambda item: item["mono_ns"])
    assert overlaps_in_events(events) == 1


def test_a_grant_that_the_next_daemon_does_not_find_was_none() -> None:
    killed = [event("grant", 0, 1, gpus=[0]), event("adopt", 5, 1, gpus=[0], holds=False)]
    assert overlaps_in_events([*killed, event("grant", 9, 2, gpus=[0])]) == 0
    held = [killed[0], event("adopt", 5, 1, gpus=[0], holds=True)]
    assert overlaps_in_events([*held, event("grant", 9, 2, gpus=[0])]) == 1


def test_a_hold_that_never_ends_overlaps_all_that_follow() -> None:
    assert (
        overlaps_in_events(
            [event for event in turns(100) if event["mono_ns"] != 100 * MS or event["job"] == 2]
        )
        == 1
    )


def test_steps_at_once_on_one_gpu_overlap() -> None:
    grants = [event("grant", 0, 1, gpus=[0]), event("grant", 0, 2, gpus=[0]), event("grant", 0, 3, gpus=[1])]
    first, beside = job(1, steps=[[(0, 10), (20, 30)]]), job(3, steps=[[(0, 30)]])
    assert checks.overlaps_in_steps([first, job(2, steps=[[(10, 20)]]), beside], grants) == 0
    assert checks.overlaps_in_steps([first, job(2, steps=[[(10, 21)]]), beside], grants) == 1


def test_ranks_of_one_gang_may_run_at_once() -> None:
    assert (
        checks.overlaps_in_steps([job(1, steps=[[(0, 10)], [(5, 15)]])], [event("grant", 0, 1, gpus=[0, 1])])
        == 0
    )


def test_any_overlap_fails() -> None:
    assert checks.check_overlaps(0, 0).ok
    assert not checks.check_overlaps(1, 0).ok
    assert not checks.check_overlaps(0, 1).ok


# --- parks --------------------------------------------------------------------------------------------


def test_first_start_is_no_resume() -> None:
    assert checks.resume_times_ms([event("resume", 0), event("running", 900, resume_ms=900.0)]) == []


PARK = Park(1, 100 * MS, 108 * MS, 200 * MS, False, 0)


def test_too_many_reaims_fail() -> None:
    again = dataclasses.replace(PARK, reaims=1)
    assert checks.check_reaims([PARK] * 20 + [again]).ok
    assert not checks.check_reaims([PARK] * 19 + [again]).ok
    assert not checks.check_reaims([]).ok


def steps_of(length_ms: int, count: int = 50) -> list[tuple[int, int]]:
    """Steps of 8 ms, one every `length_ms`."""
    return [(at * length_ms * MS, (at * length_ms + 8) * MS) for at in range(count)]


@pytest.mark.parametrize(("gpus", "margin"), [(1, 0), (2, 2), (2, 4)])
def test_park_time_is_compared_with_the_mini_batches_due(gpus: int, margin: int) -> None:
    record = job(1, gpus=gpus, steps=[steps_of(10)] * gpus)
    park = Park(1, 100 * MS, round(100 * MS + ((margin + 1) * 10 + 49) * MS), 400 * MS, False, 0, margin)
    assert checks.excess_ms(park, record) == pytest.approx(49)


def test_a_step_that_was_slow_may_park_late() -> None:
    slow = [(0, 10 * MS), (12 * MS, 300 * MS), (600 * MS, 610 * MS)]
    assert checks.excess_ms(Park(1, 15 * MS, 302 * MS, 600 * MS, False, 0), job(steps=[slow])) < 5


def test_slow_parks_fail() -> None:
    solo, gang = job(1, steps=[steps_of(10)]), job(2, gpus=2, steps=[steps_of(10)] * 2)
    good = [
        Park(1, 100 * MS, 120 * MS, 400 * MS, False, 0),
        Park(2, 100 * MS, 140 * MS, 400 * MS, False, 0, 2),
    ]
    assert checks.check_park_times(good, [solo, gang]).ok
    late = dataclasses.replace(good[1], parked_ns=(100 + 30 + 60) * MS)
    assert not checks.check_park_times([good[0], late], [solo, gang]).ok
    assert not checks.check_park_times(
        [dataclasses.replace(good[0], parked_ns=170 * MS), good[1]], [solo, gang]
    ).ok
    assert not checks.check_park_times(good[:1], [solo, gang]).ok, "a kind that never parked shows nothing"


# --- starts, throughput, the report ------------------------------------------------------------------


def test_slow_or_unknown_starts_fail() -> None:
    assert checks.check_starts([job()]).ok
    assert not checks.check_starts([job(), job(2, start_latency_s=2.1)]).ok
    assert not checks.check_starts([job(), job(2, start_latency_s=None)]).ok
    assert not checks.check_starts([]).ok


def test_aggregate_below_its_limit_fails() -> None:
    assert checks.check_aggregate(0.97).ok
    assert not checks.check_aggregate(0.969).ok
    assert not checks.check_aggregate(None).ok


def test_percentiles_are_nearest_rank() -> None:
    assert checks.spread([float(n) for n in range(1, 201)]) == {"p50": 100.0, "p99": 198.0}
    assert checks.spread([]) == {"p50": None, "p99": None}


def test_check_shows_its_verdict() -> None:
    assert str(checks.check_aggregate(0.5)).startswith("FAILED  steps per second")


def test_a_pack_holds_its_gpu_together_and_nobody_else_does() -> None:
    first = event("grant", 0, 1, gpus=[0]), event("grant", 1, 2, gpus=[0])
    packed = event("packed", 1, 2, gpus=[0], mate=1)
    apart = event("unpacked", 8, 1, gpus=[0], mate=2)
    ends = event("release", 8, 1, gpus=[0]), event("release", 9, 2, gpus=[0])
    assert overlaps_in_events([*first, packed, apart, *ends]) == 0
    assert overlaps_in_events([*first, *ends]) == 1
    third = event("grant", 5, 3, gpus=[0]), event("release", 6, 3, gpus=[0])
    assert overlaps_in_events([*first, packed, *third, apart, *ends]) == 2
