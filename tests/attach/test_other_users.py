"""Where another user may write beside a training's checkpoints: nothing of that user's is unpickled."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import stat
import time
from pathlib import Path

import numpy
import pytest
import torch

from gandiva_slurm.client import checkpoint, notice, rng, vault
from gandiva_slurm.client.checkpoint import Store
from gandiva_slurm.client.errors import BadCheckpoint, NotSaved
from gandiva_slurm.client.vault import Vault
from tests import patience
from tests.skips import NO_ROOT

VICTIM, ATTACKER = 61001, 61002
#: How long the attacker swaps files: enough where a path is checked and then opened.
SWAP_S = 5.0
MIXED = "holds more than tensors and plain values"


class Evil:
    """What whoever unpickles it does: make a directory."""

    def __init__(self, where: Path) -> None:
        self._where = str(where)

    def __reduce__(self):
        return os.mkdir, (self._where,)


class Custom:
    """A class of a script's own, which it gives to be saved."""

    value = 7


def by(uid: int, function) -> str:
    """Call a function in a process of this user; return what it said on stderr, and what it returned."""
    begin, end = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                try:
                    result = function()
                except Exception as err:
                    result = err
            os.write(end, f"{said.getvalue()}{result!r}".encode())
        os._exit(0)
    os.close(end)
    with os.fdopen(begin) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return text


@pytest.fixture
def yard():
    """A directory in which anybody may do anything, as a group's submit directory is for the group."""
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gandiva-yard-") as made:
        os.chmod(made, 0o777)
        yield Path(made)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each sentence may be said."""
    monkeypatch.setattr(notice, "_said", set())


def store_in(directory: Path) -> Store:
    return Store(str(directory), "train", 0, 1, "5", 0)


def a_state(**more: object):
    return {"is_borrower": False, "parts": {}, "count": 3, "now": rng.capture([]), **more}


def saved_by(store: Store, state) -> str:
    """Save a checkpoint; for torch is loaded here, by torch."""
    return checkpoint.save(store, 3, lambda out: vault._dump(state, out), vault._facts(state))


def test_a_directory_that_another_user_has_prepared_is_refused(yard):
    store, sprung = store_in(yard / ".gandiva/5"), yard / "sprung"

    def prepare():
        os.umask(0)
        saved_by(store, a_state(evil=Evil(sprung)))
        for place in (yard / ".gandiva").rglob("*"):
            os.chmod(place, 0o777)

    by(ATTACKER, prepare)
    told = by(VICTIM, lambda: Vault(store, []).find())
    assert not sprung.exists()
    assert "belongs to another user" in told and told.endswith("None")
    assert "this user may not write checkpoints" in by(VICTIM, lambda: saved_by(store, a_state()))
    assert not list(Path(store.directory).glob("train.owner.0.tmp"))


def test_a_file_that_is_swapped_while_it_is_loaded_is_not_unpickled(yard):
    """The victim's directory is open to all, as an older release made it under such a umask."""
    store, sprung, over = store_in(yard / "here"), yard / "sprung", yard / "over"

    def save():
        os.umask(0)
        os.mkdir(store.directory, 0o777)
        for place in (Path(saved_by(store, a_state())), *Path(store.directory).rglob("*.owner")):
            os.chmod(place, 0o777)

    by(VICTIM, save)
    (data,) = Path(store.directory).rglob("*.data")
    good, evil = data.with_name("good"), data.with_name("evil")

    def swap():
        os.rename(data, good)
        with open(evil, "wb") as out:
            torch.save(Evil(sprung), out)
        os.chmod(evil, 0o644)
        os.rename(good, data)
        while not over.exists():
            for lay in (os.link, os.symlink):
                os.rename(data, good)
                lay(evil, data)
                os.unlink(data)
                os.rename(good, data)

    def load():
        end_s, loads = time.monotonic() + SWAP_S * patience.slowness(), 0
        while time.monotonic() < end_s and not sprung.exists():
            with contextlib.suppress(Exception):
                loads += 1
                Vault(store, []).find()
        return loads

    pid = os.fork()
    if not pid:
        by(ATTACKER, swap)
        os._exit(0)
    told = by(VICTIM, load)
    over.mkdir()
    os.waitpid(pid, 0)
    assert not sprung.exists(), told
    assert int(told.split()[-1]) > 20, told


def test_what_was_opened_is_checked_and_not_what_lies_there_then(yard, monkeypatch):
    """The race of the test before, decided: the owner's file is back when the other's is open."""
    path, good, opened = yard / "data", yard / "good", os.open
    path.touch()
    good.touch()
    os.chown(path, ATTACKER, -1)

    def swapping(name, *args):
        fd = opened(name, *args)
        os.rename(good, path)
        return fd

    with monkeypatch.context() as patched, pytest.raises(PermissionError, match="belongs to another user"):
        patched.setattr(checkpoint.os, "open", swapping)
        checkpoint._open_owned(str(path), os.O_RDONLY)


def test_a_file_that_others_may_write_is_not_unpickled(tmp_path):
    store = store_in(tmp_path)
    (data,) = Path(saved_by(store, a_state())).glob("*.data")
    data.chmod(0o664)
    assert "next: chmod go-w" in checkpoint.fault(checkpoint.complete(store)[0], {0})
    with pytest.raises(PermissionError):
        vault._load(str(data))
    with pytest.raises(BadCheckpoint, match="others may write it; next: chmod go-w"):
        Vault(store, []).find()


def test_nothing_is_written_through_a_link_that_another_has_laid(yard):
    store, mine = store_in(yard / "here"), yard / "mine"

    def save():
        mine.write_text("mine")
        os.mkdir(store.directory)
        os.chmod(store.directory, 0o777)

    by(VICTIM, save)
    by(ATTACKER, lambda: os.symlink(mine, f"{store.directory}/train.owner.0.tmp"))
    told = by(VICTIM, lambda: saved_by(store, a_state()))
    assert mine.read_text() == "mine"
    assert "train-000000003-5.0" in told


def test_what_is_made_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        saved_by(store_in(tmp_path / "there/5"), a_state())
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "there/5").rglob("*")}
    assert modes == {0o700, 0o600}
    assert stat.S_IMODE((tmp_path / "there/5").stat().st_mode) == 0o700


def test_no_pipe_is_waited_for(tmp_path):
    def ring(*_):
        raise AssertionError("it waits")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 20 * patience.slowness())
    store = store_in(tmp_path)
    (data,) = Path(saved_by(store, a_state())).glob("*.data")
    data.unlink()
    os.mkfifo(data, 0o600)
    assert "is no file" in checkpoint.fault(checkpoint.complete(store)[0], {0})
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_tensors_and_plain_values_are_read_without_running_anything(tmp_path, capfd):
    numpy.random.rand(), random.random()
    weights = torch.nn.Linear(3, 3).state_dict()
    state = a_state(weights=weights, plain=[1.5, "x", None, {2: (True, b"y")}])
    saved_by(store_in(tmp_path), state)
    (data,) = tmp_path.rglob("*.data")
    found = vault._load(str(data))
    assert MIXED not in capfd.readouterr().err
    assert torch.equal(found["weights"]["weight"], weights["weight"]) and found["plain"] == state["plain"]
    want = numpy.random.rand(), random.random(), torch.rand(1)
    rng.put(found["now"], [])
    assert (numpy.random.rand(), random.random(), torch.rand(1)) == want


def test_what_a_script_gives_of_its_own_classes_is_read_and_told(tmp_path, capfd):
    saved_by(store_in(tmp_path), a_state(mine=Custom()))
    (data,) = tmp_path.rglob("*.data")
    assert vault._load(str(data))["mine"].value == 7
    assert MIXED in capfd.readouterr().err


def test_another_users_owner_file_is_nobodys_word(yard):
    store = store_in(yard / "here")
    by(VICTIM, lambda: (os.mkdir(store.directory), os.chmod(store.directory, 0o777)))
    by(ATTACKER, lambda: Path(store.directory, "train.owner").write_text('{"job": "5", "restart": 9}'))
    assert "train-000000003-5.0" in by(VICTIM, lambda: saved_by(store, a_state()))


def test_a_link_to_a_directory_of_another_user_is_refused(yard):
    store = store_in(yard / "here")
    by(VICTIM, lambda: os.mkdir(yard / "elsewhere"))
    by(ATTACKER, lambda: os.symlink(yard / "elsewhere", store.directory))
    assert NotSaved.__name__ in by(VICTIM, lambda: saved_by(store, a_state()))
