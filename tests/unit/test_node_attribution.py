"""Files that tell which job holds each GPU: true, whole, and in nobody else's directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import attribution
from gandiva_slurm.node.attribution import Attribution, Files, of_dcgm, of_jobstats
from gandiva_slurm.node.ledger import Ledger
from tests.node_bench import Bench

ONE, TWO = (12, 1001), (13, 1002)


@pytest.fixture
def where(tmp_path) -> Path:
    return tmp_path / "gpus"


@pytest.fixture
def files(where) -> Files:
    return Files(where, of_dcgm)


def told(where: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in where.iterdir()}


def test_each_gpu_has_a_file_in_each_ones_form(where, tmp_path):
    """dcgm-exporter: a job a line, by GPU number. jobstats: one job and its user's number."""
    holders = {0: (ONE,), 3: (ONE, TWO)}
    other = tmp_path / "gpustat"
    assert Files(where, of_dcgm).tell(holders) and Files(other, of_jobstats).tell(holders)
    assert told(where) == {"0": "12\n", "3": "12\n13\n"}
    assert told(other) == {"0": "12 1001\n", "3": "12 1001\n"}
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o644}
    assert where.stat().st_mode & 0o777 == 0o755


def test_a_gpu_that_nobody_holds_has_none(where, files):
    assert files.tell({0: (ONE,), 1: (TWO,)}) and files.tell({1: (ONE,)})
    assert told(where) == {"1": "12\n"}
    assert files.tell({}) and told(where) == {}


def test_what_has_not_changed_is_not_written(where, files):
    files.tell({0: (ONE,), 1: (TWO,)})
    before = (where / "0").stat().st_ino
    files.tell({0: (ONE,), 1: (ONE,)})
    assert (where / "0").stat().st_ino == before


def test_what_a_killed_one_left_is_cleared_and_other_files_are_left_alone(where, files):
    where.mkdir(mode=0o755)
    for name in ("0", "7", ".1.new", "README", "2.0", "GPU-1"):
        (where / name).write_text("old")
    files.tell({0: (ONE,)})
    assert told(where) == {"0": "12\n", "README": "old", "2.0": "old", "GPU-1": "old"}


def test_a_kill_at_any_moment_leaves_whole_files(where, files, monkeypatch):
    """Whatever call is the last one: a file has the old holder, or the new one, or is not there."""
    for last in range(40):
        files.tell({0: (ONE,)})
        calls = iter(range(last))

        def bounded(real, calls=calls):
            def call(*args, **more):
                if next(calls, None) is None:
                    raise KeyboardInterrupt
                return real(*args, **more)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "unlink", "replace", "fchmod", "listdir"):
                patch.setattr(attribution.os, name, bounded(getattr(os, name)))
            try:
                files.tell({0: (TWO,)})
                is_done = True
            except KeyboardInterrupt:
                is_done = False
        visible = {name: text for name, text in told(where).items() if not name.startswith(".")}
        assert visible in ({"0": "12\n"}, {"0": "13\n"})
        files = Files(where, of_dcgm)  # the next gandivad
        assert files.tell({0: (TWO,)}) and told(where) == {"0": "13\n"}
        if is_done:
            break
    assert is_done and last > 2


def test_a_full_disk_leaves_no_wrong_name(where, files, monkeypatch, caplog):
    files.tell({0: (ONE,), 1: (ONE,)})

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(attribution.os, "replace", full)
        assert not files.tell({0: (TWO,), 1: (ONE,)})
        assert told(where) == {"1": "12\n"}
        assert not files.tell({0: (TWO,), 1: (ONE,)})
    assert caplog.text.count("No space left") == 1
    assert files.tell({0: (TWO,), 1: (ONE,)})
    assert told(where) == {"0": "13\n", "1": "12\n"}
    assert "written again" in caplog.text or caplog.records


def test_a_directory_that_others_may_write_is_refused(where, files):
    where.mkdir()
    where.chmod(0o777)
    assert not files.tell({0: (ONE,)}) and told(where) == {}
    where.chmod(0o755)
    assert files.tell({0: (ONE,)}) and told(where) == {"0": "12\n"}


def test_no_link_is_followed(where, files, tmp_path):
    """A user who could put links there would have root write, or remove, what they lead to."""
    target, real = tmp_path / "target", tmp_path / "real"
    real.mkdir(mode=0o755)
    where.symlink_to(real)
    assert not files.tell({0: (ONE,)}) and told(real) == {}
    where.unlink()
    target.write_text("precious")
    where.mkdir(mode=0o755)
    for name in ("0", ".0.new", ".1.new"):
        (where / name).symlink_to(target)
    assert files.tell({0: (ONE,), 1: (TWO,)})
    assert target.read_text() == "precious"
    assert told(where) == {"0": "12\n", "1": "13\n"} and not (where / "0").is_symlink()


def test_where_it_cannot_be_made_it_is_said_once(tmp_path, caplog):
    files = Files(tmp_path / "none" / "gpus", of_dcgm)
    assert not files.tell({}) and not files.tell({})
    assert caplog.text.count("No such file") == 1


def test_a_directory_in_the_place_of_a_file_is_told_and_stops_nothing_else(where, files):
    (where / "0").mkdir(parents=True)
    assert not files.tell({0: (ONE,), 1: (TWO,)})
    assert (where / "0").is_dir()


def test_holders_are_those_of_the_books(tmp_path):
    """Of two that share a GPU the one that was submitted first is first."""
    bench = Bench(tmp_path / "node", 2)
    ledger, teller = bench.node.ledger, Attribution(bench.node)
    assert teller.holders() == {}
    seven, five = (bench.add(job_id, f"user{job_id}", gpus) for job_id, gpus in ((7, (0, 1)), (5, (1,))))
    for resident, uid in ((seven, 1007), (five, 1005)):
        resident.processes.uid = uid
        for key in [key for key in ledger.open if key == resident.key]:
            ledger.end(key, 50)
    ledger.begin(seven.key, "user7", (0, 1), 100)
    ledger.begin(five.key, "user5", (1,), 200)
    ledger.share(seven.key, 5, 300)
    assert teller.holders() == {0: ((7, 1007),), 1: ((5, 1005), (7, 1007))}
    ledger.end(seven.key, 400)
    assert teller.holders() == {1: ((5, 1005),)}


def test_each_change_of_the_books_is_heard_of(tmp_path):
    ledger, heard = Ledger(tmp_path / "holds.jsonl", "boot"), []
    ledger.on_change = lambda: heard.append(len(ledger.open))
    ledger.begin(JobKey(1, 0), "user1", (0,), 100)
    assert heard == [1]
    ledger.share(JobKey(1, 0), 2, 100)
    assert heard == [1, 1]
    ledger.end(JobKey(1, 0), 200)
    assert heard == [1, 1, 0]
