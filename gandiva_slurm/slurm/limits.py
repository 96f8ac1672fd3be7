"""What bounds a job's time in Slurm, read and set: partitions' MaxTime, reservations, the job's own limit.

By `scontrol` with either back end: its `show reservation` and `show partition` hold text of administrators
only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Protocol

from gandiva_slurm.logs import warn_once
from gandiva_slurm.model.bounds import Bounds, Reservation
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.slurm.jobs import node_names
from gandiva_slurm.slurm.run import Commands

log = logging.getLogger(__name__)

SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
SHOW_RESERVATIONS = ("scontrol", "--all", "--oneliner", "show", "reservation")
#: What Slurm prints where there is no end.
_ENDLESS = frozenset({"", "UNLIMITED", "INFINITE", "NONE", "N/A", "(null)"})


class Limits(Protocol):
    """What the controller asks of Slurm beside `SlurmPort`, whose calls each back end has in its own way."""

    async def bounds(self) -> Bounds:
        """Return partitions' MaxTime and all reservations; SlurmUnreachable."""

    async def set_time_limit(self, job: SlurmJob, minutes: int) -> None:
        """Set a job's limit; SlurmRefused with Slurm's sentence, SlurmUnreachable."""


class CommandLimits:
    """`Limits` through scontrol."""

    def __init__(self, timeout_s: float = 10.0, commands: Commands | None = None) -> None:
        self._commands = commands or Commands()
        self._timeout_s = timeout_s

    async def bounds(self) -> Bounds:
        """Return partitions' MaxTime and all reservations."""
        partitions = await self._commands.output(SHOW_PARTITIONS, self._timeout_s)
        reservations = await self._commands.output(SHOW_RESERVATIONS, self._timeout_s)
        return Bounds(tuple(read_max_times(partitions)), tuple(read_reservations(reservations)))

    async def set_time_limit(self, job: SlurmJob, minutes: int) -> None:
        """Set a job's limit."""
        name = str(job.job_id)
        if job.array_task_id is not None:  # the last task of an array has the array's job id
            name = f"{job.array_job_id}_{job.array_task_id}"
        log.info("time limit: job %s, %d min", name, minutes)
        argv = ("scontrol", "update", f"JobId={name}", f"TimeLimit={minutes}")
        await self._commands.output(argv, self._timeout_s)


def read_max_times(text: str) -> Iterator[tuple[str, int]]:
    """Yield (partition, MaxTime in seconds) of those that have one."""
    for words in _lines(text):
        seconds = duration_s(words.get("MaxTime", ""))
        if "PartitionName" in words and seconds is not None:
            yield words["PartitionName"], seconds


def read_reservations(text: str) -> Iterator[Reservation]:
    """Yield the reservations that have nodes; one that cannot be read is told and left out."""
    for words in _lines(text):
        name, nodes = words.get("ReservationName"), words.get("Nodes", "")
        if not name or nodes in _ENDLESS:
            continue
        try:
            start_s, end_s = _unix_s(words["StartTime"]), _unix_s(words["EndTime"])
        except (KeyError, ValueError) as err:
            warn_once(log, f"reservation {name} cannot be read ({err}); jobs may be started into it")
            continue
        yield Reservation(name, node_names(nodes), start_s, end_s)


def duration_s(text: str) -> int | None:
    """Read Slurm's days-hours:minutes:seconds; None where there is no end, or it cannot be read."""
    if text in _ENDLESS:
        return None
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in [days or "0", *parts]) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if days:  # D-H[:M[:S]]
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:  # M, M:S or H:M:S
        hours, minutes, seconds = [0] * (3 - max(2, len(numbers))) + [*numbers, *([0] * (2 - len(numbers)))]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _lines(text: str) -> Iterator[dict[str, str]]:
    """The words of each line; of a word given twice the first counts, for comments come last."""
    for line in text.splitlines():
        words: dict[str, str] = {}
        for key, equals, value in (word.partition("=") for word in line.split()):
            if equals:
                words.setdefault(key, value)
        yield words


def _unix_s(text: str) -> int:
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
