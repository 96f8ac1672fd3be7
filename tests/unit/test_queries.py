"""What jobs used and what users were due, in windows cut anywhere."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.accounting.database import open_reader
from gandiva_slurm.accounting.fairness import user_shares
from gandiva_slurm.accounting.ledger import Ledger, Tickets
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, OpenHold, held_by_job, holds_in, job_usage
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.wire.messages import Hold, NodeReport, Resident

NS = 10**9


class Book:
    """A ledger to fill, and a reader beside it."""

    def __init__(self, path) -> None:
        self.ledger = Ledger(path)
        self.db = open_reader(path)
        self._seq = 0
        #: whose holds these are
        self.node = "n1"

    def job(self, job_id, user, gpus, start_s=0, end_s=0, **changes) -> None:
        state = "COMPLETED" if end_s else "RUNNING" if start_s else "PENDING"
        job = SlurmJob(job_id, user, 1, "lab", "gandiva", state, submit_s=90, options=JobOptions(gpus=gpus))
        nodes = ("n1",) if start_s else ()
        job = replace(job, **{"start_s": start_s, "end_s": end_s, "nodes": nodes, **changes})
        self.ledger.record_jobs([job], {"n1": "v100"})

    def hold(self, job_id, user, gpus, t0_s, t1_s, **more) -> None:
        self._seq += 1
        times = [round(value * NS) for value in (t0_s, t1_s, more.get("park_s", 0))]
        hold = Hold(self._seq, job_id, 0, user, tuple(range(gpus)), *times, more.get("mate", 0))
        self.ledger.record_report(NodeReport(self.node, "b", 0, 0, 0, 4, (), (hold,), ()))

    def usage(self, window, wanted=Filter(), open_holds=()):  # noqa: B008 - immutable
        return {row["job_id"]: row for row in job_usage(self.db, window, wanted, open_holds)}

    def shares(self, window, capacity=4, open_holds=()):
        return {row["user"]: row for row in user_shares(self.db, window, capacity, open_holds)}


@pytest.fixture
def book(tmp_path):
    made = Book(tmp_path / "ledger.sqlite")
    yield made
    made.db.close()
    made.ledger.close()


def span(start_s, end_s, now_s=1000) -> Window:
    return Window(round(start_s * NS), round(end_s * NS), now_s * NS)


def test_holds_are_cut_to_the_window(book):
    book.job(7, "user1", 2, start_s=100, end_s=200)
    book.hold(7, "user1", 2, 100, 120, park_s=4)
    book.hold(7, "user1", 2, 150, 160)
    whole = book.usage(span(0, 1000))[7]
    assert (whole["gpu_held_s"], whole["gpu_run_s"], whole["gpu_parked_s"]) == (60, 52, 140)
    part = book.usage(span(110, 155))[7]
    assert (part["gpu_held_s"], part["gpu_run_s"], part["gpu_parked_s"]) == (30, 22, 60)
    late = book.usage(span(118, 119))[7]
    assert (late["gpu_held_s"], late["gpu_run_s"]) == (2, 0)


def test_a_requeue_of_ours_counts_as_a_migration_once_the_job_goes_on(book):
    book.job(7, "user1", 1, start_s=100)
    for moved_s in (120, 125):
        book.ledger.record_move(JobKey(7, 0), moved_s * NS, "attached")
    assert book.usage(span(0, 1000))[7]["migrations"] == 0
    for restart, start_s in ((1, 130), (2, 150)):  # the second is somebody else's
        book.job(7, "user1", 1, start_s=start_s, restart=restart, submit_s=start_s - 5)
        row = book.usage(span(0, 1000))[7]
        assert (row["migrations"], row["restarts"]) == (1, restart)


def test_an_elastic_job_counts_the_gpus_of_each_of_its_runs(book):
    """Submitted with 2 GPUs, started on 1 for 100 s, then on 4 for 50 s; beside another who wants all."""
    book.ledger.record_tickets([Tickets(name, "lab", 100, 0.5) for name in ("user1", "user2")], 50 * NS)
    book.job(8, "user2", 4, start_s=100, end_s=300)
    for gpus, changes in ((1, {"start_s": 100}), (4, {"start_s": 210, "end_s": 260, "submit_s": 200})):
        restart = int(gpus == 4)
        book.job(7, "user1", 2, restart=restart, **changes)
        book.ledger.record_release(JobKey(7, restart), changes["start_s"] * NS, gpus)
        book.hold(7, "user1", gpus, changes["start_s"], changes["start_s"] + 25)
    row = book.usage(span(0, 1000))[7]
    assert (row["gpus"], row["gpu_held_s"], row["gpu_parked_s"]) == (4, 25 + 4 * 25, 75 + 4 * 25)
    assert book.shares(span(100, 200))["user1"]["entitled_share"] == 0.25
    assert book.shares(span(210, 260))["user1"]["entitled_share"] == 0.5


def test_gpu_time_of_a_job_is_the_sum_over_its_nodes(book):
    """4 GPUs on two nodes for 100 s; its parts held them 20 s and 22 s, one goes on."""
    book.job(7, "user1", 4, start_s=100, end_s=200, nodes=("n1", "n2"))
    book.hold(7, "user1", 2, 100, 120, park_s=4)
    book.node = "n2"
    book.hold(7, "user1", 2, 100, 122, park_s=6)
    going = OpenHold("n2", JobKey(7, 0), "user1", (0, 1), 150 * NS, 155 * NS, 0)
    (row,) = book.usage(span(0, 1000), open_holds=[going]).values()
    assert row["gpu_held_s"] == 2 * 20 + 2 * 22 + 2 * 5
    assert row["gpu_run_s"] == row["gpu_held_s"] - 2 * 4 - 2 * 6
    assert row["gpu_parked_s"] == 4 * 100 - row["gpu_held_s"]
    assert (row["node"], row["gpus"]) == ("n1,n2", 4)
    assert book.shares(span(0, 1000), open_holds=[going]) == {}, "no tickets written"


def test_without_truncation_a_job_of_the_window_shows_all_it_used(book):
    """As sacct's: `acct -s R` looks at an instant, and the job's sums are still whole."""
    book.job(7, "user1", 2, start_s=100, end_s=200)
    book.hold(7, "user1", 2, 100, 120, park_s=4)
    whole = book.usage(span(150, 150), Filter(is_cut=False))[7]
    assert (whole["gpu_held_s"], whole["gpu_run_s"], whole["gpu_parked_s"]) == (40, 32, 160)


def test_open_hold_counts_up_to_its_report(book):
    book.job(7, "user1", 1, start_s=100)
    hold = OpenHold("n1", JobKey(7, 0), "user1", (0,), 100 * NS, 130 * NS, 0)
    assert book.usage(span(0, 140, 140), open_holds=[hold])[7]["gpu_held_s"] == 30
    assert book.usage(span(0, 140, 140), open_holds=[hold])[7]["gpu_parked_s"] == 10


@pytest.mark.parametrize(
    ("window", "want"),
    [
        (span(0, 80), set()),
        (span(0, 95), {7, 8, 9}),
        (span(150, 150), {7, 8, 9}),
        (span(201, 300), {8, 9}),
        (span(200, 300), {7, 8, 9}),
    ],
)
def test_jobs_of_a_window_are_those_in_queue_or_running(book, window, want):
    book.job(7, "user1", 1, start_s=100, end_s=200)
    book.job(8, "user1", 1, start_s=100)
    book.job(9, "user1", 1)
    assert set(book.usage(window)) == want


@pytest.mark.parametrize(
    ("states", "window", "want"),
    [
        ({"RUNNING"}, span(150, 160), {7, 8}),
        ({"RUNNING"}, span(250, 260), {8}),
        ({"PENDING"}, span(150, 160), {9}),
        ({"PENDING"}, span(95, 160), {7, 8, 9}),
        ({"COMPLETED"}, span(150, 160), set()),
        ({"COMPLETED"}, span(150, 260), {7}),
    ],
)
def test_state_filter_means_in_that_state_during_the_window(book, states, window, want):
    book.job(7, "user1", 1, start_s=100, end_s=200)
    book.job(8, "user1", 1, start_s=100)
    book.job(9, "user1", 1)
    assert set(book.usage(window, Filter(states=frozenset(states)))) == want


def test_jobs_are_picked_by_id_user_account_and_array(book):
    book.job(7, "user1", 1)
    book.job(8, "user2", 1, account="other")
    book.job(9, "user2", 1, array_job_id=6, array_task_id=3)
    assert set(book.usage(span(0, 999), Filter(users=frozenset({"user2"})))) == {8, 9}
    assert set(book.usage(span(0, 999), Filter(accounts=frozenset({"lab"})))) == {7, 9}
    assert set(book.usage(span(0, 999), Filter(job_ids=frozenset({6, 7})))) == {7, 9}


def test_a_cancelled_job_has_the_exit_code_of_sacct(book):
    """Slurm's own accounting closes it before its processes end; slurmctld has their signal."""
    book.job(7, "user1", 1, start_s=100, end_s=200, state="CANCELLED", exit_code="0:15")
    book.job(8, "user1", 1, start_s=100, end_s=200, state="FAILED", exit_code="0:15")
    assert {job: row["exit_code"] for job, row in book.usage(span(0, 999)).items()} == {7: "0:0", 8: "0:15"}


def test_holds_are_listed_uncut_and_in_order(book):
    book.job(7, "user1", 1, start_s=100)
    book.hold(7, "user1", 1, 120, 130)
    book.hold(7, "user1", 1, 100, 110, park_s=1)
    late = OpenHold("n2", JobKey(8, 1), "user2", (2, 3), 125 * NS, 128 * NS, 0)
    rows = holds_in(book.db, span(105, 126), [late])
    assert [(row["job_id"], row["t0_ns"] // NS, row["open"]) for row in rows] == [
        (7, 100, False), (7, 120, False), (8, 125, True)
    ]  # fmt: skip
    assert rows[2]["gpus"] == [2, 3] and rows[0]["gpus"] == [0]


def test_time_held_is_summed_by_incarnation(book):
    book.hold(7, "user1", 2, 100, 110)
    hold = OpenHold("n1", JobKey(7, 1), "user1", (0,), 110 * NS, 115 * NS, 0)
    assert held_by_job(book.db, span(105, 200), [hold]) == {JobKey(7, 0): 10 * NS, JobKey(7, 1): 5 * NS}


def test_equal_tickets_and_enough_demand_are_due_equal_parts(book):
    for number in (1, 2):
        book.ledger.record_tickets([Tickets(f"user{number}", "lab", 100, 0.5)], 50 * NS)
        book.job(number, f"user{number}", 4, start_s=100)
    book.hold(1, "user1", 4, 100, 160)
    book.hold(2, "user2", 4, 160, 200)
    shares = book.shares(span(100, 200))
    assert shares["user1"]["entitled_share"] == shares["user2"]["entitled_share"] == 0.5
    assert (shares["user1"]["gpu_s"], shares["user1"]["effectv_share"]) == (240, 0.6)
    assert shares["user1"]["served_fair"] == pytest.approx(1.2)


def test_what_one_cannot_use_is_due_to_the_others(book):
    book.ledger.record_tickets([Tickets(name, "lab", 100, 0.5) for name in ("user1", "user2")], 50 * NS)
    book.job(1, "user1", 1, start_s=100)
    book.job(2, "user2", 4, start_s=100)
    shares = book.shares(span(100, 200))
    assert (shares["user1"]["entitled_share"], shares["user2"]["entitled_share"]) == (0.25, 0.75)


def test_entitlement_follows_who_is_there(book):
    """user2 comes half way: until then all is due to user1, then half."""
    book.ledger.record_tickets([Tickets(name, "lab", 100, 0.5) for name in ("user1", "user2")], 50 * NS)
    book.job(1, "user1", 4, start_s=100)
    book.job(2, "user2", 4, start_s=150)
    shares = book.shares(span(100, 200))
    assert (shares["user1"]["entitled_share"], shares["user2"]["entitled_share"]) == (0.75, 0.25)


def test_tickets_count_from_when_they_changed(book):
    book.ledger.record_tickets([Tickets(name, "lab", 100, 0.5) for name in ("user1", "user2")], 50 * NS)
    book.ledger.record_tickets([Tickets("user1", "lab", 300, 0.75)], 150 * NS)
    for number in (1, 2):
        book.job(number, f"user{number}", 4, start_s=100)
    assert book.shares(span(100, 200))["user1"]["entitled_share"] == 0.625
    assert book.shares(span(100, 150))["user1"]["tickets"] == 100


def test_user_without_demand_is_due_nothing(book):
    book.ledger.record_tickets([Tickets("user1", "lab", 100, 1.0)], 50 * NS)
    shares = book.shares(span(100, 200))
    assert (shares["user1"]["entitled_share"], shares["user1"]["served_fair"]) == (0, None)


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    holds=st.lists(
        st.tuples(st.integers(0, 2900), st.integers(1, 200), st.integers(1, 4)),
        max_size=12,
        unique_by=lambda hold: hold[0],
    ),
)
def test_windows_side_by_side_sum_to_the_whole(tmp_path_factory, cuts, holds):
    book = Book(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    book.job(7, "user1", 4, start_s=91)
    for start, length, gpus in holds:
        book.hold(7, "user1", gpus, start, start + length, park_s=length / 3)
    edges = sorted({0, 3200, *cuts})
    parts = [held_by_job(book.db, span(*pair), ()).get(JobKey(7, 0), 0) for pair in pairwise(edges)]
    assert sum(parts) == sum(length * gpus * NS for _, length, gpus in holds)
    book.db.close()
    book.ledger.close()


def test_each_of_a_pack_is_charged_half_of_what_they_shared(book):
    for job_id, user in ((7, "user1"), (8, "user2")):
        book.job(job_id, user, 1, start_s=100, end_s=200)
    book.hold(7, "user1", 1, 100, 120)
    book.hold(7, "user1", 1, 120, 160, mate=8)
    book.hold(8, "user2", 1, 120, 160, park_s=4, mate=7)
    open_hold = OpenHold("n1", JobKey(8, 0), "user2", (0,), 160 * NS, 170 * NS, 0)
    rows = book.usage(span(0, 1000), open_holds=[open_hold])
    assert [(row["gpu_held_s"], row["gpu_packed_s"]) for row in rows.values()] == [(40, 40), (30, 40)]
    assert [row["gpu_parked_s"] for row in rows.values()] == [40, 50]
    assert rows[8]["gpu_run_s"] == 28
    assert [row["packed_with"] for row in rows.values()] == [[8], [7]]
    assert sum(held_by_job(book.db, span(0, 1000), [open_hold]).values()) == 70 * NS
    book.ledger.record_tickets([Tickets(user, "lab", 100, 0.5) for user in ("user1", "user2")], 0)
    assert [row["gpu_s"] for row in book.shares(span(0, 1000)).values()] == [40, 20]
    assert [row["shared_with"] for row in holds_in(book.db, span(0, 1000), [])] == [0, 8, 7]
    assert book.usage(span(130, 140))[7]["gpu_held_s"] == 5


def test_early_feedback_and_memory_are_told_of_all_runs(book):
    book.job(1, "ann", 1, start_s=100)
    none = book.usage(span(0, 200))[1]
    assert (none["first_100_s"], none["gpu_mem_live_bytes"], none["gpu_mem_peak_bytes"]) == (None,) * 3
    for first_s, live, peak in ((130, 7, 700), (0, 9, 1)):
        item = Resident(1, 0, "RUNNING", (0,), 0, 0, 1, 1, 50, 3.0, 0, 0, 0, 0, "", "")
        item = replace(item, first_ns=first_s * NS, live_bytes=live, peak_bytes=peak, spilled_bytes=live)
        item = replace(item, step_packed_ns=(NS // 50, NS // 20))
        book.ledger.record_report(NodeReport("n1", "b", 0, 0, 0, 4, (item,), (), ()))
    row = book.usage(span(0, 200))[1]
    assert (row["first_100_s"], row["gpu_mem_live_bytes"], row["gpu_mem_peak_bytes"]) == (40.0, 9, 700)
    assert (row["gpu_mem_spilled_bytes"], row["packed_step_p99_ms"], row["step_p50_ms"]) == (9, 50.0, None)
