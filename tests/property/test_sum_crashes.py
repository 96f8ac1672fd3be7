"""Each hold is charged once, whatever happens around the sums of its day and the removal of single holds.

Weeks of a node whose own ledger is killed, loses files and power; its reports reach the accounts late, twice,
in another order, or cut off in the midst of being written. The accounts begin in the form of the release
before.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.accounting import upkeep
from gandiva_slurm.accounting.database import Transaction, open_database, open_reader
from gandiva_slurm.accounting.days import NS_PER_S, local_day
from gandiva_slurm.accounting.ledger import MIGRATIONS
from gandiva_slurm.accounting.ledger import Ledger as Accounts
from gandiva_slurm.accounting.parts import Window, parts_in
from gandiva_slurm.accounting.queries import holds_in
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.property.test_hold_crashes import Day
from tests.slow import DRAWN, drawn

HOUR = 3600 * NS_PER_S
BEGIN = 1_790_000_000 * NS_PER_S + 1
JOBS = 3
#: Days for which single holds are kept here.
KEPT = 1
#: The schema before sums.
BEFORE = 6

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(1, JOBS)),
        st.tuples(st.just("pack"), st.integers(1, JOBS)),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.sampled_from(("acknowledge", "sync", "kill", "unreadable")), st.just(0)),
        st.tuples(st.sampled_from(("build", "upgrade", "reopen")), st.just(0)),
        st.tuples(st.sampled_from(("deliver", "tidy")), st.integers(0, 9)),
        st.tuples(st.sampled_from(("deliver_cut", "tidy_cut", "deliver_full")), st.integers(0, 30)),
        st.tuples(st.just("power"), st.integers(0, 400)),
    ),
    min_size=10,
    max_size=60,
)


class Former:
    """The accounts as the release before wrote them."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, MIGRATIONS[:BEFORE])

    def record_report(self, report: NodeReport) -> int:
        """Write holds that are not there."""
        with Transaction(self._db) as db:
            for hold in report.holds:
                times = (hold.t0_ns, hold.t1_ns, hold.park_ns, hold.shared_with)
                row = (report.node, report.boot, hold.seq, None, hold.job_id, hold.restart, hold.user, "0", 1)
                known = "SELECT 1 FROM holds WHERE node = ? AND job_id = ? AND restart = ? AND t0_ns = ?"
                key = (report.node, hold.job_id, hold.restart, hold.t0_ns)
                if hold.seq and not db.execute(known, key).fetchone():
                    db.execute(f"INSERT INTO holds VALUES ({', '.join('?' * 13)})", row + times)
        return max([0, *(hold.seq for hold in report.holds)])

    def tidy(self, now_ns: int, keep_days: int) -> bool:
        """It never removed anything."""
        return False

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@dataclass
class Weeks(Day):
    """The node's days with what it sends, and a plain list of what the accounts took."""

    built: list[NodeReport] = field(default_factory=list)
    #: (job, begin) -> the hold, as it was taken first
    taken: dict[tuple[int, int], Hold] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.directory / "ledger.sqlite"

    def pack(self, job: int) -> None:
        """From now on it holds its GPU with the next job, or alone again."""
        hold = self.ledger.open.get(JobKey(job, 0))
        if hold is not None:
            self.truth[job, hold.t0_ns] = self.now
            self.ledger.share(JobKey(job, 0), 0 if hold.shared_with else job % JOBS + 1, self.now)
            self.truth[job, self.now] = 0
            self.save()

    def wait(self, hours: int) -> None:
        self.now += hours * HOUR

    def build(self, _: int) -> None:
        """A report is on its way."""
        holds = self.ledger.report(self.now)
        self.built.append(NodeReport("n1", self.ledger.boot, self.now, 0, 0, 1, (), holds, ()))

    def deliver(self, ago: int) -> None:
        """A report comes: the last that was built, or one of those before it."""
        if self.built:
            report = self.built[max(0, len(self.built) - 1 - ago)]
            self.up_to = self.accounts.record_report(report)
            self.seen = report
            for hold in report.holds:
                if hold.seq:
                    self.taken.setdefault((hold.job_id, hold.t0_ns), hold)

    def tidy(self, pieces: int) -> None:
        while self.accounts.tidy(self.now, KEPT) and pieces:
            pieces -= 1

    def deliver_cut(self, moment: int) -> None:
        """The controller is killed while it writes a report."""
        with self.cut_after(moment):
            self.deliver(0)
        self.reopen(0)

    def tidy_cut(self, moment: int) -> None:
        with self.cut_after(moment):
            self.tidy(9)
        self.reopen(0)

    def deliver_full(self, ago: int) -> None:
        """The disk is full while a report is written; the controller lives on."""
        (pages,) = self.accounts._db.execute("PRAGMA page_count").fetchone()
        self.accounts._db.execute(f"PRAGMA max_page_count = {pages}")
        try:
            self.deliver(ago)
        except sqlite3.OperationalError as err:
            assert "full" in str(err)
        self.accounts._db.execute("PRAGMA max_page_count = 1000000")

    @contextmanager
    def cut_after(self, moment: int) -> Iterator[None]:
        """SQLite is stopped after this number of times forty instructions of its machine."""
        ticks = iter(range(moment))
        self.accounts._db.set_progress_handler(lambda: next(ticks, None) is None, 40)
        try:
            yield
        except sqlite3.OperationalError as err:
            assert "interrupted" in str(err)

    def upgrade(self, _: int) -> None:
        self.accounts.close()
        self.accounts = Accounts(self.path)

    def reopen(self, _: int) -> None:
        made = type(self.accounts)
        self.accounts.close()
        self.accounts = made(self.path)

    def end(self) -> None:
        """All that was held is reported, and the accounts are of today's form."""
        for key in list(self.ledger.open):
            self.turn(key.job_id)
        self.upgrade(0)
        self.build(0)
        self.deliver(0)

    def told(self, start_ns: int, end_ns: int) -> dict[tuple[int, int], tuple[int, int]]:
        """(job, mate) -> what the accounts say it held in a window, and of it while parking."""
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        with closing(open_reader(self.path)) as db:
            for part in parts_in(db, Window(start_ns, end_ns, self.now)):
                held, parking = sums.get((part.job_id, part.shared_with), (0, 0))
                sums[part.job_id, part.shared_with] = (held + part.held_ns, parking + part.parking_ns)
        return {key: value for key, value in sums.items() if any(value)}

    def really(self, start_ns: int, end_ns: int) -> dict[tuple[int, int], tuple[int, int]]:
        """The same of the plain list of holds."""
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        window = Window(start_ns, end_ns, self.now)
        for hold in self.taken.values():
            parked_ns = max(hold.t0_ns, hold.t1_ns - hold.park_ns)
            held, parking = sums.get((hold.job_id, hold.shared_with), (0, 0))
            held += window.cut(hold.t0_ns, hold.t1_ns)
            parking += window.cut(parked_ns, hold.t1_ns)
            sums[hold.job_id, hold.shared_with] = (held, parking)
        return {key: value for key, value in sums.items() if any(value)}

    def check(self, random_ns: list[int]) -> None:
        """Each window says what the holds say: over midnights, and anywhere where single holds are kept."""
        (kept_from_ns,) = self.accounts._db.execute("SELECT kept_from_ns FROM upkeep").fetchone()
        midnights, day_ns = [], local_day(BEGIN)[0]
        while day_ns <= self.now:
            midnights.append(day_ns)
            day_ns = local_day(day_ns)[1]
        moments = [BEGIN + part * (self.now - BEGIN) // 1000 for part in random_ns]
        moments = [moment for moment in moments if moment >= kept_from_ns]
        edges = sorted({0, *midnights[-4:], *midnights[:4], *moments, self.now, 1 << 62})
        for edge, other in combinations(edges, 2):
            assert self.told(edge, other) == self.really(edge, other), (edge, other)
        with closing(open_reader(self.path)) as db:
            listed = {(row["job_id"], row["t0_ns"]): row["t1_ns"]
                      for row in holds_in(db, Window(kept_from_ns, 1 << 62, self.now), ())}  # fmt: skip
        taken = {key: hold.t1_ns for key, hold in self.taken.items() if hold.t1_ns > kept_from_ns}
        assert listed == taken, "single holds that are kept"


@contextmanager
def some_weeks() -> Iterator[Weeks]:
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(upkeep, "PIECE", 3):
        accounts = Former(Path(directory) / "ledger.sqlite")
        weeks = Weeks(Path(directory), accounts, now=BEGIN, safe=(0, None, BEGIN))  # type: ignore[arg-type]
        yield weeks
        weeks.accounts.close()


@DRAWN
@settings(max_examples=drawn(400), deadline=None)
@given(STEPS, st.lists(st.integers(0, 1000), max_size=3))
def test_a_hold_is_charged_once_around_sums_and_removal(
    steps: list[tuple[str, int]], parts: list[int]
) -> None:
    with some_weeks() as weeks:
        for name, number in steps:
            weeks.now += 10
            getattr(weeks, name)(number)
        weeks.now += 10
        weeks.end()
        weeks.check(parts)
        weeks.tidy(10_000)
        weeks.check(parts)
        for ago in range(len(weeks.built)):
            weeks.deliver(ago)
        weeks.check(parts)
        charged = sum(held for held, _ in weeks.told(0, 1 << 62).values())
        held = sum(end - begin for (_, begin), end in weeks.truth.items())
        assert held - weeks.lost <= charged <= held
