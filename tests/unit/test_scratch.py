"""Copies of a directory for the runs of a script."""

import os
import time

import pytest

from gandiva_slurm.cli import scratch
from gandiva_slurm.model.errors import GandivaError


@pytest.fixture
def source(tmp_path):
    """A directory of files, of links in and out of it, and of what is not copied."""
    made = tmp_path / "source"
    (made / "data").mkdir(parents=True)
    (made / "data" / "last").write_text("1")
    (made / "newest").symlink_to("data/last")
    (tmp_path / "outside").write_text("far")
    (made / "far").symlink_to("../outside")
    (made / "venv").mkdir()
    (made / "venv" / "pyvenv.cfg").touch()
    (made / "scratch").mkdir()
    os.mkfifo(made / "pipe")
    return made


def test_what_a_run_saves_is_its_own(source):
    target = source / "scratch" / "copy"
    scratch.copy(source, target, source / "scratch")
    assert sorted(path.name for path in target.iterdir()) == ["data", "far", "newest", "venv"]
    (target / "newest").write_text("2")
    assert (source / "data" / "last").read_text() == "1" and (target / "data" / "last").read_text() == "2"
    assert (target / "far").read_text() == "far"
    assert os.readlink(target / "venv") == str(source / "venv")


def test_data_sets_are_not_copied(source, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_BYTES", 0)
    with pytest.raises(
        GandivaError, match=r"holds 0 MiB, more than 0; next: start it in a directory of its own"
    ):
        scratch.copy(source, source / "scratch" / "copy", source / "scratch")
    assert not (source / "scratch" / "copy").exists()


def test_directory_that_cannot_be_copied_is_told(tmp_path):
    with pytest.raises(GandivaError, match=r"cannot copy .*none for a trial: .*No such file"):
        scratch.copy(tmp_path / "none", tmp_path / "copy", tmp_path / "copy")


def test_files_that_were_written_are_told_newest_first(source):
    since_ns = time.time_ns() + 10**9
    for number, name in enumerate(("a", "data/b", "c")):
        (source / name).write_text("x")
        os.utime(source / name, ns=(since_ns + number, since_ns + number))
    assert scratch.written_since(source, since_ns) == ["c", "data/b", "a"]
    assert scratch.written_since(source, since_ns + 10) == []
