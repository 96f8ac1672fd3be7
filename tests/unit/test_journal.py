"""The journal: epochs rise, actions wait for their outcome, state is read back."""

import sqlite3

import pytest

from gandiva_slurm.controller.journal import KEEP_NS, Journal
from gandiva_slurm.model.action import Fence, HoldAgain, Note, SetTimeLimit, Start
from gandiva_slurm.model.event import ActionDone
from gandiva_slurm.model.ids import JobKey

KEY = JobKey(7, 1)
START = Start("start:7.1:1", KEY, (("n1", (0, 1)), ("n2", (2, 3))), "Starting", "released")
HOLD = SetTimeLimit("limit:7.1:5", KEY, 90, "TimeLimit", "from 60 to 90 min")
AGAIN = HoldAgain("hold:7.1:6", KEY, "StartFailed", "held again")
FENCE = Fence("fence:7.0:9", JobKey(7, 0), "n1", "Stale", "old")
NOTE = Note("note:7.1:9", KEY, "NoFreeSlots", "waits", ("n1",))


@pytest.fixture
def journal(tmp_path):
    made = Journal.open(tmp_path / "journal.sqlite")
    yield made
    made.close()


def test_epoch_is_the_time_and_always_rises(journal):
    assert journal.begin_epoch(1000) == 1000
    assert journal.begin_epoch(500) == 1001
    journal.raise_epoch(9000)
    assert journal.begin_epoch(2000) == 9001


def test_actions_without_outcome_come_back_as_they_were(journal, tmp_path):
    journal.write("{}", [START, HOLD, AGAIN, FENCE, NOTE], 1)
    journal.write_outcomes([ActionDone(HOLD.action_id)], 2)
    journal.close()
    again = Journal.open(tmp_path / "journal.sqlite")
    assert again.open_actions() == [START, AGAIN, FENCE]
    again.close()


def test_action_of_another_version_is_left_out_and_closed(journal, tmp_path, caplog):
    old = '{"action_id": "start:7.1:1", "key": [7, 1], "node": "n1", "gpus": [0], "code": "x", "text": "y"}'
    journal.write("{}", [START, HOLD], 1)
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    db.execute("UPDATE actions SET action = ? WHERE kind = 'Start'", (old,))
    db.commit()
    db.close()
    assert journal.open_actions() == [HOLD]
    assert "a journalled Start cannot be used" in caplog.text
    caplog.clear()
    assert journal.open_actions() == [HOLD]
    assert caplog.text == ""


def test_outcome_is_kept_with_slurms_sentence(journal, tmp_path):
    journal.write("{}", [START], 1)
    journal.write_outcomes([ActionDone(START.action_id, "Invalid node name", retry=True)], 2)
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    assert db.execute("SELECT kind, job_id, done_ns, error, retry FROM actions").fetchall() == [
        ("Start", 7, 2, "Invalid node name", 1)
    ]
    db.close()


def test_same_action_id_asked_again_has_its_own_outcome(journal):
    journal.write("{}", [START], 1)
    journal.write_outcomes([ActionDone(START.action_id)], 2)
    journal.write("{}", [START], 3)
    assert journal.open_actions() == [START]


def test_engine_state_is_the_last_one_written(journal, tmp_path):
    assert journal.engine_state() is None
    journal.write('{"schema": 1}', [], 1)
    journal.write('{"schema": 2}', [], 2)
    journal.close()
    again = Journal.open(tmp_path / "journal.sqlite")
    assert again.engine_state() == {"schema": 2}
    again.close()


def test_unchanged_state_is_not_written_again(journal, tmp_path):
    journal.write('{"schema": 1}', [], 1)
    journal.write('{"schema": 1}', [], 2)
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    assert db.execute("SELECT written_ns FROM state").fetchall() == [(1,)]
    db.close()


def test_old_actions_are_dropped_at_a_start_but_never_open_ones(journal):
    journal.write("{}", [START, HOLD], 1)
    journal.write_outcomes([ActionDone(HOLD.action_id)], 2)
    journal.begin_epoch(KEEP_NS * 2)
    assert journal.open_actions() == [START]


def test_damaged_file_is_put_aside(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"garbage" * 2000)
    journal = Journal.open(path)
    assert journal.engine_state() is None
    assert (tmp_path / "journal.damaged").read_bytes().startswith(b"garbage")
    journal.close()


def test_state_that_is_no_json_counts_as_lost(journal, tmp_path):
    journal.write("not json", [], 1)
    assert journal.engine_state() is None
