"""What was foretold last: a file of its own, made whole by `gandiva forecast`, read a job at a time.

A forecast that could not be written, or whose process has died, leaves the one before, with its age; one that
is older than STALE_S is none. Whatever is wrong with the file, questions of the queue are answered without.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "forecast.sqlite"
#: Where `gandiva forecast` is asked of a job that is not submitted yet, and the longest question in bytes.
SOCKET_NAME, MOST_QUESTION = "forecast.sock", 4096
#: Of the file's form; another one is not read.
FORM = 1
#: A forecast older than this tells nothing any more, in seconds.
STALE_S = 600.0
#: More jobs than these are not looked up one by one.
_FEW = 500

Row = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """A forecast, or why there is none."""

    #: of what moment it is, and how far it goes, in unix seconds; how it was made
    meta: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[int, Row] = field(default_factory=dict)
    trouble: str = ""


def write(folder: Path, meta: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Put a new forecast in the old one's place. OSError or sqlite3.Error: the old one is still there."""
    path, new = folder / FILE_NAME, folder / f"{FILE_NAME}.new"
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=OFF")
            db.execute("BEGIN")
            db.execute("CREATE TABLE meta (form INTEGER NOT NULL, told TEXT NOT NULL)")
            db.execute("CREATE TABLE jobs (job_id INTEGER PRIMARY KEY, told TEXT NOT NULL)")
            db.execute("INSERT INTO meta VALUES (?, ?)", (FORM, json.dumps(meta)))
            texts = ((row["job_id"], json.dumps(row)) for row in rows)
            db.executemany("INSERT INTO jobs VALUES (?, ?)", texts)
            db.execute("COMMIT")
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def read(folder: Path, now_s: float, job_ids: Collection[int] | None = None) -> Told:
    """Return what was foretold of these jobs (None: of all), or what is wrong; nothing is raised."""
    path = folder / FILE_NAME
    if not path.exists():
        return Told(trouble="none was made yet: `gandiva forecast` makes one each half minute")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as db:
            form, text = db.execute("SELECT form, told FROM meta").fetchone()
            if form != FORM:
                return Told(trouble=f"it was made by another release (form {form}, this one reads {FORM})")
            meta = dict(json.loads(text))
            age_s = now_s - float(meta["of_s"])
            if age_s > STALE_S:
                return Told(trouble=f"the last is {age_s:.0f} s old: is `gandiva forecast` running?")
            rows = {job_id: dict(json.loads(told)) for job_id, told in _rows(db, job_ids)}
    except (sqlite3.Error, AttributeError, KeyError, TypeError, ValueError, RecursionError) as err:
        return Told(trouble=f"its file cannot be read: {err}")
    return Told(meta | {"age_s": max(0.0, age_s)}, rows)


def brief(told: Told, job_id: int) -> Row | None:
    """Return what is foretold of one job, for its row of the queue; None: nothing."""
    row = told.rows.get(job_id)
    return row and {name: row.get(name) for name in ("turn", "start", "end")} | {
        "why": str(row.get("why", "")), "of_s": told.meta["of_s"], "reached_s": told.meta.get("reached_s"),
    }  # fmt: skip


def _rows(db: sqlite3.Connection, job_ids: Collection[int] | None) -> list[tuple[int, str]]:
    query = "SELECT job_id, told FROM jobs"
    if job_ids is None or len(job_ids) > _FEW:
        wanted = None if job_ids is None else frozenset(job_ids)
        return [row for row in db.execute(query) if wanted is None or row[0] in wanted]
    marks = ",".join("?" * len(job_ids))
    return db.execute(f"{query} WHERE job_id IN ({marks})", [*job_ids]).fetchall()
