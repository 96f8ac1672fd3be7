"""Holds: numbered, kept until acknowledged, whole over kills, reboots and full disks."""

import json

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.ledger import REBOOT_JUMP, Ledger

ONE, TWO = JobKey(1, 0), JobKey(2, 0)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "holds.jsonl", "boot")


def again(ledger, state=None, rebooted=False):
    """The ledger as the next daemon finds it; `state`: an older state file."""
    found = Ledger(ledger.path, "another boot")
    found.restore(json.loads(json.dumps(state or ledger.to_json())), rebooted)
    return found


def test_a_hold_runs_from_grant_to_release_with_the_park_inside(ledger):
    ledger.begin(ONE, "user1", (0, 1), 100)
    ledger.order_park(ONE, 400)
    hold = ledger.end(ONE, 450)
    assert (hold.seq, hold.gpus, hold.t0_ns, hold.t1_ns, hold.park_ns) == (1, (0, 1), 100, 450, 50)
    assert ledger.report(500) == (hold,)


def test_an_open_hold_is_reported_up_to_now_with_number_0(ledger):
    ledger.begin(ONE, "user1", (0,), 100)
    ledger.order_park(ONE, 120)
    ledger.cancel_park(ONE)
    (hold,) = ledger.report(150)
    assert (hold.seq, hold.t0_ns, hold.t1_ns, hold.park_ns) == (0, 100, 150, 0)


def test_only_this_boots_acknowledgement_counts(ledger):
    for start in (0, 10, 20):
        ledger.begin(ONE, "user1", (0,), start)
        ledger.end(ONE, start + 5)
    assert not ledger.acknowledge("other boot", 2)
    assert ledger.acknowledge("boot", 2)
    assert not ledger.acknowledge("boot", 2)
    assert [hold.seq for hold in ledger.report(30)] == [3]


def test_the_next_daemon_finds_open_and_closed_holds_and_goes_on_counting(ledger):
    ledger.begin(ONE, "user1", (0,), 0)
    ledger.end(ONE, 5)
    ledger.begin(TWO, "user2", (1,), 6)
    after = again(ledger)
    assert after.boot == "boot"
    assert [(hold.seq, hold.t0_ns) for hold in after.report(10)] == [(1, 0), (0, 6)]
    assert after.end(TWO, 11).seq == 2


def test_a_kill_between_closing_and_saving_doubles_nothing(ledger):
    ledger.begin(ONE, "user1", (0,), 0)
    before = ledger.to_json()
    ledger.end(ONE, 5)
    after = again(ledger, before)
    assert [(hold.seq, hold.t1_ns) for hold in after.report(10)] == [(1, 5)]
    after.begin(ONE, "user1", (0,), 6)
    assert after.end(ONE, 7).seq == 2


def test_a_torn_line_costs_only_itself(ledger, caplog):
    ledger.begin(ONE, "user1", (0,), 0)
    ledger.end(ONE, 5)
    with open(ledger.path, "a") as stream:
        stream.write('{"seq": 2, "job')
    after = again(ledger)
    after.begin(TWO, "user2", (0,), 6)
    after.end(TWO, 7)
    assert [hold.seq for hold in again(after).report(8)] == [1, 2]
    assert "torn" in caplog.text


def test_what_follows_a_torn_first_line_is_read(ledger):
    """The power was cut while the first hold of a new node was written, before there was a state file."""
    ledger.path.write_text('{"beg')
    ledger.recover(0)
    ledger.begin(ONE, "user1", (0,), 1)
    after = Ledger(ledger.path, "boot")
    after.recover(9)
    assert [(hold.t0_ns, hold.t1_ns) for hold in after.report(9)] == [(1, 9)]


def test_numbers_jump_after_a_reboot(ledger):
    ledger.begin(ONE, "user1", (0,), 0)
    ledger.end(ONE, 5)
    after = again(ledger, rebooted=True)
    after.begin(ONE, "user1", (0,), 6)
    assert after.end(ONE, 7).seq == 2 + REBOOT_JUMP


def test_acknowledged_holds_leave_the_file(ledger):
    for number in range(1100):
        ledger.begin(ONE, "user1", (0,), number)
        ledger.end(ONE, number + 1)
    assert ledger.acknowledge("boot", 1099)
    assert len(ledger.path.read_text().splitlines()) == 1
    assert [hold.seq for hold in again(ledger).report(0)] == [1100]


def test_a_full_disk_is_said_once_and_loses_nothing_in_memory(ledger, caplog):
    ledger.path.mkdir()
    for start in (0, 10):
        ledger.begin(ONE, "user1", (0,), start)
        ledger.end(ONE, start + 5)
    assert [hold.seq for hold in ledger.report(30)] == [1, 2]
    assert caplog.text.count("kept in memory only") == 1


def test_what_a_full_disk_refused_is_written_with_the_next_hold(ledger):
    ledger.path.mkdir()
    ledger.begin(ONE, "user1", (0,), 0)
    ledger.end(ONE, 5)
    ledger.path.rmdir()
    ledger.path.write_text('{"seq":1,"job_id":1,"rest')
    state = ledger.to_json()
    ledger.begin(ONE, "user1", (0,), 10)
    ledger.end(ONE, 15)
    assert [hold.seq for hold in again(ledger, state | {"acked": 0}).report(30)] == [1, 2]


def test_a_gang_cannot_hold_twice(ledger):
    ledger.begin(ONE, "user1", (0,), 0)
    with pytest.raises(AssertionError, match="holds already"):
        ledger.begin(ONE, "user1", (0,), 1)


def test_where_a_mate_comes_or_goes_one_hold_ends_and_the_next_begins(ledger):
    ledger.begin(ONE, "user1", (0,), 100)
    ledger.share(ONE, 2, 100)
    ledger.share(ONE, 2, 130)
    ledger.order_park(ONE, 150)
    ledger.share(ONE, 0, 170)
    ledger.end(ONE, 190)
    found = [(hold.t0_ns, hold.t1_ns, hold.park_ns, hold.shared_with) for hold in ledger.report(200)]
    assert found == [(100, 170, 20, 2), (170, 190, 20, 0)]


def test_the_next_daemon_knows_with_whom_a_hold_is_shared(ledger):
    ledger.begin(ONE, "user1", (0,), 100)
    ledger.share(ONE, 2, 120)
    after = again(ledger)
    assert after.open[ONE].shared_with == 2
    assert [hold.shared_with for hold in after.report(150)] == [0, 2]
