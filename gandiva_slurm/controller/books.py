"""The controller's files, written in a thread of their own; a disk that refuses stops nothing but is told."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from gandiva_slurm.accounting.database import opened
from gandiva_slurm.accounting.ledger import Ledger, Tickets
from gandiva_slurm.config import NS_PER_S
from gandiva_slurm.controller.differences import Picture
from gandiva_slurm.controller.journal import Journal
from gandiva_slurm.engine.state.records import TicketShare
from gandiva_slurm.model.action import Action, Note, Requeue
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.model.ids import JobKey

JOURNAL_NAME, LEDGER_NAME = "journal.sqlite", "ledger.sqlite"

#: Rests after a piece of the ledger's upkeep: where there is more to do, and where there is not.
PIECE_REST_S, UPKEEP_S = 0.05, 60.0

#: How what is moved was saved, by the code of what was done.
_MOVED_BY = {
    "Saved": "attached", "Imaged": "image", "GoesBack": "self", "NotBegun": "anew",
    "EndedToMove": "signal", "MovedOut": "signal",
}  # fmt: skip

T = TypeVar("T")

log = logging.getLogger(__name__)


def moves_among(actions: Iterable[Action]) -> Iterator[tuple[JobKey, str]]:
    """Yield the incarnations that leave to go on elsewhere, each with how it was saved (`record_move`)."""
    for action in actions:
        if isinstance(action, Requeue | Note) and action.code in _MOVED_BY:
            yield action.key, _MOVED_BY[action.code]


class Books:
    """Journal and ledger."""

    def __init__(self, state_dir: Path) -> None:
        #: what could not be written the last time it was tried, and why
        self._errors: dict[str, str] = {}
        self.ledger_path = state_dir / LEDGER_NAME
        self._thread = ThreadPoolExecutor(1, "books")
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.journal = Journal.open(state_dir / JOURNAL_NAME)
            then = "begun anew with what nodes have not had acknowledged; `sqlite3 FILE .recover` may read it"
            self.ledger = opened(self.ledger_path, Ledger, then)
        except sqlite3.DatabaseError as err:
            advice = "free the disk, or see who holds the file"
            raise ConfigError(f"controller.state_dir: {state_dir}: {err}; {advice}") from err
        except OSError as err:
            raise ConfigError(f"controller.state_dir: {state_dir}: {err.strerror}; make it writable") from err

    def begin_epoch(self, now_ns: int) -> int:
        """The epoch of this start; ConfigError where the disk takes no byte: nodes would obey no plan."""
        try:
            return self.journal.begin_epoch(now_ns)
        except sqlite3.Error as err:
            self.close()
            where = f"controller.state_dir: {self.ledger_path.parent}"
            raise ConfigError(f"{where}: {err}; free the disk, then start again") from err

    def of_look(
        self, picture: Picture, shares: Iterable[TicketShare], vanished: Iterable[int], now_ns: int
    ) -> list[partial[None]]:
        """Return what is to be written of a look at Slurm: its jobs, those that are gone, and tickets."""
        jobs = list(picture.jobs.values())
        types = {name: node.gpu_type for name, node in picture.nodes.items()}
        tickets = [
            Tickets(share.user, share.account, share.tickets, float(share.norm_share)) for share in shares
        ]
        ledger, now_s = self.ledger, now_ns // NS_PER_S
        calls = [partial(ledger.record_gone, job_id, now_s) for job_id in vanished]
        return [
            partial(ledger.record_jobs, jobs, types),
            *calls,
            partial(ledger.record_tickets, tickets, now_ns),
        ]

    @property
    def error(self) -> str:
        """Why something could not be written, empty when all could."""
        return next(iter(self._errors.values()), "")

    def is_failing(self, call: Callable[..., object]) -> bool:
        """True when the last such call could not write."""
        return call.__name__ in self._errors

    async def write(self, *calls: partial[T]) -> list[T | None]:
        """Do these calls one after the other; one that fails leaves None and does not stop the others."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._all, calls)

    async def keep_up(self, clock_ns: Callable[[], int], keep_days: Callable[[], int]) -> None:
        """Do the ledger's upkeep for ever, a piece at a time between all that is written."""
        while True:
            (has_more,) = await self.write(partial(self.ledger.tidy, clock_ns(), keep_days()))
            await asyncio.sleep(PIECE_REST_S if has_more else UPKEEP_S)

    def close(self) -> None:
        """Finish what is being written and close the files."""
        self._thread.shutdown()
        self.journal.close()
        self.ledger.close()

    def _all(self, calls: Sequence[partial[T]]) -> list[T | None]:
        return [self._attempt(call) for call in calls]

    def _attempt(self, call: partial[T]) -> T | None:
        what = call.func.__name__
        try:
            result = call()
        except (sqlite3.Error, OSError, OverflowError) as err:
            if self._errors.get(what) != str(err):
                log.error("%s: state_dir cannot be written: %s", what, err)
            self._errors[what] = str(err)
            return None
        if self._errors.pop(what, None):
            log.info("%s: state_dir is written again", what)
        return result
