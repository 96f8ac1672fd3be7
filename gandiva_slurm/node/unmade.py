"""Images that are not made after all: a dump is ended, what there is of it put away, and its job let go.

Until that is done the job has no turn: an image that is there might be restored elsewhere, later, when the
job has gone on. A store may refuse it for a while, and is asked again at each look.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import images, imaging
from gandiva_slurm.node.charging import charge_awake
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.switch import Switcher

#: What could not be ended for want of something is tried again then.
AGAIN_S = 2.0

log = logging.getLogger(__name__)


class Unmade:
    """The jobs of a node whose dump was ended, or whose image nobody wants, until they may have turns."""

    def __init__(self, node: Node, switcher: Switcher, on_gone: Callable[[Resident, str, int], None]) -> None:
        """`on_gone`: called with the job, why there is no image, and the nanoseconds that it took."""
        self._node = node
        self._switcher = switcher
        self._on_gone = on_gone
        self._jobs: dict[JobKey, tuple[Resident, str, int]] = {}
        #: what was said last of those that are not let go
        self._told: dict[JobKey, str] = {}
        #: when they are tried again, by the steady clock
        self._later_s: dict[JobKey, float] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._jobs

    def add(self, resident: Resident, why: str, took_ns: int = 0) -> None:
        """Put away what there is of a job's image, at the next look."""
        self._jobs[resident.key] = (resident, why, took_ns)

    async def end(self, resident: Resident, why: str, took_ns: int = 0) -> None:
        """End what makes a job's image; the job is frozen again when criu has let go of it."""
        maker, is_told = resident.image.maker, False
        while maker is not None:
            try:
                await asyncio.to_thread(imaging.end, maker)
                break
            except OSError as err:  # this node is short of something
                if not is_told:
                    log.error("job %s: what makes its image is not ended yet: %s", resident.key, err)
                is_told = True
                await asyncio.sleep(AGAIN_S)
        charge_awake(self._node, resident, self._node.clock.mono())
        is_here = self._node.residents.get(resident.key) is resident
        if is_here and not resident.is_ending and not resident.holds:
            self._switcher.shut(resident)
        self.add(resident, why, took_ns)

    async def take_over(self, why: str) -> None:
        """End what a former gandivad's programs do."""
        begun = [each for each in self._node.residents.values() if each.image.maker is not None]
        await asyncio.gather(*(self.end(resident, why) for resident in begun))

    def look(self, root: Path | None) -> None:
        """Put away what can be, and let its jobs go. `root`: the store; None: there is none, nor an image."""
        for key, (resident, why, took_ns) in list(self._jobs.items()):
            if time.monotonic() < self._later_s.get(key, 0.0):
                continue
            image = resident.image
            was = image.maker, image.is_whole, image.is_kept
            try:
                if image.is_in_hand:
                    raise OSError(errno.EBUSY, "criu has not let go of it")
                is_no_use = not image.is_kept or (resident.is_ending and not resident.is_fenced)
                if root is not None and is_no_use:
                    put_away(self._node, root, resident)
                image.maker, image.is_whole = None, False
                self._on_gone(resident, why, took_ns)
            except OSError as err:
                image.maker, image.is_whole, image.is_kept = was
                self._later_s[key] = time.monotonic() + AGAIN_S
                if self._told.get(key) != str(err):
                    log.error("job %s stands still: its image cannot be put away: %s", key, err)
                self._told[key] = str(err)
                continue
            del self._jobs[key]
            self._told.pop(key, None)
            self._later_s.pop(key, None)


def put_away(node: Node, root: Path, resident: Resident) -> None:
    """Take a job's image out of use now, and remove it in a thread; OSError when the store refuses."""
    os.stat(root / "whole")  # a store that is not mounted has none now, and may have one again
    resident.image.kept_steps = -1
    node.images.discard(resident.key)
    for gone in images.put_away(root, resident.key):
        asyncio.get_running_loop().run_in_executor(None, images.remove, gone)
