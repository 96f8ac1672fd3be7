"""Which jobs a question is about: found by their numbers, without a look at all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from gandiva_slurm.controller.views import picked
from gandiva_slurm.engine.state.records import JobRecord
from tests.builders import a_job

#: A job; an array of 20, whose task 20 has its number; two of its tasks, which Slurm has given numbers.
JOBS = {number: JobRecord(a_job(number)) for number in (10, 20, 21, 22)}
for number in (20, 21, 22):
    JOBS[number].job = replace(JOBS[number].job, array_job_id=20, array_task_id=number - 20)


class ByNumber(Mapping[int, JobRecord]):
    """Jobs of which there are too many to look through."""

    def __getitem__(self, number: int) -> JobRecord:
        return JOBS[number]

    def __len__(self) -> int:
        return len(JOBS)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all jobs are looked through")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [({10}, [10]), ({20}, [20, 21, 22]), ({22}, [22]), ({10, 20}, [10, 20, 21, 22]), ({7}, []), (set(), []),
     (None, [10, 20, 21, 22])],
)  # fmt: skip
def test_jobs_by_their_numbers(wanted: set[int] | None, found: list[int]) -> None:
    got = picked(JOBS, None if wanted is None else frozenset(wanted))
    assert sorted(one.job.job_id for one in got) == found


def test_an_arrays_tasks_are_found_when_none_has_its_number() -> None:
    tasks = {number: JOBS[number] for number in (21, 22)}
    assert [one.job.job_id for one in picked(tasks, frozenset({20}))] == [21, 22]


@pytest.mark.parametrize("number", [10, 22])
def test_no_other_job_is_looked_at(number: int) -> None:
    assert [one.job.job_id for one in picked(ByNumber(), frozenset({number}))] == [number]
