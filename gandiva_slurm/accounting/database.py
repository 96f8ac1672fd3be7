"""SQLite files of the controller: opened in WAL mode, brought to the newest schema, safe against kill -9.

A commit is on the disk before it returns (synchronous=FULL): what a node was told is safe, is safe.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gandiva_slurm.model.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger(__name__)

#: How long a writer waits for another connection's lock before it gives up.
BUSY_MS = 5000


def open_database(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    """Open a file for writing and apply the migrations it does not have yet.

    `migrations[n]` is the SQL that makes schema n + 1 of schema n; a published one is never edited.
    ConfigError when the file was written by a newer gandiva; sqlite3.Error when it is not a database.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o640)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        _migrate(connection, path, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def opened(path: Path, make: Callable[[Path], T], then: str) -> T:
    """Open a file by `make`; one that is damaged is put aside, never over another, and a new one is begun.

    `then` says what follows, for the log.
    """
    try:
        return make(path)
    except sqlite3.OperationalError:
        raise  # a full disk, a lock, rights: nothing a new file would cure
    except sqlite3.DatabaseError as err:
        names = (path.with_suffix(f".damaged{number or ''}") for number in itertools.count())
        aside = next(name for name in names if not name.exists())
        path.replace(aside)
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
        log.critical("%s: %s; put aside as %s, %s", path, err, aside.name, then)
        return make(path)


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a file read-only, beside its writer."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    return connection


class Transaction:
    """`with Transaction(connection):` commits as a whole, or leaves nothing behind."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        # A full disk may have ended the transaction already.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    columns = "version INTEGER PRIMARY KEY, applied TEXT DEFAULT CURRENT_TIMESTAMP"
    connection.execute(f"CREATE TABLE IF NOT EXISTS migrations ({columns})")
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    if version > len(migrations):
        text = f"{path}: schema {version}, this gandiva knows {len(migrations)}"
        raise ConfigError(f"{text}; install the version that wrote it, or move the file away")
    for number in range(version, len(migrations)):
        with Transaction(connection):
            for statement in filter(str.strip, migrations[number].split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations (version) VALUES (?)", (number + 1,))
