"""The ledger's file: identity of jobs, holds once, schema, and what a query reads back."""

import sqlite3
from dataclasses import replace

import pytest

from gandiva_slurm.accounting.database import Transaction, open_database, open_reader
from gandiva_slurm.accounting.ledger import MIGRATIONS, Ledger, Tickets
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.wire.messages import Hold, NodeReport, Resident

JOB = SlurmJob(
    7, "user1", 1001, "lab", "gandiva", "PENDING", name="train", submit_s=100, options=JobOptions(gpus=2)
)
RUNNING = replace(JOB, state="RUNNING", nodes=("n1",), start_s=110)
HOLD = Hold(1, 7, 0, "user1", (0, 1), 110 * 10**9, 120 * 10**9, 10**9)
RESIDENT = Resident(7, 0, "RUNNING", (0, 1), 111 * 10**9, 0, 2, 2, 50, 3.0, 4, 1, 0, 0, "", "")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def rows(tmp_path, query: str) -> list[tuple]:
    db = sqlite3.connect(tmp_path / "ledger.sqlite")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def report(*holds: Hold, boot: str = "b1", residents: tuple[Resident, ...] = ()) -> NodeReport:
    return NodeReport("n1", boot, 0, 0, 0, 4, residents, holds, ())


def test_job_is_followed_through_its_states(ledger, tmp_path):
    for job in (JOB, RUNNING, replace(RUNNING, state="COMPLETED", end_s=200, nodes=())):
        ledger.record_jobs([job], {"n1": "v100"})
    query = "SELECT job_id, submit_s, state, gpus, type, node, start_s, end_s FROM jobs"
    assert rows(tmp_path, query) == [(7, 100, "COMPLETED", 2, "v100", "n1", 110, 200)]
    assert rows(tmp_path, "SELECT restart, start_s, end_s FROM runs") == [(0, 110, 200)]


def test_job_of_several_nodes_is_one_row_and_began_with_its_first_process(ledger, tmp_path):
    span = replace(RUNNING, nodes=("n1", "n2"), options=JobOptions(gpus=4, nodes=2))
    ledger.record_jobs([span], {"n1": "v100", "n2": "v100"})
    early, late = RESIDENT, replace(RESIDENT, registered_ns=113 * 10**9, steps=60)
    unborn = replace(RESIDENT, registered_ns=0, steps=0, suspends=0, reaims=0)
    for node, part in (("n2", unborn), ("n1", early), ("n2", late), ("n1", early), ("n2", unborn)):
        ledger.record_report(replace(report(HOLD, residents=(part,)), node=node))
    assert rows(tmp_path, "SELECT gpus, type, node FROM jobs") == [(4, "v100", "n1,n2")]
    assert rows(tmp_path, "SELECT registered_ns, steps, suspends FROM runs") == [(111 * 10**9, 60, 4)]
    assert rows(tmp_path, "SELECT node, gpu_count FROM holds ORDER BY node") == [("n1", 2), ("n2", 2)]


def test_requeue_keeps_the_job_and_begins_a_run(ledger, tmp_path):
    again = replace(JOB, restart=1, submit_s=150)
    later = replace(again, state="RUNNING", nodes=("n2",), start_s=160)
    for job in (JOB, RUNNING, again, later):
        ledger.record_jobs([job], {})
    assert rows(tmp_path, "SELECT job_id, submit_s, restart FROM jobs") == [(7, 100, 1)]
    assert rows(tmp_path, "SELECT restart, start_s, end_s FROM runs") == [(0, 110, 150), (1, 160, 0)]


def test_requeued_job_that_is_still_ending_is_no_other_job(ledger, tmp_path):
    """Slurm shows it COMPLETING with the new restart count and the old submit time."""
    ending = replace(RUNNING, state="COMPLETING", restart=1)
    again = replace(JOB, restart=1, submit_s=150)
    later = replace(again, state="RUNNING", nodes=("n2",), start_s=160)
    for job in (JOB, RUNNING, ending, again, later):
        ledger.record_jobs([job], {})
    assert rows(tmp_path, "SELECT job_id, submit_s, restart, state FROM jobs") == [(7, 100, 1, "RUNNING")]
    assert rows(tmp_path, "SELECT restart, start_s, end_s FROM runs") == [(0, 110, 150), (1, 160, 0)]


def test_a_job_whose_requeue_slurm_has_forgotten_is_the_same(ledger, tmp_path):
    """slurmctld was killed before it had saved that; a job that has the number anew came later."""
    first = replace(JOB, restart=1, submit_s=150)
    for job in (JOB, RUNNING, first, replace(first, restart=2, submit_s=190), first, JOB, first):
        ledger.record_jobs([job], {})
    ledger.record_report(report(HOLD))
    assert rows(tmp_path, "SELECT job_id, submit_s, restart FROM jobs") == [(7, 100, 1)]
    ledger.record_jobs([replace(first, submit_s=210)], {})  # requeued anew, before we have looked
    assert rows(tmp_path, "SELECT job_id, submit_s, restart FROM jobs") == [(7, 100, 1)]
    ledger.record_jobs([replace(JOB, submit_s=900)], {})
    want = [(7, 100, 1), (7, 900, 0)]
    assert rows(tmp_path, "SELECT job_id, submit_s, restart FROM jobs ORDER BY submit_s") == want


def test_identity_survives_a_restart_of_the_controller(ledger, tmp_path):
    ledger.record_jobs([replace(RUNNING, restart=2, submit_s=150)], {})
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite")
    again.record_jobs([replace(RUNNING, restart=3, submit_s=190)], {})
    again.close()
    assert rows(tmp_path, "SELECT job_id, submit_s, restart FROM jobs") == [(7, 150, 3)]


def test_reused_job_id_is_another_job(ledger, tmp_path):
    ledger.record_jobs([replace(RUNNING, state="COMPLETED", end_s=120)], {})
    ledger.record_jobs([replace(JOB, user="user2", submit_s=500)], {})
    assert rows(tmp_path, "SELECT user, submit_s FROM jobs ORDER BY 2") == [("user1", 100), ("user2", 500)]


def test_hold_is_stored_once_whatever_is_repeated(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    assert ledger.record_report(report(HOLD)) == 1
    changed = replace(HOLD, t1_ns=999 * 10**9)
    later = replace(HOLD, seq=2, t0_ns=HOLD.t0_ns + 1)
    assert ledger.record_report(report(changed, later)) == 2
    assert rows(tmp_path, "SELECT seq, t1_ns FROM holds") == [(1, 120 * 10**9), (2, 120 * 10**9)]


def test_a_hold_that_a_node_ends_again_under_another_name_counts_once(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    ledger.record_report(report(HOLD))
    again = replace(HOLD, seq=7, t1_ns=HOLD.t1_ns + 5)
    assert ledger.record_report(report(again, boot="b2")) == 7, "it is safe"
    assert rows(tmp_path, "SELECT boot, seq FROM holds") == [("b1", 1)]
    assert ledger.record_report(report(again, replace(again, seq=8, t0_ns=again.t1_ns), boot="b2")) == 8
    assert len(rows(tmp_path, "SELECT * FROM holds")) == 2


def test_open_hold_is_not_stored(ledger, tmp_path):
    assert ledger.record_report(report(replace(HOLD, seq=0))) == 0
    assert rows(tmp_path, "SELECT * FROM holds") == []


def test_each_boot_counts_for_itself(ledger):
    ledger.record_report(report(HOLD, replace(HOLD, seq=2, t0_ns=HOLD.t0_ns + 1)))
    assert ledger.record_report(report(replace(HOLD, t0_ns=HOLD.t0_ns + 2), boot="b2")) == 1
    assert ledger.safe_up_to("n1", "b1") == 2


def test_hold_of_a_job_not_seen_yet_finds_it_later(ledger, tmp_path):
    ledger.record_report(report(HOLD))
    ledger.record_jobs([RUNNING], {})
    assert rows(tmp_path, "SELECT user FROM holds JOIN jobs USING (ref, user)") == [("user1",)]


def test_counters_never_fall(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    ledger.record_report(report(residents=(RESIDENT,)))
    ledger.record_report(report(residents=(replace(RESIDENT, steps=1, suspends=1),)))
    query = "SELECT registered_ns, steps, suspends, reaims FROM runs"
    assert rows(tmp_path, query) == [(111 * 10**9, 50, 4, 1)]


def test_the_earliest_hundredth_mini_batch_and_the_most_memory_are_kept(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    for first_ns, live, peak in ((0, 0, 0), (300, 5, 90), (200, 7, 80), (0, 1, 1)):
        item = replace(RESIDENT, first_ns=first_ns, live_bytes=live, peak_bytes=peak)
        ledger.record_report(report(residents=(item,)))
    assert rows(tmp_path, "SELECT first_ns, live_bytes, peak_bytes FROM runs") == [(200, 7, 90)]


def test_what_a_mini_batch_took_last_and_the_most_that_was_spilled_are_kept(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    for alone, packed, spilled in (((5, 9), (0, 0), 70), ((0, 0), (6, 8), 0), ((4, 7), (0, 0), 60)):
        item = replace(RESIDENT, step_alone_ns=alone, step_packed_ns=packed, spilled_bytes=spilled)
        ledger.record_report(report(residents=(item,)))
    query = "SELECT step_p50_ns, step_p99_ns, packed_step_p50_ns, packed_step_p99_ns, spilled_bytes FROM runs"
    assert rows(tmp_path, query) == [(4, 7, 6, 8, 70)]


def test_a_rank_s_impossible_step_count_keeps_no_hold_out(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    boast = replace(RESIDENT, steps=(1 << 64) - 1)
    assert ledger.record_report(report(HOLD, residents=(boast,))) == 1
    assert rows(tmp_path, "SELECT steps FROM runs") == [((1 << 63) - 1,)]


def test_release_and_registration_meet_in_one_run(ledger, tmp_path):
    ledger.record_jobs([JOB], {})
    ledger.record_release(JobKey(7, 0), 109 * 10**9, 2)
    ledger.record_jobs([RUNNING], {})
    ledger.record_report(report(residents=(RESIDENT,)))
    assert rows(tmp_path, "SELECT released_ns, registered_ns, start_s FROM runs") == [
        (109 * 10**9, 111 * 10**9, 110)
    ]


def test_job_that_vanished_has_an_unknown_end(ledger, tmp_path):
    ledger.record_jobs([RUNNING], {})
    ledger.record_gone(7, 300)
    ledger.record_gone(8, 300)
    assert rows(tmp_path, "SELECT state, end_s FROM jobs") == [("UNKNOWN", 300)]
    assert rows(tmp_path, "SELECT end_s FROM runs") == [(300,)]


def test_known_end_is_not_overwritten_by_vanishing(ledger, tmp_path):
    ledger.record_jobs([replace(RUNNING, state="FAILED", end_s=200, exit_code="1:0")], {})
    ledger.record_gone(7, 300)
    assert rows(tmp_path, "SELECT state, end_s, exit_code FROM jobs") == [("FAILED", 200, "1:0")]


def test_tickets_are_written_when_they_change(ledger, tmp_path):
    share = Tickets("user1", "lab", 100, 0.5)
    ledger.record_tickets([share], 1)
    ledger.record_tickets([share], 2)
    ledger.record_tickets([replace(share, tickets=300)], 3)
    assert rows(tmp_path, "SELECT since_ns, tickets FROM tickets") == [(1, 100), (3, 300)]


def test_failed_transaction_leaves_nothing(tmp_path):
    db = open_database(tmp_path / "x.sqlite", ("CREATE TABLE t (v INTEGER PRIMARY KEY)",))
    with pytest.raises(sqlite3.IntegrityError), Transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("INSERT INTO t VALUES (1)")
    assert db.execute("SELECT * FROM t").fetchall() == []
    db.close()


def test_migrations_are_applied_once_and_in_order(tmp_path):
    first = "CREATE TABLE t (v INTEGER)"
    open_database(tmp_path / "x.sqlite", (first,)).close()
    second = "ALTER TABLE t ADD COLUMN w INTEGER; INSERT INTO t VALUES (1, 2)"
    db = open_database(tmp_path / "x.sqlite", (first, second))
    assert db.execute("SELECT v, w FROM t").fetchall() == [(1, 2)]
    db.close()
    with pytest.raises(ConfigError, match="schema 2, this gandiva knows 1"):
        open_database(tmp_path / "x.sqlite", (first,))


def test_holds_of_before_packing_are_shared_with_nobody(tmp_path):
    """A file of the first schema is brought to the present one, its holds whole."""
    path = tmp_path / "ledger.sqlite"
    old = open_database(path, MIGRATIONS[:1])
    old.execute("INSERT INTO holds VALUES ('n1', 'b', 1, NULL, 7, 0, 'user1', '0', 1, 10, 20, 0)")
    old.close()
    Ledger(path).close()
    reader = open_reader(path)
    assert [tuple(row) for row in reader.execute("SELECT job_id, t0_ns, t1_ns, shared_with FROM holds")] == [
        (7, 10, 20, 0)
    ]
    reader.close()
