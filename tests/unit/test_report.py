"""`gandiva report`: sums by account and user that are those of `gandiva acct`, and how they are written."""

import csv
import io
import json
import time
from dataclasses import replace

import pytest

from gandiva_slurm.accounting import report as sums
from gandiva_slurm.accounting.busy import WRITTEN_NS
from gandiva_slurm.accounting.ledger import Tickets
from gandiva_slurm.accounting.queries import Filter, OpenHold
from gandiva_slurm.accounting.report import usage_report
from gandiva_slurm.cli import main, report
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire.messages import Hold, NodeReport, Resident
from tests.unit.test_queries import NS, Book, span

NODE = NodeReport("n1", "b", 0, 0, 0, 4, (), (), ())
RESIDENT = Resident(7, 0, "RUNNING", (0, 1), 100 * NS, 0, 1, 1, 10, 1.0, 0, 0, 0, 0, "Running", "")


@pytest.fixture
def book(tmp_path):
    made = Book(tmp_path / "ledger.sqlite")
    yield made
    made.db.close()
    made.ledger.close()


def rows_of(book, window, open_holds=()):
    rows = report.grouped(usage_report(book.db, window, open_holds), ("account", "user"))
    return {(row["account"], row["user"]): row for row in rows}


def fill(book):
    """Two users of one account, a third of another; one pack, one that waits, one that goes on."""
    book.job(7, "user1", 2, start_s=100, end_s=200)
    book.hold(7, "user1", 2, 100, 120, park_s=4)
    book.hold(7, "user1", 2, 150, 160)
    book.job(8, "user2", 1, start_s=120, end_s=220)
    book.hold(8, "user2", 1, 121, 141, mate=9)
    book.job(9, "user3", 1, start_s=121, account="other")
    book.hold(9, "user3", 1, 121, 141, mate=8)
    book.job(10, "user2", 4)
    return [OpenHold("n1", JobKey(9, 0), "user3", (0,), 500 * NS, 530 * NS, 0)]


@pytest.mark.parametrize("window", [span(0, 1000), span(110, 155), span(118, 119), span(300, 600)])
def test_its_sums_are_those_of_acct(book, window):
    going = fill(book)
    used = book.usage(window, Filter(is_cut=True), going)
    told = rows_of(book, window, going)
    assert {whose for whose, row in told.items() if row["jobs"]} == {
        (row["account"], row["user"]) for row in used.values()
    }
    for (account, user), row in told.items():
        mine = [one for one in used.values() if (one["account"], one["user"]) == (account, user)]
        for name in ("held", "parked", "packed"):
            assert row[f"gpu_{name}_s"] == pytest.approx(sum(one[f"gpu_{name}_s"] for one in mine)), name
        assert row["gpu_held_s"] - row["gpu_parking_s"] == pytest.approx(sum(x["gpu_run_s"] for x in mine))


def test_exclusive_is_what_jobs_had_been_given(book):
    fill(book)
    told = rows_of(book, span(0, 1000))
    assert told["lab", "user1"]["gpu_exclusive_s"] == 200
    assert told["lab", "user1"]["gpu_held_s"] == 60
    assert rows_of(book, span(110, 155))["lab", "user1"]["gpu_exclusive_s"] == 90


def test_waiting_is_from_submission_to_the_first_start(book):
    fill(book)
    told = rows_of(book, span(0, 1000))
    # submitted at 90; 8 began at 120, 10 has not by 1000
    assert told["lab", "user2"]["waited_s"] == 30 + 910
    assert (told["lab", "user2"]["begun"], told["lab", "user2"]["began_s"]) == (1, 30)
    assert rows_of(book, span(130, 200))["lab", "user2"]["begun"] == 0


def test_entitled_is_the_share_by_tickets_over_the_window(book):
    fill(book)
    book.ledger.record_tickets([Tickets("user1", "lab", 100, 0.5)], 50 * NS)
    book.ledger.record_tickets([Tickets("user1", "lab", 300, 0.75)], 200 * NS)
    assert rows_of(book, span(100, 300))["lab", "user1"]["entitled"] == pytest.approx(0.625)
    assert rows_of(book, span(0, 100))["lab", "user1"]["entitled"] == pytest.approx(0.5)
    assert rows_of(book, span(0, 100))["lab", "user2"]["entitled"] is None


def test_too_many_jobs_are_refused(book, monkeypatch):
    fill(book)
    monkeypatch.setattr(sums, "MOST_JOBS", 3)
    with pytest.raises(UsageError, match="more than 3 jobs; ask for less time"):
        usage_report(book.db, span(0, 1000), ())


# what NVML sees


def hear(book, percent, held_s, **changes):
    resident = replace(RESIDENT, gpu_percent=percent, gpu_ns=held_s * NS, **changes)
    book.ledger.record_report(replace(NODE, residents=(resident,)))


def seen(book):
    row = book.usage(span(0, 1000))[7]
    return row["gpu_seen_s"], row["gpu_busy_s"]


def test_what_was_held_counts_as_busy_as_nvml_saw_it(book):
    book.job(7, "user1", 2, start_s=100)
    for percent, held_s in ((50, 10), (50, 110), (100, 160), (-1, 300), (0, 400)):
        hear(book, percent, held_s)
    book.ledger.record_report(NODE)  # it is gone
    # 100 s half busy, 50 s busy, 140 s not looked at, 100 s idle; the first 10 s were not seen
    assert seen(book) == (250, 100)
    told = rows_of(book, span(0, 1000))["lab", "user1"]
    assert (told["gpu_seen_s"], told["gpu_busy_s"]) == (250, 100)


def test_it_is_written_each_minute_of_gpu_time(book):
    book.job(7, "user1", 2, start_s=100)
    each = WRITTEN_NS // NS // 2
    for number in range(4):
        hear(book, 100, number * each)
    assert seen(book) == (2 * each, 2 * each)


def test_a_full_disk_loses_none_of_it_and_none_counts_twice(book):
    book.job(7, "user1", 2, start_s=100)
    hear(book, 100, 10)
    db = book.ledger._db
    db.execute("PRAGMA query_only=ON")
    with pytest.raises(Exception, match="readonly"):
        hear(book, 100, 110)
    db.execute("PRAGMA query_only=OFF")
    hear(book, 100, 120)
    assert seen(book) == (110, 110)


def test_no_figure_of_a_node_keeps_its_holds_out(book):
    book.job(7, "user1", 2, start_s=100)
    hear(book, 100, 0)
    hold = Hold(1, 7, 0, "user1", (0, 1), 100 * NS, 120 * NS, 0)
    for number in range(3):
        huge = replace(RESIDENT, gpu_percent=900, gpu_ns=(1 << 63) - 1 - number)
        book.ledger.record_report(replace(NODE, residents=(huge,), holds=(hold,)))
        book.ledger.record_report(replace(NODE, residents=(replace(RESIDENT, gpu_ns=-(1 << 62)),)))
    book.ledger.record_report(NODE)
    assert book.usage(span(0, 1000))[7]["gpu_held_s"] == 40


# how it is written

ROW = {
    "account": "lab", "user": "ann", "type": "v100", "jobs": 3, "gpu_held_s": 7200.0,
    "gpu_parking_s": 72.0, "gpu_packed_s": 0.0, "gpu_parked_s": 3600.0, "gpu_seen_s": 7000.0,
    "gpu_busy_s": 6300.0, "gpu_exclusive_s": 10800.0, "waited_s": 300.0, "begun": 2, "began_s": 240.0,
    "entitled": 0.5,
}  # fmt: skip
BOB = ROW | {"user": "bob", "gpu_seen_s": 0.0, "gpu_busy_s": 0.0, "begun": 0, "entitled": None}
K80 = ROW | {"type": "k80"}


@pytest.fixture
def gandiva(monkeypatch, capsys):
    def run(*args, rows=(ROW, BOB, K80)):
        asked = []

        def answer(config, ask, arguments, wait_s):
            asked.append(arguments)
            return {"window": [arguments["start_s"], arguments["end_s"]], "rows": list(rows)}

        monkeypatch.setattr(report, "query", answer)
        with pytest.raises(SystemExit) as end:
            main.main(["report", *args])
        told = capsys.readouterr()
        assert end.value.code == 0, told.err
        return told.out, asked[0]

    return run


def test_a_report_is_a_page_of_markdown(gandiva):
    told, asked = gandiva("-S", "2026-11-16", "-E", "2026-11-23")
    assert asked["start_s"] == time.mktime((2026, 11, 16, 0, 0, 0, 0, 0, -1))
    lines = told.splitlines()
    assert lines[0] == "# GPU time from 2026-11-16T00:00:00 to 2026-11-23T00:00:00"
    heads, _, ann, bob, total = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:7])
    assert heads[:4] == ["Account", "User", "Jobs", "GPU hours"] and "Type" not in heads
    assert ann == ["lab", "ann", "6", "4.0", "67%", "50%", "1%", "10%", "2.0", "2.0", "6.0", "2.0"]
    assert bob == ["lab", "bob", "3", "2.0", "33%", "-", "1%", "-", "1.0", "-", "3.0", "1.0"]
    assert total[:5] == ["all", "-", "9", "6.0", "100%"]
    assert "they would have kept 3.0 GPU hours from others" in told
    assert "1.50 started GPU hours on each that was held" in told


def test_csv_has_a_line_a_row_and_no_formula(gandiva):
    told, _ = gandiva("--csv", "--by", "type", rows=[ROW | {"account": '=HYPERLINK("x")'}, BOB])
    rows = list(csv.DictReader(io.StringIO(told)))
    assert [row["User"] for row in rows] == ["ann", "bob"]
    assert rows[0]["Account"] == '\'=HYPERLINK("x")'
    assert (rows[0]["GPU hours"], rows[1]["Idle"]) == ("2.0", "")


def test_a_name_makes_no_column_and_no_markup(gandiva):
    told, _ = gandiva(rows=[ROW | {"account": "a|b<script>\n# x"}])
    (line,) = (line for line in told.splitlines() if "ann" in line)
    assert line.startswith("| a\\|b&lt;script>?# x | ann |")


def test_accounts_are_summed_with_their_users_entitlement(gandiva):
    rows = json.loads(gandiva("--by", "account", "--json")[0])["rows"]
    assert [(row["account"], row["jobs"], row["entitled"]) for row in rows] == [("lab", 9, 0.5)]


def test_nothing_is_a_page_too(gandiva):
    assert gandiva(rows=[])[0].splitlines()[-1] == "No job was in the queue."


@pytest.mark.parametrize(
    ("last", "start", "end"),
    [("week", (2026, 11, 9), (2026, 11, 16)), ("month", (2026, 10, 1), (2026, 11, 1))],
)
def test_the_last_whole_week_or_month_begins_and_ends_at_midnight(gandiva, monkeypatch, last, start, end):
    now_s = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
    monkeypatch.setattr(report.time, "time", lambda: now_s)
    _, asked = gandiva("--last", last)
    days = [time.mktime((*day, 0, 0, 0, 0, 0, -1)) for day in (start, end)]
    assert [asked["start_s"], asked["end_s"]] == days
