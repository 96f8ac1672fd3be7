"""When jobs have their next turn, start and end: asked beside the look, for rows that are shown.

No page waits for it: one that comes before the answer has no times yet, the next one has. One question at a
time, and a rest of some times what it took, however many pages are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from gandiva_slurm.cli.asking import in_thread
from gandiva_slurm.cli.web.look import RESTS
from gandiva_slurm.model.errors import GandivaError

#: How long an answer is good: a new forecast is made each half minute. Between two questions, at least.
KEPT_S, LEAST_S = 20.0, 0.5
#: Jobs of one question, and jobs that are kept.
MOST_ASKED, MOST_KEPT = 1000, 50_000

Row = dict[str, Any]


class Whens:
    """What is foretold of jobs, by number; `version` is another one when something has come."""

    def __init__(self, query: Callable[[str, Row], Any]) -> None:
        self.version = 0
        self._query = query
        self._known: dict[int, tuple[float, Row | None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._free_s = 0.0

    def of(self, job_ids: Iterable[int]) -> dict[int, Row | None]:
        """Return what is known of these by now, None: nothing; what is not known, or old, is asked for."""
        now_s, never = time.monotonic(), (0.0, None)
        found = {job_id: self._known.get(job_id, never) for job_id in job_ids}
        old = [job_id for job_id, (until_s, _) in found.items() if until_s <= now_s]
        if old and self._asking is None and now_s >= self._free_s:
            self._asking = asyncio.create_task(self._ask(old[:MOST_ASKED]))
        return {job_id: when for job_id, (_, when) in found.items()}

    async def _ask(self, job_ids: list[int]) -> None:
        begun_s, asked = time.monotonic(), {"job_ids": job_ids, "when": True}
        try:
            rows = await asyncio.wrap_future(in_thread(lambda: self._query("queue", asked)))
            whens = {int(row["job_id"]): row.get("when") for row in rows}
            until_s = time.monotonic() + KEPT_S
            if len(self._known) + len(job_ids) > MOST_KEPT:
                self._known.clear()
            self._known |= {job_id: (until_s, whens.get(job_id)) for job_id in job_ids}
            self.version += 1
        except (GandivaError, AttributeError, KeyError, TypeError, ValueError):
            pass  # rows are shown without; what is wrong with gandivactld the look says
        finally:
            now_s = time.monotonic()
            self._free_s = now_s + max(LEAST_S, RESTS * (now_s - begun_s))
            self._asking = None
