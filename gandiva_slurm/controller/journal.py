"""What must outlive gandivactld: its epoch, the engine's state, every action with its outcome (SQLite, WAL).

An action is written before it is executed and its outcome after it; what has none at the next start is
executed again, for every action is idempotent. A journal that cannot be read is put aside: Slurm and the
nodes know enough. Besides, it has what the engine heard and answered of late (`recorder`), for `gandiva
replay`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.accounting.database import Transaction, open_database, opened
from gandiva_slurm.controller.recorder import WAITS, WRITTEN, Batch
from gandiva_slurm.controller.segments import write_batch
from gandiva_slurm.model import action as actions
from gandiva_slurm.model.action import Action, Note
from gandiva_slurm.model.event import ActionDone
from gandiva_slurm.model.ids import JobKey

MIGRATIONS = (
    """
    CREATE TABLE epochs (epoch_ns INTEGER PRIMARY KEY, started TEXT DEFAULT CURRENT_TIMESTAMP);
    CREATE TABLE state (
        id INTEGER PRIMARY KEY CHECK (id = 1), written_ns INTEGER NOT NULL, engine TEXT NOT NULL
    );
    CREATE TABLE actions (
        number INTEGER PRIMARY KEY AUTOINCREMENT, action_id TEXT NOT NULL, kind TEXT NOT NULL,
        job_id INTEGER NOT NULL, action TEXT NOT NULL, asked_ns INTEGER NOT NULL,
        done_ns INTEGER, error TEXT, retry INTEGER
    );
    CREATE INDEX actions_open ON actions (action_id) WHERE done_ns IS NULL;
    CREATE INDEX actions_by_time ON actions (asked_ns);
    """,
    """
    CREATE TABLE frames (
        frame INTEGER PRIMARY KEY AUTOINCREMENT, at_ns INTEGER NOT NULL, why TEXT NOT NULL,
        form INTEGER NOT NULL, release TEXT NOT NULL, settings TEXT NOT NULL, engine BLOB NOT NULL
    );
    CREATE TABLE cycles (
        cycle INTEGER PRIMARY KEY AUTOINCREMENT, frame INTEGER NOT NULL REFERENCES frames, body BLOB NOT NULL
    );
    CREATE INDEX cycles_by_frame ON cycles (frame);
    """,
)

#: How long done actions are kept, for whoever asks what happened.
KEEP_NS = 7 * 24 * 3600 * 1_000_000_000

_ACTIONS = (
    actions.Start,
    actions.HoldAgain,
    actions.SetTimeLimit,
    actions.Requeue,
    actions.Signal,
    actions.Unhold,
    actions.Fence,
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _ACTIONS}

log = logging.getLogger(__name__)


class Journal:
    """The journal file. Every call is one transaction; sqlite3.Error leaves it as it was."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, MIGRATIONS)
        self._engine = ""

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open the journal; one that is damaged is renamed and a new one begun."""
        return opened(path, cls, "rebuilding from Slurm and nodes")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def begin_epoch(self, now_ns: int) -> int:
        """Return the epoch of this start of the controller: the time, but above every epoch before."""
        with Transaction(self._db) as db:
            (last,) = db.execute("SELECT coalesce(max(epoch_ns), 0) FROM epochs").fetchone()
            epoch_ns: int = max(now_ns, last + 1)
            db.execute("INSERT INTO epochs (epoch_ns) VALUES (?)", (epoch_ns,))
            db.execute("DELETE FROM actions WHERE done_ns < ?", (now_ns - KEEP_NS,))
        return epoch_ns

    def raise_epoch(self, epoch_ns: int) -> None:
        """Remember an epoch above those of our own making."""
        with Transaction(self._db) as db:
            db.execute("INSERT OR IGNORE INTO epochs (epoch_ns) VALUES (?)", (epoch_ns,))

    def engine_state(self) -> dict[str, Any] | None:
        """Return the engine's state as last written, None when there is none to be read."""
        row = self._db.execute("SELECT engine FROM state").fetchone()
        if row is None:
            return None
        self._engine = row[0]
        try:
            state = json.loads(row[0])
        except ValueError as err:
            log.error("the engine's state is not JSON (%s); it is rebuilt from Slurm and nodes", err)
            return None
        return state if isinstance(state, dict) else None

    def open_actions(self) -> list[Action]:
        """Return the actions without an outcome, oldest first; what cannot be read is closed."""
        query = "SELECT number, kind, action FROM actions WHERE done_ns IS NULL ORDER BY number"
        read = {number: _read(kind, text) for number, kind, text in self._db.execute(query) if kind in _KINDS}
        strange = [(number,) for number, action in read.items() if action is None]
        if strange:
            query = "UPDATE actions SET done_ns = asked_ns, error = 'unread' WHERE number = ?"
            with Transaction(self._db) as db:
                db.executemany(query, strange)
        return [action for action in read.values() if action is not None]

    def write(
        self, engine_json: str, asked: Iterable[Action], now_ns: int, batch: Batch | None = None
    ) -> None:
        """Write the engine's state, if it changed, the actions it asks for, and what it heard, as one."""
        rows = [_row(action, now_ns) for action in asked if not isinstance(action, Note)]
        if not rows and engine_json == self._engine and not (batch and batch.is_due):
            if batch:
                batch.fate = WAITS
            return
        with Transaction(self._db) as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (now_ns, engine_json))
            columns = "(action_id, kind, job_id, action, asked_ns)"
            db.executemany(f"INSERT INTO actions {columns} VALUES (?, ?, ?, ?, ?)", rows)
            write_batch(db, batch)
        self._engine = engine_json
        if batch:
            batch.fate = WRITTEN

    def write_outcomes(self, outcomes: Sequence[ActionDone], now_ns: int) -> None:
        """Write what became of actions."""
        if outcomes:
            query = """UPDATE actions SET done_ns = ?, error = ?, retry = ?
                WHERE action_id = ? AND done_ns IS NULL"""
            rows = [(now_ns, item.error, item.retry, item.action_id) for item in outcomes]
            with Transaction(self._db) as db:
                db.executemany(query, rows)


def _row(action: Action, now_ns: int) -> tuple[object, ...]:
    text = json.dumps(dataclasses.asdict(action), separators=(",", ":"))
    return (action.action_id, type(action).__name__, action.key.job_id, text, now_ns)


def _read(kind: str, text: str) -> Action | None:
    """Read an action; None for one that another version wrote: the engine asks again for what is wanted."""
    try:
        raw = json.loads(text)
        raw["key"] = JobKey(*raw["key"])
        if "places" in raw:
            raw["places"] = tuple((node, tuple(gpus)) for node, gpus in raw["places"])
        action: Action = _KINDS[kind](**raw)
    except (KeyError, TypeError, ValueError) as err:
        log.warning("a journalled %s cannot be used (%r); it is left out", kind, err)
        return None
    return action
