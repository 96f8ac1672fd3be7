"""What users ask to be changed: events of the next cycle, answered when they are in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from gandiva_slurm.controller.arguments import Args, numbers
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.event import Asked, ClassAsked, PriorityAsked
from gandiva_slurm.policy.port import CLASSES

#: What a job's priority may be.
PRIORITIES = range(101)


class Requests:
    """The newest of each kind of each job; what a cycle was told that failed, the next one is told again."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake`: has the next cycle begin now."""
        self._wake = wake
        self._asked: dict[tuple[type, int], Asked] = {}
        self._taken: dict[tuple[type, int], Asked] = {}
        #: done when what was asked for since the last cycle began is kept; and those of cycles under way
        self._kept: asyncio.Future[None] | None = None
        self._under_way: list[asyncio.Future[None]] = []

    @property
    def are_waiting(self) -> bool:
        """True while there are some that no cycle was told."""
        return bool(self._asked)

    async def ask(self, events: Iterable[Asked], deadline_s: float) -> None:
        """Return when all are in the journal; GandivaError: they are not before the deadline."""
        self._asked |= {(type(event), event.job_id): event for event in events}
        kept = self._kept = self._kept or asyncio.get_running_loop().create_future()
        self._wake()
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(kept)
        except TimeoutError as err:
            text = f"gandivactld has not kept this within {deadline_s:g} s, and may do so yet"
            raise GandivaError(f"{text}; next: `gandiva check`") from err

    def take(self) -> list[Asked]:
        """Return what the cycle that begins is to hear."""
        self._taken |= self._asked
        self._asked = {}
        if self._kept is not None:
            self._under_way.append(self._kept)
            self._kept = None
        return [*self._taken.values()]

    def note_kept(self) -> None:
        """What was taken is in the journal."""
        self._taken = {}
        for kept in self._under_way:
            kept.set_result(None)
        self._under_way = []


def change_of(args: Args) -> tuple[str, Any, Callable[[int, Any], Asked]]:
    """Return what of a job is to change, to what, and the event that says so; UsageError: neither is one."""
    job_class = args.get("job_class")
    if job_class is not None and "priority" not in args:
        if job_class not in CLASSES:
            raise UsageError(f"expected job_class {' or '.join(CLASSES)}")
        return "job_class", job_class, ClassAsked
    (priority,) = numbers({"priority": [args.get("priority")]}, "priority") or {0}
    if job_class is not None or priority not in PRIORITIES:
        raise UsageError(f"expected job_class, or a priority from {PRIORITIES[0]} to {PRIORITIES[-1]}")
    return "priority", priority, PriorityAsked
