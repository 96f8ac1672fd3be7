"""Checkpoints as files: killed, incomplete, damaged, another's, of another time."""

import errno
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gandiva_slurm.client import checkpoint
from gandiva_slurm.client.checkpoint import Store
from gandiva_slurm.client.errors import NotSaved
from tests.attach import saver
from tests.slow import long_form

ROOT = Path(__file__).resolve().parents[2]
#: A kill costs 60 ms of processor time.
KILLS = [40, long_form(200, why="13 s; forty kills in make test")]


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "here"), "train", 0, 1, "5", 0)


def newest(store):
    """The newest checkpoint, which must be sound."""
    saved = checkpoint.complete(store)[0]
    assert checkpoint.fault(saved, {0}) == ""
    with open(checkpoint.data_path(saved, 0), "rb") as data:
        assert saver.content(saved.at) in data.read()
    return saved


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_any_point_the_previous_one_is_there(store, kills):
    """Savers, half of them by a thread, each killed at a random time within its second save or third."""
    chance, midway, last = random.Random(5), 0, 0
    saver.save(store, 0)
    argv = [sys.executable, str(ROOT / "tests/attach/saver.py"), store.directory]
    start = time.monotonic()
    for kill in range(5 * kills):
        if kill >= kills and midway > kills / 10:
            break
        with subprocess.Popen(
            [*argv, str(last + 1), *(["behind"] if kill % 2 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
        ) as process:
            done = int(process.stdout.readline())
            time.sleep(chance.random() * 0.01)
            process.kill()
            done = max([done, *map(int, process.stdout.read().split())])
        saved = newest(store)
        assert saved.at in (done, done + 1), "what was said to be saved is, and what was not began after it"
        midway += any(entry.name.endswith(".tmp") for entry in Path(store.directory).rglob("*"))
        last = saved.at
    assert midway > kills / 10, "kills fell into the writing"
    saver.save(store, last + 2)
    saver.save(store, last + 3)
    assert sorted(os.listdir(store.directory)) == [
        f"train-{last + 2:09d}-5.0",
        f"train-{last + 3:09d}-5.0",
        "train.owner",
    ]
    print(f"{kills} kills in {time.monotonic() - start:.0f} s, {midway} in the midst of a file")


def gang(store, count, ranks=(0, 1), restart=0):
    """Save a gang of two, or some ranks of it."""
    for rank in ranks:
        path = saver.save(store._replace(rank=rank, world=2, restart=restart), count)
    return Path(path)


def test_nothing_shows_under_its_name_before_it_is_whole(store):
    shown = []

    def write(out):
        out.write(b"half of it")
        shown.extend(path.name for path in Path(store.directory).rglob("*.data"))

    path = checkpoint.save(store, 1, write, {})
    assert shown == [] and [each.name for each in Path(path).glob("*.data")] == ["rank-0-of-1.data"]


def test_gang_is_complete_when_all_its_ranks_are(store):
    gang(store, 10)
    half = gang(store, 20, ranks=[1])
    assert [saved.at for saved in checkpoint.complete(store)] == [10]
    assert checkpoint.last_count(store) == 20, "a new start counts on above what was begun"
    gang(store, 20, ranks=[0])
    assert [saved.at for saved in checkpoint.complete(store)] == [20, 10]
    (half / "rank-1-of-2.data").unlink()
    assert "the data of rank 1 cannot be read" in checkpoint.fault(checkpoint.complete(store)[0], {0, 1})


def test_two_complete_ones_stay_and_what_is_newer(store):
    for count in (1, 2, 3):
        gang(store, count)
    assert [saved.at for saved in checkpoint.complete(store)] == [3, 2]
    gang(store, 4, ranks=[0])
    assert sorted(os.listdir(store.directory))[:3] == [f"train-{n:09d}-5.0" for n in (2, 3, 4)]
    gang(store, 5)
    assert [saved.at for saved in checkpoint.complete(store)] == [5, 3]
    gang(store, 6)
    assert [saved.at for saved in checkpoint.complete(store)] == [6, 5], "the half one is gone with the old"
    assert len(os.listdir(store.directory)) == 3


def test_scripts_of_one_job_keep_apart(store):
    other = store._replace(script="train.2")
    saver.save(store, 1)
    for count in (5, 6, 7):
        saver.save(other, count)
    assert [saved.at for saved in checkpoint.complete(store)] == [1]


def test_changed_data_is_found(store):
    path = Path(saver.save(store, 1)) / "rank-0-of-1.data"
    saved = checkpoint.complete(store)[0]
    assert checkpoint.fault(saved, {0}) == ""
    os.truncate(path, saver.BYTES - 1)
    assert checkpoint.fault(saved, {0}) == "the data of rank 0 is not what was written"


def test_older_start_writes_nothing_once_a_newer_one_is_there(store):
    saver.save(store, 1)
    newer = store._replace(restart=1)
    checkpoint.claim(newer, is_start=True)
    with pytest.raises(NotSaved, match="restart 1 of this job saves here now, not restart 0"):
        saver.save(store, 2)
    with pytest.raises(NotSaved, match="restart 1"):
        checkpoint.claim(store, is_start=True)
    saver.save(newer, 2)
    assert [(saved.at, saved.restart) for saved in checkpoint.complete(store)] == [(2, 1), (1, 0)]


def test_job_that_another_has_succeeded_writes_nothing(store):
    saver.save(store, 1)
    heir = store._replace(job="6")
    with pytest.raises(NotSaved, match="job 5 saves here now, not job 6"):
        saver.save(heir, 2)
    checkpoint.claim(heir, is_start=True)
    saver.save(heir, 2)
    with pytest.raises(NotSaved, match="job 6 saves here now, not job 5"):
        saver.save(store, 3)


def files(store):
    found = [path for path in Path(store.directory).rglob("*") if path.is_file() and path.suffix != ".owner"]
    return {path: path.stat().st_mtime_ns for path in found}


def failed(store, count=2):
    """Fail to save; return the sentence. What was there stays as it was, and nothing else."""
    before = files(store)
    with pytest.raises(NotSaved) as info:
        saver.save(store, count)
    assert files(store) == before
    assert [entry for entry in Path(store.directory).glob("train-*") if not any(entry.iterdir())] == []
    return str(info.value)


@pytest.fixture
def no_large_files():
    """A disk that is full after half of a checkpoint: the kernel refuses the write as it then would."""
    _, hard = limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (saver.BYTES // 2, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_no_space(store, no_large_files):
    assert failed(store) == f"no space left for a checkpoint in {store.directory}"


def test_no_space_under_torchs_own_writer(store, no_large_files):
    content = {"weights": torch.zeros(saver.BYTES), "more": torch.zeros(saver.BYTES)}
    with pytest.raises(NotSaved, match="no space left for a checkpoint in"):
        checkpoint.save(store, 1, lambda out: torch.save(content, out), {})
    assert files(store) == {}


REFUSALS = {
    errno.EROFS: "the file system of {} is read-only",
    errno.EDQUOT: "no space left for a checkpoint in {}",
    errno.EACCES: "this user may not write checkpoints in {}",
    errno.EIO: "no checkpoint in {}: Input/output error",
}


@pytest.mark.parametrize("number", REFUSALS)
def test_refusals_of_the_file_system(store, number, monkeypatch):
    saver.save(store, 1)
    real = open

    def refuse(path, mode="r", *args, **kwargs):
        if "w" in mode and str(path).startswith(store.directory):
            raise OSError(number, os.strerror(number))
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", refuse)
    assert failed(store) == REFUSALS[number].format(store.directory)


def test_directory_of_another_user(store, monkeypatch):
    saver.save(store, 1)
    (saved,) = checkpoint.complete(store)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert failed(store) == f"this user may not write checkpoints in {store.directory}"
    assert checkpoint.complete(store) == []
    assert checkpoint.fault(saved, {0}) == "the data of rank 0 cannot be read: belongs to another user"


def test_marker_of_another_version_is_kept_and_told(store):
    marker = Path(saver.save(store, 1)) / "rank-0-of-1.json"
    marker.write_text(json.dumps({"version": 99}))
    assert [(saved.at, saved.version) for saved in checkpoint.complete(store)] == [(1, 99)]
