"""The recorded segments in the journal's file: written by gandivactld, read by whoever may read the file."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm import __version__
from gandiva_slurm.accounting.database import open_reader
from gandiva_slurm.controller.recorder import Batch, Frame
from gandiva_slurm.engine.replay import SCHEMA, Heard
from gandiva_slurm.engine.state.codec import dumps, lists, read_actions, read_events
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.event import CycleTick

#: The journal's schema from which on it has segments.
SINCE_SCHEMA = 2
#: What reading something else raises.
UNREADABLE = (zlib.error, AttributeError, KeyError, TypeError, ValueError)
#: Speed before size: it is done in every cycle.
_LEVEL = 1


@dataclass(frozen=True)
class Segment:
    """A key frame, and what was heard from then on; `release` is the gandiva that wrote it."""

    number: int
    release: str
    #: of its frame and cycles: this release reads SCHEMA
    form: int
    frame: Frame
    bodies: tuple[bytes, ...]

    @property
    def cycles(self) -> Iterator[Heard]:
        """What was heard, in order. UsageError: it cannot be read."""
        try:
            for body in self.bodies:
                yield from _read_cycle(body)
        except UNREADABLE as err:
            raise UsageError(self.unreadable(err)) from err

    def unreadable(self, err: Exception) -> str:
        """Say what is wrong with it."""
        text = f"a segment recorded by gandiva {self.release} cannot be read: {err!r}"
        return f"{text}; replay it with the release that recorded it (this is {__version__})"

    def other_form(self) -> str:
        """Say that another release's form is not read here."""
        text = f"a segment recorded by gandiva {self.release} in form {self.form}"
        return f"{text}, this release reads form {SCHEMA}; replay it with the release that recorded it"


def write_batch(db: sqlite3.Connection, batch: Batch | None) -> None:
    """Write what was recorded, in the caller's transaction; None: nothing is recorded, and nothing kept."""
    if batch is None:
        db.execute("DELETE FROM cycles")
        db.execute("DELETE FROM frames")
        return
    heard, ticks = batch.cycle, batch.ticks
    if batch.frame is not None:
        if ticks:
            _write_cycle(db, ticks, None)
        _write_frame(db, batch.frame)
        _forget(db, batch.frame.at_ns - batch.keep_ns, batch.keep_bytes)
        ticks = []
    if ticks or heard is not None:
        _write_cycle(db, ticks, heard)


def _write_frame(db: sqlite3.Connection, frame: Frame) -> None:
    engine = zlib.compress(frame.engine.encode(), _LEVEL)
    values = (frame.at_ns, frame.why, SCHEMA, __version__, frame.settings, engine)
    columns = "(at_ns, why, form, release, settings, engine)"
    db.execute(f"INSERT INTO frames {columns} VALUES (?, ?, ?, ?, ?, ?)", values)


def _write_cycle(db: sqlite3.Connection, ticks: list[int], heard: Heard | None) -> None:
    one = None if heard is None else [heard.now_ns, lists(heard.events), lists(heard.actions)]
    body = zlib.compress(dumps([ticks, one]).encode(), _LEVEL)
    db.execute("INSERT INTO cycles (frame, body) SELECT max(frame), ? FROM frames", (body,))


def _forget(db: sqlite3.Connection, before_ns: int, most_bytes: int) -> None:
    """Delete segments that ended before a time, and the oldest while all are too large; not the newest."""
    query = """SELECT frame, at_ns, length(engine) + coalesce(
        (SELECT sum(length(body)) FROM cycles WHERE cycles.frame = frames.frame), 0)
        FROM frames ORDER BY frame DESC"""
    end_ns, total, last = None, 0, 0
    for number, at_ns, size in db.execute(query).fetchall():
        total += size
        if end_ns is not None and (end_ns < before_ns or total > most_bytes):
            last = number
            break
        end_ns = at_ns
    db.execute("DELETE FROM cycles WHERE frame <= ?", (last,))
    db.execute("DELETE FROM frames WHERE frame <= ?", (last,))


def read_segments(path: Path) -> Iterator[Segment]:
    """Yield what a journal has, oldest first; its gandivactld may be running. UsageError says what is wrong.

    A segment that is deleted meanwhile is left out.
    """
    with closing(_open(path)) as db:
        try:
            _check_schema(db, path)
            numbers = [row[0] for row in db.execute("SELECT frame FROM frames ORDER BY frame")]
            for number in numbers:
                segment = _read_segment(db, number)
                if segment is not None:
                    yield segment
        except sqlite3.Error as err:
            raise UsageError(f"{path}: {err}; is it a journal of gandivactld?") from err


def count_segments(path: Path) -> int:
    """How many segments a journal has now."""
    with closing(_open(path)) as db:
        _check_schema(db, path)
        (count,) = db.execute("SELECT count(*) FROM frames").fetchone()
        return int(count)


def _open(path: Path) -> sqlite3.Connection:
    try:
        if not path.is_file():
            raise UsageError(f"{path}: no such file; the journal is state_dir/journal.sqlite")
        path.open("rb").close()
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    db = open_reader(path)
    if path.with_name(path.name + "-wal").exists() or os.access(path.parent, os.W_OK):
        return db
    # Nobody has it open, and SQLite cannot make here what it needs to share a file with a writer.
    db.close()
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    try:
        (schema,) = db.execute("SELECT max(version) FROM migrations").fetchone()
        db.execute("SELECT epoch_ns FROM epochs LIMIT 1")
    except sqlite3.Error as err:
        raise UsageError(f"{path}: {err}; is it a journal of gandivactld?") from err
    if schema != SINCE_SCHEMA:
        text = f"{path}: a journal of schema {schema}, this release replays schema {SINCE_SCHEMA}"
        older = "its cycles are recorded once a gandivactld of this release has opened it"
        raise UsageError(f"{text}; {older if schema < SINCE_SCHEMA else 'use the release that wrote it'}")


def _read_segment(db: sqlite3.Connection, number: int) -> Segment | None:
    db.execute("BEGIN")  # one picture, whatever is deleted meanwhile
    try:
        query = "SELECT at_ns, why, form, release, settings, engine FROM frames WHERE frame = ?"
        row = db.execute(query, (number,)).fetchone()
        bodies = db.execute("SELECT body FROM cycles WHERE frame = ? ORDER BY cycle", (number,)).fetchall()
    finally:
        db.execute("ROLLBACK")
    if row is None:
        return None
    at_ns, why, form, release, settings, engine = row
    frame = Frame(at_ns, why, zlib.decompress(engine).decode(), settings)
    return Segment(number, release, form, frame, tuple(body for (body,) in bodies))


def _read_cycle(body: bytes) -> Iterator[Heard]:
    ticks, one = json.loads(zlib.decompress(body))
    for now_ns in ticks:
        yield Heard(now_ns, (CycleTick(),), ())
    if one is not None:
        now_ns, events, actions = one
        yield Heard(now_ns, read_events(events), read_actions(actions))
