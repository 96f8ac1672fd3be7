"""Which parks cut a step, and which are set apart: frozen before clients came, or in a step that stalled."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from gandiva_slurm.mini import demo_checks as checks
from gandiva_slurm.mini import demo_parks
from gandiva_slurm.mini.demo_checks import JobRecord
from gandiva_slurm.mini.demo_holds import Span
from gandiva_slurm.mini.demo_parks import Park, before_clients, boundaries, parks_in_events
from gandiva_slurm.node.leaving import LEAST_OVERRUN_NS

MS = demo_parks.NS_PER_MS
PARK = Park(1, 100 * MS, 108 * MS, 200 * MS, False, 0)


def event(name: str, at_ms: float, job_id: int = 1, **fields: Any) -> dict[str, Any]:
    return {"event": name, "mono_ns": round(at_ms * MS), "node": "n1", "job": job_id, "restart": 0, **fields}


def in_ns(spans_ms: Sequence[Span]) -> list[Span]:
    return [(began * MS, ended * MS) for began, ended in spans_ms]


def job(job_id: int, *spans_ms: Span) -> JobRecord:
    """A job of one rank and its steps."""
    return JobRecord(job_id, f"job{job_id}", "user1", 1, steps=[in_ns(spans_ms)])


def is_ok(parks: Sequence[Park], *jobs: JobRecord) -> bool:
    return checks.check_boundaries(parks, boundaries(parks, checks.steps_of(jobs))).ok


def cut(parks: Sequence[Park], *jobs: JobRecord) -> int:
    return boundaries(parks, checks.steps_of(jobs)).cut


def test_parks_are_read_from_the_log() -> None:
    events = [
        event("grant", 0, gpus=[0]),
        event("park", 100),
        event("parked", 108, reaims=1, off_boundary=0, margin=3),
        event("resume", 200),
        event("running", 203, resume_ms=3.0),
        event("park", 300),
        event("parked", 305, reaims=0, off_boundary=1),
        event("ended", 400),
    ]
    first, second = parks_in_events(events)
    assert first == Park(1, 100 * MS, 108 * MS, 200 * MS, False, 1, 3)
    assert (second.ms, second.resumed_ns, second.is_off) == (5.0, 400 * MS, True)
    assert checks.resume_times_ms(events) == [3.0]


@pytest.mark.parametrize(
    ("spans_ms", "want"),
    [
        ([(90, 107), (201, 210)], 0),
        ([(90, 109), (201, 210)], 1),
        ([(90, 107), (150, 160)], 1),
        ([], 0),
        ([(201, 210)], 0),
    ],
)
def test_steps_while_parked_are_found(spans_ms: list[Span], want: int) -> None:
    assert cut([PARK], job(1, *spans_ms)) == want


def test_parks_off_a_boundary_fail() -> None:
    assert is_ok([PARK], job(1, (90, 107)))
    assert not is_ok([PARK], job(1, (90, 109)))
    assert not is_ok([dataclasses.replace(PARK, is_off=True)])
    assert not is_ok([]), "no park at all shows nothing"


def test_a_step_in_which_its_job_was_frozen_ran_before_and_after() -> None:
    """As where a gang's first rank began to train, and the clients of others were not there yet."""
    grants = [event("grant", 0, 1, gpus=[0]), event("grant", 0, 2, gpus=[0])]
    frozen = [*grants, event("park", 10), event("parked", 12, frozen=True), event("resume", 40)]
    later = [event("park", 70), event("parked", 72), event("resume", 80)]
    slow = job(1, (5, 60))
    for beside, want in (((12, 40), 0), ((11, 40), 1), ((12, 41), 1)):
        assert checks.overlaps_in_steps([slow, job(2, beside)], [*frozen, *later]) == want
    park, at_boundary = parks_in_events([*frozen, *later])
    assert before_clients([park, at_boundary]) == [park]
    assert cut([park, at_boundary], slow) == 0
    found = boundaries([park, at_boundary], checks.steps_of([slow]))
    text = checks.check_boundaries([park, at_boundary], found).text
    assert "1 frozen while clients were waited for" in text
    assert cut([park], slow) == 1, "one that is always frozen is not excused"
    after = dataclasses.replace(at_boundary, ordered_ns=5 * MS, parked_ns=5 * MS, resumed_ns=5 * MS)
    assert cut([after, park], slow) == 1, "nor is one that had its clients"
    assert not is_ok([dataclasses.replace(park, is_off=True)])


STALL = [
    event("grant", 0, 1, gpus=[0]), event("grant", 0, 2, gpus=[0]), event("park", 100),
    event("parked", 1110, frozen=True, off_boundary=1), event("resume", 1600),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spans_ms", "is_set_apart"),
    [
        ([(40, 89), (90, 1700)], True),  # its step had begun when it was told, and went on
        ([(40, 95), (101, 1700)], True),  # it had just passed its boundary
        ([(40, 95), (101, 140), (150, 1700)], False),  # it passed another one, and did not park there
        ([(40, 95), (1601, 1700)], True),  # it was between two steps: no boundary came
    ],
)
def test_a_lone_rank_that_came_to_no_boundary_for_a_second_is_set_apart(
    spans_ms: list[Span], is_set_apart: bool
) -> None:
    parks, slow = parks_in_events(STALL), job(1, *spans_ms)
    found = boundaries(parks, checks.steps_of([slow]))
    assert (is_ok(parks, slow), len(found.stalled)) == (is_set_apart, int(is_set_apart))
    assert ("1 frozen after a second in one step" in str(found)) == is_set_apart
    others = [(at, at + 40) for at in range(1110, 1600, 49)]
    assert (checks.overlaps_in_steps([slow, job(2, *others)], STALL) == 0) == is_set_apart


def test_one_that_is_set_apart_ran_until_it_was_frozen() -> None:
    assert checks.overlaps_in_steps([job(1, (90, 1700)), job(2, (1100, 1140))], STALL) == 1


def test_a_second_is_what_a_node_gives_a_lone_rank() -> None:
    assert demo_parks.STALLED_NS == LEAST_OVERRUN_NS


def test_no_other_is_set_apart() -> None:
    (park,) = parks_in_events(STALL)
    slow = job(1, (40, 89), (90, 1700))
    assert not is_ok([dataclasses.replace(park, parked_ns=1050 * MS)], slow), "it had no second"
    assert not is_ok([dataclasses.replace(park, is_frozen=False)], slow), "it said that it stood still"
    gang = dataclasses.replace(slow, gpus=2, steps=[*slow.steps, *slow.steps])
    assert not is_ok([park], gang), "a gang is not frozen for that"
