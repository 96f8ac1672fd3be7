"""Sums by day: the same answers as from holds, without them; days, upkeep, files of the release before."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.accounting import queries, upkeep
from gandiva_slurm.accounting.database import open_database, open_reader
from gandiva_slurm.accounting.days import local_day
from gandiva_slurm.accounting.fairness import user_shares
from gandiva_slurm.accounting.ledger import MIGRATIONS, Ledger, Tickets
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, OpenHold, held_by_job, holds_in, job_usage
from gandiva_slurm.model.errors import ConfigError, UsageError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.slow import DRAWN, drawn

NS, HOUR, DAY = 10**9, 3600, 86400
#: the schema before sums
BEFORE = 6


@contextmanager
def zone(name: str) -> Iterator[None]:
    """In another time zone."""
    with mock.patch.dict(os.environ, TZ=name):
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    """Where the clocks go back on the second day."""
    with zone("Europe/Berlin"):
        yield


def midnight(day: int) -> int:
    """A local midnight, unix seconds; day 0 is the Saturday before the clocks go back."""
    return int(time.mktime((2026, 10, 24 + day, 0, 0, 0, 0, 0, -1)))


def a_job(job_id: int, start_s: int = 0, end_s: int = 0, **changes: Any) -> SlurmJob:
    state = "COMPLETED" if end_s else "RUNNING" if start_s else "PENDING"
    user, times = f"user{job_id % 2}", {"submit_s": midnight(0) - 90, "start_s": start_s, "end_s": end_s}
    told = {"nodes": ("n1",), "options": JobOptions(gpus=3), **times}
    return replace(SlurmJob(job_id, user, 1, "lab", "gandiva", state, **told), **changes)


def report(*holds: Hold, node: str = "n1", boot: str = "b") -> NodeReport:
    return NodeReport(node, boot, 0, 0, 0, 4, (), holds, ())


def a_hold(seq: int, job_id: int, t0_ns: int, t1_ns: int, park_ns: int = 0, mate: int = 0) -> Hold:
    return Hold(seq, job_id, 0, f"user{job_id % 2}", (0, 1, 2), t0_ns, t1_ns, park_ns, mate)


def answers(path: Path, windows: list[Window]) -> list[object]:
    """All that is asked of the ledger, in each of these windows."""
    now_ns = windows[0].now_ns
    going = OpenHold("n1", JobKey(1, 0), "user1", (0,), now_ns - 3 * DAY * NS, now_ns - 1, 7, 2)
    told: list[object] = []
    with closing(open_reader(path)) as db:
        for window in windows:
            told += [job_usage(db, window, Filter(is_cut=is_cut), [going]) for is_cut in (True, False)]
            told.append(job_usage(db, window, Filter(frozenset({2})), ()))
            told.append(job_usage(db, window, Filter(users=frozenset({"user1"})), ()))
            told += [held_by_job(db, window, [going]), user_shares(db, window, 4, [going])]
    return told


#: (job, node, begin and length in parts of an hour, parked at the end, mate)
HOLDS = st.lists(
    st.tuples(
        *(st.integers(1, 4), st.integers(1, 2), st.integers(0, 700), st.integers(0, 300)),
        *(st.integers(0, 90), st.sampled_from((0, 0, 1, 2))),
    ),
    max_size=25,
    unique_by=lambda hold: hold[:3],
)


@DRAWN
@settings(max_examples=drawn(100), deadline=None)
@given(HOLDS)
def test_sums_answer_as_holds_do(tmp_path_factory: pytest.TempPathFactory, drawn_holds: list[Any]) -> None:
    """Of days whose single holds are gone, over the end of summer time, to the nanosecond."""
    path = tmp_path_factory.mktemp("sums") / "ledger.sqlite"
    with closing(Ledger(path)) as ledger:
        ledger.record_tickets([Tickets(f"user{n}", "lab", 100, 0.5) for n in range(2)], 1)
        ledger.record_jobs([a_job(n, midnight(0), midnight(3) * (n == 2)) for n in (1, 2, 3)], {"n1": "v100"})
        for seq, (job, node, begin, length, parked, mate) in enumerate(drawn_holds, 1):
            t0_ns = midnight(0) * NS + begin * HOUR * NS // 7
            hold = a_hold(seq, job, t0_ns, t0_ns + length * HOUR * NS // 7, parked * HOUR * NS // 7, mate)
            ledger.record_report(report(hold, node=f"n{node}"))
        ledger.record_jobs([a_job(4, midnight(1))], {})
        moments = [0, *(midnight(day) * NS for day in range(-1, 8)), midnight(8) * NS]
        windows = [Window(*pair, midnight(8) * NS) for pair in combinations(moments, 2)]
        before = answers(path, windows)
        late = report(a_hold(99, 9, (midnight(40) - 9) * NS, (midnight(40) - 8) * NS))
        ledger.record_report(late)
        while ledger.tidy(midnight(40) * NS, 30):
            pass
        assert ledger._db.execute("SELECT seq FROM holds").fetchall() == [(99,)], "single holds are gone"
        assert answers(path, windows) == before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def held_ns(path: Path, start_s: int, end_s: int) -> int:
    with closing(open_reader(path)) as db:
        held = held_by_job(db, Window(start_s * NS, end_s * NS, end_s * NS), ())
    return sum(held.values())


def filled(path: Path) -> Ledger:
    """A hold of an hour each noon of fifty days."""
    ledger = Ledger(path)
    ledger.record_jobs([a_job(1, midnight(0))], {"n1": "v100"})
    for day in range(50):
        ledger.record_report(report(noon_hold(day)))
    return ledger


def noon_hold(day: int) -> Hold:
    t0_ns = (midnight(day) + 12 * HOUR) * NS
    return a_hold(day + 1, 1, t0_ns, t0_ns + HOUR * NS)


def test_single_holds_are_removed_after_the_days_kept_and_their_sums_stay(path: Path) -> None:
    with closing(filled(path)) as ledger, mock.patch.object(upkeep, "PIECE", 5):
        now_ns = midnight(50) * NS
        pieces = [ledger.tidy(now_ns, 30) for _ in range(9)]
        assert pieces == [True] * 3 + [False] * 6, "some at a time"
        (count,) = ledger._db.execute("SELECT count(*) FROM holds").fetchone()
        assert count == 31, "thirty whole days, and the one in which the newest ended"
        assert held_ns(path, 0, midnight(50)) == 50 * 3 * HOUR * NS
        for day in (0, 18, 19, 49):
            assert held_ns(path, midnight(day), midnight(day + 1)) == 3 * HOUR * NS


def test_a_part_of_a_day_is_told_while_its_holds_are_kept_and_refused_after(path: Path) -> None:
    with closing(filled(path)) as ledger:
        assert held_ns(path, midnight(3), midnight(3) + 12 * HOUR + 60) == 3 * 60 * NS
        ledger.tidy(midnight(50) * NS, 30)
        for start_s, end_s in ((midnight(3), midnight(3) + 12 * HOUR), (midnight(3) + 1, midnight(50))):
            with pytest.raises(UsageError, match=r"before 2026-.*keep_holds_days.*midnight"):
                held_ns(path, start_s, end_s)
        assert held_ns(path, midnight(40), midnight(40) + 12 * HOUR + 60) == 3 * 60 * NS
        with closing(open_reader(path)) as db:
            with pytest.raises(UsageError, match="keep_holds_days"):
                holds_in(db, Window(midnight(3) * NS, midnight(9) * NS, 0), ())
            assert len(holds_in(db, Window(midnight(30) * NS, midnight(40) * NS, 0), ())) == 10


def test_a_removed_hold_that_comes_again_is_not_charged_and_a_late_one_is(path: Path) -> None:
    with closing(filled(path)) as ledger:
        ledger.tidy(midnight(50) * NS, 30)
        again = [replace(noon_hold(day), seq=100 + day) for day in range(50)]
        assert ledger.record_report(report(*again, boot="b2")) == 149, "they are safe"
        assert held_ns(path, 0, midnight(50)) == 50 * 3 * HOUR * NS
        longer = replace(again[3], seq=201, t1_ns=again[3].t1_ns + 30 * DAY * NS)
        ledger.record_report(report(longer, boot="b2"))
        assert held_ns(path, 0, midnight(50)) == 50 * 3 * HOUR * NS, "nor one that ended anew, later"
        late = replace(again[3], seq=202, t0_ns=again[3].t1_ns, t1_ns=again[3].t1_ns + NS)
        for boot in ("b2", "b3"):
            ledger.record_report(report(late, boot=boot))
            ledger.tidy(midnight(50) * NS, 30)
        other = replace(again[3], seq=203, job_id=2, user="user0")
        ledger.record_report(report(other, boot="b2"))
        assert held_ns(path, 0, midnight(50)) == (51 * 3 * HOUR + 3) * NS


def test_a_clock_that_is_ahead_removes_nothing(path: Path) -> None:
    with closing(filled(path)) as ledger:
        assert not ledger.tidy(midnight(5000) * NS, 60)
        assert len(ledger._db.execute("SELECT * FROM holds").fetchall()) == 50


def test_a_full_disk_stops_upkeep_and_writing_and_loses_nothing(path: Path) -> None:
    with closing(filled(path)) as ledger:
        (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        holds = [replace(noon_hold(day), seq=day + 1) for day in range(50, 450)]
        with pytest.raises(sqlite3.OperationalError, match="full"):
            ledger.record_report(report(*holds))
        assert held_ns(path, 0, midnight(900)) == 50 * 3 * HOUR * NS
        ledger.tidy(midnight(50) * NS, 30)
        ledger._db.execute("PRAGMA max_page_count = 1000000")
        assert ledger.record_report(report(*holds)) == 450
        assert held_ns(path, 0, midnight(900)) == 450 * 3 * HOUR * NS
        assert held_ns(path, midnight(60), midnight(61)) == 3 * HOUR * NS
        assert held_ns(path, midnight(60), midnight(60) + 12 * HOUR + 9) == 27 * NS, "its day is known"


def former(path: Path, count: int) -> None:
    """A file of the release before: a hold of an hour from each noon, the eleventh two days longer."""
    with closing(open_database(path, MIGRATIONS[:BEFORE])) as db:
        for day in range(count):
            hold = noon_hold(day)
            end_ns = hold.t1_ns + (2 * DAY * NS if day == 10 else 0)
            row = ("n1", "b", day + 1, None, 1, 0, "user1", "0,1,2", 3, hold.t0_ns, end_ns, 0, 0)
            db.execute(f"INSERT INTO holds VALUES ({', '.join('?' * 13)})", row)


def test_a_file_of_the_release_before_answers_at_once_and_is_summed_in_pieces(path: Path) -> None:
    former(path, 50)
    moments = [0, midnight(0) + 50, *(midnight(day) for day in (0, 10, 11, 12, 13, 49, 50))]
    moments += [midnight(11) + 7, midnight(49) + 12 * HOUR + 7]
    windows = [Window(a * NS, b * NS, midnight(50) * NS) for a, b in combinations(sorted(moments), 2)]
    with closing(Ledger(path)) as ledger, mock.patch.object(upkeep, "PIECE", 7):
        ledger.record_jobs([a_job(1, midnight(0))], {})
        before = answers(path, windows)
        (row,) = before[1]  # type: ignore[misc]
        assert row["gpu_held_s"] == pytest.approx(3 * (50 * HOUR + 2 * DAY) + 3 * DAY / 2)
        assert held_ns(path, 0, midnight(60)) == 3 * (50 * HOUR + 2 * DAY) * NS
        pieces = 0
        while ledger.tidy(midnight(50) * NS, 300):
            assert answers(path, windows) == before, "while it is summed"
            again, new = replace(noon_hold(3), seq=1), replace(noon_hold(60 + pieces), seq=2)
            ledger.record_report(report(again, new, boot=f"c{pieces}"))
            pieces += 1
        assert 8 <= pieces < 11 and answers(path, windows) == before
        assert held_ns(path, midnight(60), midnight(99)) == pieces * 3 * HOUR * NS
        (count,) = ledger._db.execute("SELECT count(*) FROM holds WHERE is_long IS NULL").fetchone()
        assert count == 0
        ledger.tidy(midnight(50) * NS, 30)
    with pytest.raises(ConfigError, match=f"schema {len(MIGRATIONS)}, this gandiva knows {BEFORE}"):
        open_database(path, MIGRATIONS[:BEFORE])


def test_days_stay_as_they_are_when_the_time_zone_changes(path: Path) -> None:
    for number, name in enumerate(("Europe/Berlin", "Asia/Kolkata", "America/Los_Angeles", "UTC")):
        with zone(name), closing(Ledger(path)) as ledger:
            ledger.record_jobs([a_job(1, midnight(0))], {})
            for part in range(20):
                t0_ns = (1_793_000_000 + (number * 130 + part * 7) * HOUR) * NS + number
                ledger.record_report(report(a_hold(part + 1, 1, t0_ns, t0_ns + 9 * HOUR * NS), boot=name))
    with closing(sqlite3.connect(path)) as db:
        days = db.execute("SELECT start_ns, end_ns FROM days ORDER BY 1").fetchall()
        (count,) = db.execute("SELECT count(*) FROM holds").fetchone()
    assert all(one[1] <= two[0] for one, two in pairwise(days))
    assert held_ns(path, 0, 1_900_000_000) == count * 3 * 9 * HOUR * NS and count == 80


def test_a_pack_s_half_nanoseconds_are_kept_until_all_is_summed(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.record_jobs([a_job(1, midnight(0))], {})
        hold = replace(a_hold(1, 1, midnight(1) * NS - 3, midnight(1) * NS + 4, mate=2), gpus=(0,))
        ledger.record_report(report(hold))
    with closing(open_reader(path)) as db:
        days = [Window(midnight(day) * NS, midnight(day + 1) * NS, midnight(9) * NS) for day in (0, 1)]
        rows = [job_usage(db, window, Filter(), ())[0] for window in days]
        assert [row["gpu_held_s"] for row in rows] == [1.5 / NS, 2 / NS]
        assert job_usage(db, days[0], Filter(is_cut=False), ())[0]["gpu_held_s"] == 3.5 / NS


@pytest.mark.parametrize("name", ["America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "Europe/Berlin"])
def test_a_day_has_the_moment_it_is_of_where_there_is_no_midnight(name: str) -> None:
    with zone(name):
        for hour in range(0, 24 * 400, 5):
            at_ns = (1_500_000_000 + hour * HOUR) * NS
            start_ns, end_ns = local_day(at_ns)
            assert start_ns <= at_ns < end_ns and 20 * HOUR * NS < end_ns - start_ns < 28 * HOUR * NS


def test_memory_does_not_grow_with_jobs_that_ended(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        for job_id in range(1, 2001):
            shown = [a_job(each, midnight(0)) for each in range(job_id, job_id + 3)]
            over = [a_job(each, midnight(0), midnight(1)) for each in range(max(1, job_id - 5), job_id)]
            ledger.record_jobs(shown + over, {})
            ledger.record_report(report(a_hold(job_id, max(1, job_id - 9), job_id * NS, job_id * NS + 9)))
        assert len(ledger._jobs) < 20
        (count,) = ledger._db.execute("SELECT count(*) FROM holds WHERE ref IS NULL").fetchone()
        assert count == 0, "a job that ended is known by the file"
        ledger.record_jobs([a_job(7, midnight(2), restart=1, submit_s=midnight(1))], {})
        (count,) = ledger._db.execute("SELECT count(*) FROM jobs WHERE job_id = 7").fetchone()
        assert count == 1, "a requeue"
    with closing(Ledger(path)) as again:
        assert len(again._jobs) < 20


def test_more_jobs_than_an_answer_holds_are_refused_with_advice(path: Path) -> None:
    with closing(Ledger(path)) as ledger, mock.patch.object(queries, "MOST_JOBS", 3):
        ledger.record_jobs([a_job(n) for n in range(1, 6)], {})
        window = Window(0, midnight(9) * NS, midnight(9) * NS)
        with closing(open_reader(path)) as db:
            with pytest.raises(UsageError, match="more than 3 jobs; ask for less time"):
                job_usage(db, window, Filter(), ())
            assert len(job_usage(db, window, Filter(users=frozenset({"user1"})), ())) == 3
            assert len(job_usage(db, window, Filter(frozenset({2, 4})), ())) == 2
