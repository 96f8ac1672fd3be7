"""What was held in a window of time, from the sums of days and, where the window cuts a day, from holds.

A window is the days that begin in it, and the rest of the day in which it begins, less the rest of that in
which it ends. A rest is found by the ends of holds, so that "until now" reads none. Sums and holds agree to
the nanosecond: nothing is rounded before all is summed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gandiva_slurm.accounting.days import NS_PER_S
from gandiva_slurm.model.errors import UsageError


@dataclass(frozen=True)
class Window:
    """The time asked for; `now_ns` ends what has no end yet."""

    start_ns: int
    end_ns: int
    now_ns: int

    def cut(self, t0_ns: int, t1_ns: int) -> int:
        """Return how much of an interval lies inside."""
        return max(0, min(t1_ns, self.end_ns) - max(t0_ns, self.start_ns))


class Part(NamedTuple):
    """What one incarnation of a job held with one mate (0: alone), in GPU nanoseconds, undivided."""

    ref: int
    job_id: int
    restart: int
    user: str
    shared_with: int
    held_ns: int
    #: of it, after an order to park
    parking_ns: int

    @property
    def halves(self) -> int:
        """What is charged for it, in half GPU nanoseconds: two that share a GPU pay half of it each."""
        return self.held_ns * (1 if self.shared_with else 2)

    @property
    def parking_halves(self) -> int:
        """What is charged for the part after an order to park, likewise."""
        return self.parking_ns * (1 if self.shared_with else 2)


_HELD = "(min(t1_ns, :to) - max(t0_ns, :from)) * gpu_count"
_PARKING = "max(0, min(t1_ns, :to) - max(t0_ns, :from, t1_ns - park_ns)) * gpu_count"
_OF_HOLDS = f"""SELECT coalesce(ref, 0), job_id, restart, user, shared_with,
    :sign * sum({_HELD}), :sign * sum({_PARKING}) FROM holds"""
_GROUPED = "GROUP BY 1, 2, 3, 4, 5"
_OF_SUMS = "SELECT sums.ref, sums.job_id, sums.restart, sums.user, shared_with"
_PICKED = """json_each(:refs) AS picked CROSS JOIN jobs ON jobs.ref = picked.value
    CROSS JOIN sums ON sums.job_id = jobs.job_id WHERE sums.ref = jobs.ref"""


def parts_in(db: sqlite3.Connection, window: Window, refs: Iterable[int] | None = None) -> Iterator[Part]:
    """Yield what was held in a window, each part in one piece or several, some of them negative.

    `refs` are the jobs whose sums are read, None: all, and holds of jobs not seen yet; of others there may be
    pieces, too. UsageError where the window begins or ends within a day of which single holds are no longer
    kept.
    """
    values = {"from": window.start_ns, "to": window.end_ns, "sign": 1, "refs": json.dumps([*(refs or ())])}
    if refs is not None:
        query = f"{_OF_SUMS}, held_ns, parking_ns FROM {_PICKED} AND +day_ns >= :from AND +day_ns < :to"
    else:
        query = f"{_OF_SUMS}, sum(held_ns), sum(parking_ns) FROM sums"
        query += f" WHERE day_ns >= :from AND day_ns < :to {_GROUPED}"
    yield from map(Part._make, db.execute(query, values))
    yield from _rest(db, window.start_ns, 1)
    yield from _rest(db, window.end_ns, -1)
    if not _is_summed(db):
        touches = "t1_ns > :from AND t0_ns < :to"
        if refs is not None:
            picked = "SELECT job_id FROM jobs WHERE ref IN (SELECT value FROM json_each(:refs))"
            touches = f"+t1_ns > :from AND +t0_ns < :to AND job_id IN ({picked})"
        query = f"{_OF_HOLDS} WHERE is_long IS NULL AND {touches} {_GROUPED}"
        yield from map(Part._make, db.execute(query, values))


def _rest(db: sqlite3.Connection, at_ns: int, sign: int) -> Iterator[Part]:
    """Yield what was held from a moment to the end of its day; nothing where a day begins at that moment."""
    end_ns = _day_end(db, at_ns)
    if end_ns is None:
        return
    require_kept(db, at_ns)
    times = {"from": at_ns, "to": end_ns, "sign": sign}
    for which in _ENDING_LATER:
        yield from map(Part._make, db.execute(f"{_OF_HOLDS} WHERE {which} {_GROUPED}", times))


#: Of holds that touch the time from :from to :to, the end of its day: those that end on it, and the others.
_ENDING_LATER = (
    "t1_ns > :from AND t1_ns <= :to AND is_long IS NOT NULL",
    "is_long = 1 AND t1_ns > :to AND t0_ns < :to",
)


def closed_holds(db: sqlite3.Connection, window: Window) -> Iterator[Mapping[str, Any]]:
    """Yield the holds in the file that touch the window, whole; UsageError where they are no longer kept."""
    require_kept(db, window.start_ns)
    last_ns = _day_end(db, window.end_ns) or window.end_ns
    times = {"from": window.start_ns, "end": window.end_ns, "last": last_ns}
    conditions = [
        "t1_ns > :from AND t1_ns <= :last AND t0_ns < :end AND is_long IS NOT NULL",
        "is_long = 1 AND t1_ns > :last AND t0_ns < :end",
    ]
    if not _is_summed(db):
        conditions.append("is_long IS NULL AND t1_ns > :from AND t0_ns < :end")
    for condition in conditions:
        yield from db.execute(f"SELECT * FROM holds WHERE {condition}", times)


def last_end(db: sqlite3.Connection) -> str:
    """Return SQL for when a run, of `runs` joined with `jobs`, released its GPUs last; 0: it held none."""
    of_run = "job_id = jobs.job_id AND restart = runs.restart"
    ends = f"(SELECT max(ended_ns) FROM sums WHERE {of_run} AND sums.ref = runs.ref)"
    if _is_summed(db):
        return f"coalesce({ends}, 0)"
    unsummed = f"(SELECT max(t1_ns) FROM holds WHERE {of_run} AND holds.ref = runs.ref)"
    return f"max(coalesce({ends}, 0), coalesce({unsummed}, 0))"


def require_kept(db: sqlite3.Connection, at_ns: int) -> None:
    """UsageError where single holds of that moment have been removed."""
    (kept_from_ns,) = db.execute("SELECT kept_from_ns FROM upkeep").fetchone()
    if at_ns < kept_from_ns:
        at, since = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(each // NS_PER_S))
                     for each in (at_ns, kept_from_ns))  # fmt: skip
        text = f"{at}: before {since} GPU time is kept by day"
        raise UsageError(f"{text} (controller.keep_holds_days); begin and end at a midnight of gandivactld's")


def _day_end(db: sqlite3.Connection, at_ns: int) -> int | None:
    """Return when the day ends that a moment lies in, but not begins; None: there is none."""
    query = "SELECT end_ns FROM days WHERE start_ns < ?1 AND end_ns > ?1 ORDER BY start_ns DESC LIMIT 1"
    row = db.execute(query, (at_ns,)).fetchone()
    return row and int(row[0])


def _is_summed(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT is_summed FROM upkeep").fetchone()[0])
