"""Sums of holds by day, written with each hold: they stay when single holds are removed (ADR 0041).

A day is the local one of gandivactld when its first hold came. It never changes after that, and days do not
overlap, whatever becomes of the time zone. Sums are undivided GPU nanoseconds: of what two jobs share each is
charged half, after all is summed.
"""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

NS_PER_S = 1_000_000_000

#: Of a job's holds on a node that began on a day, the one that began last is noted: a node tells of them in
#: their order, so that one which is told again when it has been removed is known by it.
_ADD = """INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    held_ns = held_ns + excluded.held_ns, parking_ns = parking_ns + excluded.parking_ns,
    begun_ns = max(begun_ns, excluded.begun_ns), ended_ns = max(ended_ns, excluded.ended_ns)"""
_NEWEST = "SELECT max(begun_ns) FROM sums WHERE job_id = ? AND restart = ? AND node = ? AND day_ns = ?"


class HoldRow(NamedTuple):
    """A row of `holds`, but for `is_long`."""

    node: str
    boot: str
    seq: int
    ref: int | None
    job_id: int
    restart: int
    user: str
    gpus: str
    gpu_count: int
    t0_ns: int
    t1_ns: int
    park_ns: int
    shared_with: int


class Days:
    """The days that have sums, and the sums. All that it writes belongs to the caller's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._starts: list[int] = []
        self._ends: list[int] = []
        #: the day asked for last
        self._last = (0, 0)
        self.load()

    def load(self) -> None:
        """Read which days there are: at the start, and after a transaction that failed."""
        rows = self._db.execute("SELECT start_ns, end_ns FROM days ORDER BY start_ns").fetchall()
        self._starts, self._ends, self._last = [row[0] for row in rows], [row[1] for row in rows], (0, 0)

    def add(self, holds: Iterable[HoldRow]) -> None:
        """Add holds to the sums of the days they touch."""
        sums: dict[tuple[object, ...], tuple[int, ...]] = {}
        for hold in holds:
            whose = (hold.shared_with, hold.user, hold.ref or 0)
            parked_ns = max(hold.t0_ns, hold.t1_ns - hold.park_ns)
            for day_ns, from_ns, to_ns in self._pieces(hold.t0_ns, hold.t1_ns):
                key = (hold.job_id, hold.restart, hold.node, day_ns, *whose)
                held_ns, parking_ns, begun_ns, ended_ns = sums.get(key, (0, 0, 0, 0))
                held_ns += (to_ns - from_ns) * hold.gpu_count
                parking_ns += max(0, to_ns - max(from_ns, parked_ns)) * hold.gpu_count
                sums[key] = (held_ns, parking_ns, max(begun_ns, hold.t0_ns), max(ended_ns, hold.t1_ns))
        self._db.executemany(_ADD, [key + value for key, value in sums.items()])

    def is_long(self, hold: HoldRow) -> bool:
        """True when a hold touches more than one day."""
        return hold.t1_ns > self._day_of(hold.t0_ns)[1]

    def has(self, hold: HoldRow) -> bool:
        """True when the sums have this hold, or one of its job's on its node that began later that day."""
        day_ns, _ = self._day_of(hold.t0_ns)
        key = (hold.job_id, hold.restart, hold.node, day_ns)
        newest_ns = self._db.execute(_NEWEST, key).fetchone()[0]
        return newest_ns is not None and hold.t0_ns <= int(newest_ns)

    def _pieces(self, t0_ns: int, t1_ns: int) -> list[tuple[int, int, int]]:
        """Return (day, from, to) of each day that it touches; of a hold that took no time its day."""
        day_ns, end_ns = self._day_of(t0_ns)
        pieces = [(day_ns, t0_ns, max(t0_ns, min(t1_ns, end_ns)))]
        while end_ns < t1_ns:
            from_ns = end_ns
            day_ns, end_ns = self._day_of(from_ns)
            pieces.append((day_ns, from_ns, min(t1_ns, end_ns)))
        return pieces

    def _day_of(self, at_ns: int) -> tuple[int, int]:
        if not self._last[0] <= at_ns < self._last[1]:
            self._last = self._find(at_ns)
        return self._last

    def _find(self, at_ns: int) -> tuple[int, int]:
        place = bisect_right(self._starts, at_ns) - 1
        if place >= 0 and at_ns < self._ends[place]:
            return self._starts[place], self._ends[place]
        start_ns, end_ns = local_day(at_ns)
        if place >= 0:
            start_ns = max(start_ns, self._ends[place])
        if place + 1 < len(self._starts):
            end_ns = min(end_ns, self._starts[place + 1])
        self._db.execute("INSERT INTO days VALUES (?, ?)", (start_ns, end_ns))
        self._starts.insert(place + 1, start_ns)
        self._ends.insert(place + 1, end_ns)
        return start_ns, end_ns


def local_day(at_ns: int) -> tuple[int, int]:
    """Return the local midnights around a moment, in unix nanoseconds."""
    year, month, day = time.localtime(at_ns // NS_PER_S)[:3]
    start_s, end_s = (time.mktime((year, month, each, 0, 0, 0, 0, 0, -1)) for each in (day, day + 1))
    # Where the clocks change at midnight there may be none.
    return min(int(start_s) * NS_PER_S, at_ns), max(int(end_s) * NS_PER_S, at_ns + 1)
