"""The node's files and its clock: state replaced whole, a log that turns over, time that never runs back."""

import json
import os
import time

import pytest

from gandiva_slurm.model.errors import NotNow
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import lock
from gandiva_slurm.node.clock import SLEW_NS_PER_S, Clock
from gandiva_slurm.node.events import KEPT, EventLog
from gandiva_slurm.node.store import StateFile


def test_state_is_read_as_it_was_saved(tmp_path):
    store = StateFile(tmp_path / "state.json")
    assert store.load() is None
    assert store.save({"a": [1, None]})
    store.sync()
    assert store.load() == {"a": [1, None], "version": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}'])
def test_unreadable_state_is_said_and_left_out(tmp_path, caplog, text):
    (tmp_path / "state.json").write_text(text)
    assert StateFile(tmp_path / "state.json").load() is None
    assert "state.json" in caplog.text


def test_state_that_cannot_be_written_is_said_once(tmp_path, caplog):
    store = StateFile(tmp_path / "nowhere" / "state.json")
    assert not store.save({})
    assert not store.save({})
    assert caplog.text.count("would forget the jobs") == 1


def test_events_carry_who_and_when(tmp_path):
    clock = Clock()
    log = EventLog(tmp_path / "events.jsonl", "n1", clock)
    log.write("grant", JobKey(7, 1), 1000, gpus=[0])
    log.close()
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event["t_ns"] - event["mono_ns"] == clock.offset_ns
    assert event | {"t_ns": 0} == {
        "event": "grant",
        "t_ns": 0,
        "mono_ns": 1000,
        "node": "n1",
        "job": 7,
        "restart": 1,
        "gpus": [0],
    }


def test_the_event_log_turns_over_at_its_size(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", "n1", Clock(), max_bytes=500)
    for number in range(40):
        log.write("tick", number=number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT + 1
    assert all(path.stat().st_size <= 500 for path in files)
    newest = [json.loads(line)["number"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    before = [json.loads(line)["number"] for line in (tmp_path / "events.jsonl.1").read_text().splitlines()]
    assert newest[-1] == 39 and before[-1] == newest[0] - 1


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / "events.jsonl", "n1", Clock())
    log.write("tick", number=1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    log.write("tick", number=2)
    monkeypatch.undo()
    log.write("tick", number=3)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [1, 3]
    assert "No space left on device" in caplog.text


def test_time_follows_the_system_slowly_and_never_runs_back():
    ahead = Clock(time.time_ns() - time.monotonic_ns() + 10**9 // 2)
    before = ahead.offset_ns
    ahead.correct()
    assert before - ahead.offset_ns == SLEW_NS_PER_S
    assert Clock(ahead.offset_ns).real(5) == 5 + ahead.offset_ns
    exact = Clock()
    exact.correct()
    early = time.time_ns()
    assert early - 50_000_000 < exact.real() < time.time_ns() + 50_000_000


def test_one_daemon_at_a_time(tmp_path):
    assert lock.holder(tmp_path) == 0
    held = lock.take(tmp_path)
    assert held >= 0
    # A process may take its own lock again: what keeps a second gandivad out is tested with two processes.
    assert lock.holder(tmp_path) == 0


def test_the_lock_of_another_process_is_seen_and_kept(tmp_path):
    import subprocess
    import sys

    code = "import sys, pathlib; from gandiva_slurm.node import lock; lock.take(pathlib.Path(sys.argv[1])); "
    argv = [sys.executable, "-c", code + "print(1, flush=True); input()", str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert lock.holder(tmp_path) == other.pid
        with pytest.raises(NotNow, match=f"pid {other.pid}"):
            lock.take(tmp_path)
        other.communicate(b"\n")
    assert lock.holder(tmp_path) == 0
