"""Job arrays. Slurm keeps the pending tasks of an array in one record, with no job id of their own.

Gandiva starts tasks one by one, so some of them are split off first: `scontrol hold 7_[1,2]` gives each
named task its own record and leaves it held. Traps (22.05.8): the joint record has the array's job id and
no task id, until one task is left in it; naming all its tasks splits none; and the job id of an array names
*all* its tasks, so each is addressed as ARRAY_TASK, also the last one, whose job id is the array's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.slurm import states
from gandiva_slurm.slurm.fields import Fields

#: Most pending tasks of one array that have a record of their own; the others wait in Slurm's.
AHEAD = 32

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@dataclass(frozen=True)
class JointTasks:
    """The pending tasks of an array that share one record; `throttle` is its %N, 0 when it has none."""

    array_job_id: int
    tasks: str
    throttle: int


def untangle(record: Fields, job: SlurmJob) -> tuple[SlurmJob, JointTasks | None]:
    """Return the job, and the tasks that wait in its record when it stands for several.

    A joint record is shown as a job that is not Gandiva's, for nothing can start it as one. An array of one
    task has the form of a joint record too, until it runs.
    """
    tasks = record.text("array_task_string")
    if not job.array_job_id or job.array_task_id is not None or not tasks:
        return job, None
    numbers = first_tasks(tasks, 2)
    if len(numbers) == 1:
        return replace(job, array_task_id=numbers[0]), None
    joint = JointTasks(job.array_job_id, tasks, record.number("array_max_tasks"))
    return replace(job, options=None), joint if job.options is not None and job.is_held else None


def names_of_tasks(jobs: Sequence[SlurmJob]) -> dict[int, str]:
    """Return by what name to address each array task."""
    tasks = (job for job in jobs if job.array_task_id is not None)
    return {job.job_id: f"{job.array_job_id}_{job.array_task_id}" for job in tasks}


def to_split(joint: Sequence[JointTasks], jobs: Sequence[SlurmJob]) -> Mapping[int, list[int]]:
    """Return the tasks to split off now, by array: as many as can be of use, lowest number first.

    A throttled array (%N) gets no more than N live tasks: one released beyond that would only wait in Slurm.
    """
    pending: defaultdict[int, int] = defaultdict(int)
    live: defaultdict[int, int] = defaultdict(int)
    for job in jobs:
        if job.array_task_id is not None and not states.is_finished(job.state):
            live[job.array_job_id] += 1
            pending[job.array_job_id] += job.state == states.PENDING
    wanted = {}
    for item in joint:
        room = AHEAD - pending[item.array_job_id]
        if item.throttle:
            room = min(room, item.throttle - live[item.array_job_id])
        if room > 0:
            named = first_tasks(item.tasks, room + 1)
            # One task stays in the joint record, which thereby becomes its own.
            wanted[item.array_job_id] = named[:-1]
    return {array: tasks for array, tasks in wanted.items() if tasks}


def first_tasks(text: str, count: int) -> list[int]:
    """Return the first task numbers of a list such as 1-5,9-21:4%2."""
    numbers = _numbers(text)
    return [number for _, number in zip(range(count), numbers, strict=False)]


def _numbers(text: str) -> Iterator[int]:
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return  # a list cut short ends in dots
        first = int(match[1])
        yield from range(first, int(match[2] or first) + 1, int(match[3] or 1) or 1)
