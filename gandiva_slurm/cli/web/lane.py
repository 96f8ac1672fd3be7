"""Questions beside the look (a job's story, a window of time): one after the other, each kept a moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from gandiva_slurm.cli.asking import in_thread
from gandiva_slurm.cli.web.look import ANSWER_S, RESTS
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.model.errors import GandivaError

#: The least and the longest time between two questions; in between RESTS says.
LEAST_S, LONGEST_S = 0.2, ANSWER_S / 2
#: How long an answer is given to others that ask the same, in seconds.
KEPT_S = 10.0
#: Answers that are kept, and their rows in all.
MOST_KEPT, MOST_ROWS = 256, 20_000
#: Questions that wait, of all and of one user.
MOST_WAITING, MOST_OF_USER = 32, 4


class Lane:
    """Puts questions to gandivactld one by one; who asks what is being asked waits for that answer."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_s = 0.0
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: Counter[str] = Counter()
        #: by question, the oldest first: until when it is good, its rows, the answer or an error
        self._kept: OrderedDict[Hashable, tuple[float, int, Any]] = OrderedDict()

    async def get(self, key: Hashable, user: str, ask: Callable[[], Any]) -> Any:
        """Return an answer. GandivaError: that is the answer; Refused: too many wait (429, 503)."""
        until_s, _, kept = self._kept.get(key, (0.0, 0, None))
        if time.monotonic() < until_s:
            return _given(kept)
        task = self._asking.get(key)
        if task is None:
            self._require_room(user)
            self._waiting[user] += 1
            task = self._asking[key] = asyncio.create_task(self._ask(key, user, ask))
        done, _ = await asyncio.wait([task], timeout=ANSWER_S)
        if not done:
            raise Refused(503, "gandivactld is busy with other questions; next: ask again")
        return _given(task.result())

    def _require_room(self, user: str) -> None:
        if self._waiting[user] >= MOST_OF_USER:
            raise Refused(429, f"{MOST_OF_USER} questions of {user} wait for their answers; next: ask again")
        if self._waiting.total() >= MOST_WAITING:
            raise Refused(503, f"{MOST_WAITING} questions wait for their answers; next: ask again")

    async def _ask(self, key: Hashable, user: str, ask: Callable[[], Any]) -> Any:
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_s - time.monotonic()))
                begun_s = time.monotonic()
                told = await _told(ask)
                now_s = time.monotonic()
                self._free_s = now_s + max(LEAST_S, min(LONGEST_S, RESTS * (now_s - begun_s)))
            self._keep(key, told)
            return told
        finally:
            del self._asking[key]
            self._waiting[user] -= 1
            self._waiting += Counter()  # forget users that do not wait

    def _keep(self, key: Hashable, told: Any) -> None:
        self._kept.pop(key, None)
        self._kept[key] = time.monotonic() + KEPT_S, _rows(told), told
        while len(self._kept) > MOST_KEPT or sum(rows for _, rows, _ in self._kept.values()) > MOST_ROWS:
            self._kept.popitem(last=False)


async def _told(ask: Callable[[], Any]) -> Any:
    """Return the answer, or the error that it is."""
    try:
        return await asyncio.wrap_future(in_thread(ask))
    except GandivaError as err:
        return err


def _given(told: Any) -> Any:
    if isinstance(told, GandivaError):
        raise told
    return told


def _rows(told: Any) -> int:
    """How much an answer is, in rows."""
    if isinstance(told, dict):
        return 1 + sum(len(part) for part in told.values() if isinstance(part, list))
    return len(told) if isinstance(told, list) else 1
