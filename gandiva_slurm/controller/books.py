"""The controller's files, written in a thread of their own; a disk that refuses stops nothing but is told."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gandiva_slurm.accounting.ledger import Ledger
from gandiva_slurm.controller.journal import Journal
from gandiva_slurm.model.errors import ConfigError

JOURNAL_NAME, LEDGER_NAME = "journal.sqlite", "ledger.sqlite"

T = TypeVar("T")

log = logging.getLogger(__name__)


class Books:
    """Journal and ledger. `error` is the reason why the last writing failed, empty when it did not."""

    def __init__(self, state_dir: Path) -> None:
        self.error = ""
        self.ledger_path = state_dir / LEDGER_NAME
        self._thread = ThreadPoolExecutor(1, "books")
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.journal = Journal.open(state_dir / JOURNAL_NAME)
            self.ledger = Ledger(self.ledger_path)
        except sqlite3.DatabaseError as err:
            advice = "free the disk or repair the file; a ledger moved away is begun anew"
            raise ConfigError(f"controller.state_dir: {state_dir}: {err}; {advice}") from err
        except OSError as err:
            raise ConfigError(f"controller.state_dir: {state_dir}: {err.strerror}; make it writable") from err

    async def write(self, *calls: Callable[[], T]) -> list[T | None]:
        """Do these calls one after the other; one that fails leaves None and does not stop the others."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._all, calls)

    def close(self) -> None:
        """Finish what is being written and close the files."""
        self._thread.shutdown()
        self.journal.close()
        self.ledger.close()

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T | None]:
        errors: list[str] = []
        results = [_attempt(call, errors) for call in calls]
        error = errors[0] if errors else ""
        if error and error != self.error:
            log.error("state_dir cannot be written: %s", error)
        elif self.error and not error:
            log.info("state_dir is written again")
        self.error = error
        return results


def _attempt(call: Callable[[], T], errors: list[str]) -> T | None:
    try:
        return call()
    except (sqlite3.Error, OSError, OverflowError) as err:
        errors.append(str(err))
        return None
