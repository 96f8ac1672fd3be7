"""What gandivactld told last, and what of it a user sees: one look for all who ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gandiva_slurm.cli.asking import in_thread
from gandiva_slurm.cli.jobids import by_job_id
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.controller import curtained
from gandiva_slurm.controller.privacy import JOBS, NODES, Curtain, Rules, Viewer, curtain, viewer_of
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.slurm.accounts import Person

#: A look is taken at most so often, however many ask, and rests for this many times what the last one took.
LEAST_S, RESTS = 1.0, 10
#: How long gandivactld may take for an answer: one of 50,000 jobs has some 40 MB.
ANSWER_S = 10.0
#: What is kept of a viewer's answers: lists of rows, and texts of 1,000 rows (some 600 kB) at most.
MOST_MADE = 32
#: Users whose part of a look is kept, while that look is the last.
MOST_VIEWERS = 256

Row = dict[str, Any]
T = TypeVar("T")


class _Job(NamedTuple):
    job_id: int
    user: str
    account: str


@dataclass
class Part:
    """What one viewer sees of a look."""

    viewer: Viewer
    rows: list[Row]
    curtain: Curtain
    _made: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is made of it, once for all who ask the same."""
        if key not in self._made:
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            self._made[key] = make()
        made: T = self._made[key]
        return made


class Look:
    """An overview of gandivactld's, asked for at the moment `taken_s` of the monotonic clock."""

    def __init__(self, told: Row, taken_s: float) -> None:
        self.taken_s = taken_s
        self.rows: list[Row] = []
        for part in told["queue"]:
            self.rows += json.loads(part)
        self.rows.sort(key=by_job_id)
        self.nodes: list[Row] = told["nodes"]
        self.ping: Row = told["ping"]
        private = told["private"]
        people = (
            Person(one["user"], one["is_operator"], frozenset(one["coordinates"]))
            for one in private["people"]
        )
        self.rules = Rules(frozenset(private["hidden"]), tuple(people))
        self._users: list[str] = private["users"]
        self._parts: dict[Viewer, Part] = {}

    @property
    def age_s(self) -> float:
        """How old it is, in seconds."""
        return time.monotonic() - self.taken_s

    def part(self, user: str) -> Part:
        """Return what a user sees of it."""
        viewer = viewer_of(self.rules, user)
        if viewer not in self._parts:
            if len(self._parts) >= MOST_VIEWERS:
                self._parts.clear()
            self._parts[viewer] = self._cut(viewer)
        return self._parts[viewer]

    def _cut(self, viewer: Viewer) -> Part:
        if viewer.sees_every(JOBS):
            return Part(viewer, self.rows, Curtain())
        rows = [row for row in self.rows if viewer.sees(JOBS, row["user"], [row["account"]])]
        jobs = [_Job(row["job_id"], row["user"], row["account"]) for row in rows]
        hides = curtain(viewer, {job.job_id: job for job in jobs}.get, lambda: jobs, lambda: self._users)
        return Part(viewer, rows, hides)

    def nodes_for(self, part: Part) -> list[Row]:
        """Return the nodes as a viewer sees them; Refused (403) where they are hidden."""
        if not part.viewer.sees_every(NODES):
            raise Refused(403, "Slurm's PrivateData hides nodes from all but its operators")
        return curtained.nodes(self.nodes, part.curtain)


class Looks:
    """Takes a look when somebody asks and the last one is old; no two at a time."""

    def __init__(self, ask: Callable[[], Row]) -> None:
        self._ask = ask
        self._last: Look | None = None
        self._trouble = ""
        self._due_s = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> Look:
        """Return the last look, or wait for the next; Refused (503) while gandivactld does not answer."""
        now_s = time.monotonic()
        if self._asking is None and now_s >= self._due_s:
            self._asking = asyncio.create_task(self._take())
        last, is_old = self._last, now_s >= self._due_s + ANSWER_S
        if is_old and self._asking is not None:
            await asyncio.wait([self._asking], timeout=ANSWER_S)
        if self._last is None or self._trouble or (self._last is last and is_old):
            trouble = self._trouble or f"gandivactld has not answered within {ANSWER_S:g} s"
            raise Refused(503, trouble, self._last.age_s if self._last else None)
        return self._last

    async def _take(self) -> None:
        """Ask; an answer that comes too late is taken all the same, and told with its age."""
        begun_s, rest_s = time.monotonic(), LEAST_S
        asked = asyncio.wrap_future(in_thread(lambda: Look(self._ask(), begun_s)))
        try:
            await asyncio.wait([asked], timeout=ANSWER_S)
            if not asked.done():
                self._trouble = f"gandivactld has not answered within {ANSWER_S:g} s"
                self._due_s = time.monotonic()  # who asks now is told at once
            self._last, self._trouble = await asked, ""
            rest_s = max(LEAST_S, RESTS * (time.monotonic() - begun_s))
        except (GandivaError, AttributeError, KeyError, TypeError, ValueError) as err:
            told = str(err) if isinstance(err, GandivaError) else f"its answer cannot be read: {err!r}"
            self._trouble = told
        finally:
            self._due_s = time.monotonic() + rest_s
            self._asking = None
