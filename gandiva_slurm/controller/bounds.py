"""Partitions' MaxTime and reservations, read once in a while and told to the engine."""

from __future__ import annotations

import logging
import time

from gandiva_slurm.logs import Trouble
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.event import BoundsSeen
from gandiva_slurm.slurm.limits import Limits

#: Reservations are mostly made ahead of their time, and MaxTime hardly changes.
EVERY_S = 10.0

log = logging.getLogger(__name__)


class BoundsWatch:
    """Reads the bounds; None as `limits` reads nothing, and nothing is then given back."""

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits
        self._next_s = float("-inf")
        self._news: list[BoundsSeen] = []
        self._unread = Trouble(
            log, "MaxTime and reservations not read, the old ones stay", "MaxTime and reservations are read"
        )

    async def look(self) -> None:
        """Read them when it is time; when they cannot be read the old ones stay."""
        if self._limits is None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        try:
            self._news = [BoundsSeen(await self._limits.bounds())]
        except GandivaError as err:
            self._unread.begins(err)
        else:
            self._unread.ends()

    def take(self) -> list[BoundsSeen]:
        """Return the news and forget it."""
        news, self._news = self._news, []
        return news

    def forget(self) -> None:
        """Another engine begins, and knows nothing of them."""
        self._next_s = float("-inf")
