"""client.newest: which file of a job's own directory is the newest that is whole."""

import os

import pytest

from gandiva_slurm.client import newest
from gandiva_slurm.client.newest import MOST_DEEP, WHOLE_S

NOW_S = 100_000.0


@pytest.fixture
def write(tmp_path):
    def _write(name, age_s, text="weights"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
        return path

    return _write


def found(tmp_path):
    return newest.newest(str(tmp_path), NOW_S)


def test_the_newest_whole_file_counts_in_whatever_directory(tmp_path, write):
    assert found(tmp_path) == 0
    write("checkpoint-500/model.safetensors", 300)
    write("checkpoint-1000/model.safetensors", 100)
    assert found(tmp_path) == NOW_S - 100


@pytest.mark.parametrize(
    ("name", "age_s", "text"),
    [
        ("last.pt.tmp", 50, "half"),
        (".last.pt.swp", 50, "half"),
        ("last.pt", 50, ""),
        ("last.pt", WHOLE_S / 2, "perhaps half"),
        ("last.pt", -3600, "of a clock that is ahead"),
        ("/".join(["deep"] * (MOST_DEEP + 1)) + "/last.pt", 50, "too deep"),
    ],
)
def test_what_may_be_half_does_not_count(tmp_path, write, name, age_s, text):
    write("before.pt", 500)
    write(name, age_s, text)
    assert found(tmp_path) == NOW_S - 500


def test_links_are_not_followed_and_what_cannot_be_read_has_no_files(tmp_path, write):
    other = write("other/new.pt", 50)
    write("out/old.pt", 500)
    os.symlink(other, tmp_path / "out/link.pt")
    os.symlink(tmp_path / "other", tmp_path / "out/link")
    os.symlink(tmp_path / "out", tmp_path / "out/loop")
    os.mkfifo(tmp_path / "out/pipe.pt")
    assert newest.newest(str(tmp_path / "out"), NOW_S) == NOW_S - 500
    assert newest.newest(str(tmp_path / "nowhere"), NOW_S) == newest.newest("/proc/1/root", NOW_S) == 0


def test_of_a_directory_of_very_many_files_some_are_looked_at(tmp_path, write, monkeypatch):
    monkeypatch.setattr(newest, "MOST_ENTRIES", 5)
    for number in range(20):
        write(f"{number}.pt", 500)
    assert found(tmp_path) == NOW_S - 500


def test_where_it_looks(monkeypatch):
    for name in ("GANDIVA_JOB", "GANDIVA_CHECKPOINT_FILES"):
        monkeypatch.delenv(name, raising=False)
    assert newest.directory() is None
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/home/ann")
    for named, want in (("out", "/home/ann/out"), ("/data/%j/", "/data/12/")):
        monkeypatch.setenv("GANDIVA_CHECKPOINT_FILES", named)
        assert newest.directory() == want
