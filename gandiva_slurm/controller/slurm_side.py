"""All that waits for Slurm: looks at it, and what it is told to do, in turn, beside the cycles.

A look begins only when what was asked for before has been done, so that what it shows is never older than an
outcome that is known. Cycles take a look when it has come, and go by the last one until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gandiva_slurm.controller.bounds import BoundsWatch
from gandiva_slurm.controller.executor import Executor
from gandiva_slurm.controller.status import Status
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.event import ActionDone
from gandiva_slurm.model.snapshot import SlurmJob, Snapshot
from gandiva_slurm.slurm.port import SlurmPort

#: The association tree changes rarely: it is read again after so long, or when a new user appears.
ASSOCIATIONS_EVERY_S = 30.0
#: After something was done, or where there is news, the next look comes sooner, but not sooner than this.
SHORT_REST_S = 0.2

log = logging.getLogger(__name__)


class SlurmSide:
    """Reads Slurm once a cycle's time, and executes actions in between."""

    def __init__(
        self,
        port: SlurmPort,
        bounds: BoundsWatch,
        executor: Executor,
        status: Status,
        keep: Callable[[Sequence[ActionDone]], Awaitable[object]],
    ) -> None:
        """`keep` writes outcomes down."""
        self._port, self._bounds, self._executor, self._status = port, bounds, executor, status
        self._keep = keep
        #: called when a look begins, and when it has come
        self.on_begin: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None
        #: set while nothing is executed
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._snapshot: Snapshot | None = None
        self._taken = asyncio.Event()
        self._todo: list[Action] = []
        self._jobs: Mapping[int, SlurmJob] = {}
        self._outcomes: list[ActionDone] = []
        self._hurry = asyncio.Event()
        self._associations_s = float("-inf")

    async def run(self, cycle_s: Callable[[], float]) -> None:
        """Look and act for ever, with a rest of `cycle_s` seconds in between."""
        while True:
            has_done = False
            try:
                has_done = await self._look_and_act()
            except Exception as err:
                log.exception("a look at Slurm failed")
                self._status.fail(f"{type(err).__name__}: {err}")
            await self._rest(cycle_s(), has_done)

    def take(self) -> Snapshot | None:
        """Return the look that no cycle has taken yet; its cycle must call `go_on` when it is over."""
        snapshot, self._snapshot = self._snapshot, None
        return snapshot

    def go_on(self) -> None:
        """The cycle that took the look has asked for all that it wants."""
        self._taken.set()

    def ask(self, actions: Sequence[Action], jobs: Mapping[int, SlurmJob]) -> None:
        """Have these done before the next look; `jobs` is Slurm's latest picture."""
        self._todo += actions
        self._jobs = jobs

    def outcomes(self) -> list[ActionDone]:
        """Return what came of what was asked for, and forget it."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def hurry(self) -> None:
        """There is news: look again soon."""
        self._hurry.set()

    def want_associations(self) -> None:
        """Read the association tree with the next look."""
        self._associations_s = float("-inf")

    async def _look_and_act(self) -> bool:
        """Hand a look over, do what its cycle and others asked for; True when some of it succeeded."""
        self._snapshot = await self._read()
        if self._snapshot is not None:
            self._taken.clear()
            self.on_look()
            await self._taken.wait()
        self.is_idle.clear()
        try:
            return await self._act()
        finally:
            self.is_idle.set()

    async def _read(self) -> Snapshot | None:
        """Return one coalesced picture; None when Slurm does not answer: the old one stays, stale."""
        status, with_associations = self._status, time.monotonic() >= self._associations_s
        self.on_begin()
        try:
            snapshot = await self._port.snapshot(with_associations)
        except GandivaError as err:
            if not status.slurm_error:
                log.warning("Slurm cannot be read, going on with the old picture: %s", err)
            status.slurm_error = str(err)
            return None
        if status.slurm_error:
            log.info("Slurm is read: %d jobs, %d nodes", len(snapshot.jobs), len(snapshot.nodes))
        status.slurm_error = ""
        for job_id in snapshot.unread.keys() - status.unread.keys():
            log.error("job %d cannot be read, and stays as it was: %s", job_id, snapshot.unread[job_id])
        status.unread = snapshot.unread
        status.fresh_s = time.monotonic()
        if with_associations:
            self._associations_s = time.monotonic() + ASSOCIATIONS_EVERY_S
        await self._bounds.look()
        return snapshot

    async def _act(self) -> bool:
        """Do what was asked for; True when some of it succeeded."""
        todo, self._todo = self._todo, []
        if not todo:
            return False
        outcomes = await self._executor.execute(todo, self._jobs)
        self._outcomes += outcomes
        await self._keep(outcomes)
        return any(not outcome.error for outcome in outcomes)

    async def _rest(self, rest_s: float, has_done: bool) -> None:
        await asyncio.sleep(min(SHORT_REST_S, rest_s))
        if not has_done and rest_s > SHORT_REST_S:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s - SHORT_REST_S):
                    await self._hurry.wait()
        self._hurry.clear()
