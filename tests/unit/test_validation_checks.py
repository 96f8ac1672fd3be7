"""Mini cluster against simulation: each check passes on what agrees, and fails on what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_checks import Check
from gandiva_slurm.mini.demo_verdict import FAILED, NOT_JUDGED, OK
from gandiva_slurm.mini.validation import checks
from gandiva_slurm.mini.validation.checks import Ended
from gandiva_slurm.mini.validation.live import Step
from gandiva_slurm.mini.validation.plan import PacedJob
from gandiva_slurm.mini.validation.report import word_of

#: Ends at 100, 110 and 112 s; of the GPU time a half, a quarter and a quarter.
REAL = (
    Ended("a", "user1", 0, 100, 100),
    Ended("b", "user2", 10, 110, 50),
    Ended("c", "user3", 12, 112, 50),
)


def with_job(number: int, **fields: float) -> list[Ended]:
    """The same with one job otherwise."""
    return [replace(job, **fields) if at == number else job for at, job in enumerate(REAL)]


def test_what_is_alike_passes() -> None:
    for check in (checks.check_jct, checks.check_shares, checks.check_order):
        assert check(REAL, REAL).ok and check(REAL, REAL).of_time


@pytest.mark.parametrize(("end_s", "ok"), [(108.9, True), (91.1, True), (109.1, False), (90.9, False)])
def test_the_mean_completion_time_is_within_three_percent(end_s: float, ok: bool) -> None:
    assert checks.check_jct(REAL, with_job(0, end_s=end_s)).ok is ok, "9 s of one are 3 % of the mean of 100"


@pytest.mark.parametrize(("gpu_s", "ok"), [(50.9, True), (51.5, False), (48.5, False)])
def test_each_users_share_is_within_two_percent(gpu_s: float, ok: bool) -> None:
    assert checks.check_shares(REAL, with_job(1, gpu_s=gpu_s)).ok is ok


def test_a_user_who_has_nothing_in_the_simulation_is_noticed() -> None:
    assert not checks.check_shares(REAL, REAL[:2]).ok


def test_ends_that_lie_apart_in_the_simulation_keep_their_order() -> None:
    late = with_job(0, end_s=111)
    assert [*checks.swapped(late, REAL)] == [("a", "b")], "a ended before b in the simulation alone"
    check = checks.check_order(late, REAL)
    assert not check.ok and "1 of 2 pairs; not: a before b" in check.text


def test_ends_that_lie_close_together_may_change_places() -> None:
    assert checks.check_order(with_job(1, end_s=113), REAL).ok, "b and c are within 5 %"


def test_every_job_has_to_complete() -> None:
    assert checks.check_ends({"a": "COMPLETED"}).ok
    assert not checks.check_ends({"a": "COMPLETED", "b": "FAILED"}).ok


@pytest.mark.parametrize(
    ("numbers", "ok"),
    [((0, 1, 2), True), ((0, 1), False), ((0, 1, 1, 2), False), ((0, 2, 1), False), ((), False)],
)
def test_each_mini_batch_is_done_once_and_in_order(numbers: tuple[int, ...], ok: bool) -> None:
    steps = [Step(0, number, 0, 0, 0, "0x0p+0") for number in numbers]
    assert checks.check_steps([PacedJob("a", "user1", 1, 3, 0)], {"a": steps}).ok is ok


def test_there_have_to_be_moves() -> None:
    assert checks.check_moves(3, 3).ok and not checks.check_moves(2, 3).ok


@pytest.mark.parametrize(
    ("ok", "of_time", "used_s", "word"),
    [
        (True, True, 95, OK),
        (False, True, 95, NOT_JUDGED),
        (False, True, 80, FAILED),
        (False, False, 95, FAILED),
    ],
)
def test_what_a_load_changes_is_not_judged_where_it_fails_on_a_busy_machine(
    ok: bool, of_time: bool, used_s: float, word: str
) -> None:
    assert word_of(Check("one", ok, "", of_time=of_time), Usage(100, used_s, 75)) == word
