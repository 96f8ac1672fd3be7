"""The ledger's upkeep, in small pieces: holds of a former release are summed, old single holds removed.

Each piece is a transaction: what a kill interrupts goes on at the next start.
"""

from __future__ import annotations

import sqlite3

from gandiva_slurm.accounting.database import Transaction
from gandiva_slurm.accounting.days import NS_PER_S, Days, HoldRow, local_day

#: Rows in a piece. The ledger is written by nobody else meanwhile: some 20 ms.
PIECE = 2000
DAY_NS = 86400 * NS_PER_S

_UNSUMMED = "SELECT * FROM holds WHERE (node, boot, seq) > (?, ?, ?) ORDER BY node, boot, seq LIMIT ?"
_SUMMED = "UPDATE holds SET is_long = ? WHERE node = ? AND boot = ? AND seq = ?"
_REMOVE = """DELETE FROM holds WHERE (node, boot, seq) IN
    (SELECT node, boot, seq FROM holds WHERE t1_ns < ? ORDER BY t1_ns LIMIT ?)"""


class Upkeep:
    """What is to be done is in the file, in one row of `upkeep`."""

    def __init__(self, db: sqlite3.Connection, days: Days) -> None:
        self._db, self._days = db, days
        #: of holds that began before, single ones may have been removed
        self.kept_from_ns, self._is_summed = self._read()

    def piece(self, now_ns: int, keep_days: int) -> bool:
        """Do a piece; True when there is more to do."""
        if not self._is_summed:
            self._sum_piece()
            return True
        return self._remove_piece(now_ns, keep_days)

    def _read(self) -> tuple[int, bool]:
        kept_from_ns, is_summed = self._db.execute("SELECT kept_from_ns, is_summed FROM upkeep").fetchone()
        return int(kept_from_ns), bool(is_summed)

    def _sum_piece(self) -> None:
        """Sum holds that a former release wrote; new ones among them are in the sums since they came."""
        try:
            with Transaction(self._db) as db:
                last = db.execute("SELECT node, boot, seq FROM upkeep").fetchone()
                rows = db.execute(_UNSUMMED, (*last, PIECE)).fetchall()
                holds = [HoldRow._make(values) for *values, is_long in rows if is_long is None]
                self._days.add(holds)
                db.executemany(_SUMMED, [(self._days.is_long(hold), *hold[:3]) for hold in holds])
                if len(rows) == PIECE:
                    db.execute("UPDATE upkeep SET node = ?, boot = ?, seq = ?", rows[-1][:3])
                else:  # what comes after these is new
                    db.execute("UPDATE upkeep SET is_summed = 1")
        except BaseException:
            self._days.load()
            raise
        self.kept_from_ns, self._is_summed = self._read()

    def _remove_piece(self, now_ns: int, keep_days: int) -> bool:
        """Remove holds that ended before the oldest of the days kept.

        Counted from the newest hold, so that a clock which is ahead removes nothing.
        """
        newest_ns = self._db.execute("SELECT max(t1_ns) FROM holds").fetchone()[0]
        if newest_ns is None:
            return False
        until_ns, _ = local_day(max(0, min(now_ns, int(newest_ns)) - keep_days * DAY_NS))
        until_ns = max(until_ns, self.kept_from_ns)
        with Transaction(self._db) as db:
            count = db.execute(_REMOVE, (until_ns, PIECE)).rowcount
            if count:
                db.execute("UPDATE upkeep SET kept_from_ns = ?", (until_ns,))
        self.kept_from_ns, self._is_summed = self._read()
        return count == PIECE
