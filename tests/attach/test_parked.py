"""What is written while a training is parked: the same training goes on from it, and nothing waits for it."""

import errno
import itertools
import os
import random
import threading
import time
from pathlib import Path

import pytest
import torch

import gandiva_slurm as gandiva
from gandiva_slurm.client import behind, checkpoint, host
from gandiva_slurm.wire import page as wire
from tests import attach_recipes as recipes
from tests import patience
from tests.attach import test_floor as floor
from tests.attach.conftest import finish_writing
from tests.attach.test_floor import alone, trained  # noqa: F401  (fixtures)
from tests.slow import by_need

pytestmark = floor.pytestmark

BOUNDARIES, MOVES = floor.BOUNDARIES, 3
DEADLINE_S = 60.0


class Node(floor.Node):
    """Waits until a parked rank has written itself, or for nothing, before it lets it go on, or kills it."""

    def __init__(self, monkeypatch, is_patient=True):
        super().__init__(monkeypatch)
        self.is_patient = is_patient
        #: of each park: the newest boundary that was whole on disk
        self.saved = []

    def write_parked(self):
        """Order the rank to park at its next boundary, and to write itself."""
        self.park(wire.TIER_BEHIND)

    def _answer(self, pause_s):
        end_s = patience.deadline(DEADLINE_S)
        while self.is_patient and self._page.read()[wire.W_SAVING]:
            assert time.monotonic() < end_s, "it never came to the end of its writing"
            time.sleep(0.001)
        self.saved.append(self._page.read()[wire.W_SAVED])
        super()._answer(pause_s)


@pytest.fixture
def make_node(monkeypatch):
    nodes = []

    def _make_node(is_patient=True):
        nodes.append(Node(monkeypatch, is_patient))
        return nodes[-1]

    yield _make_node
    finish_writing()
    for node in nodes:
        node.close()


@pytest.fixture
def train_alike(alone, trained):  # noqa: F811
    """Train with something done at boundaries; losses and weights are those of a run alone."""

    want = alone("adam")  # before there is a node

    def _train_alike(watch):
        assert trained("adam", watch) == want

    return _train_alike


@pytest.fixture(params=["hold", "torch-cpu"])
def tier(request, monkeypatch):
    monkeypatch.setenv("GANDIVA_TIER", request.param)
    return request.param


def watch_at(node, *boundaries):
    calls = itertools.count(1)
    return lambda run, _: next(calls) in boundaries and node.write_parked()


def whole(place):
    """The counts of the checkpoints that are complete and sound, the newest first."""
    found = checkpoint.complete(checkpoint.Store(str(place), floor_script(place), 0, 1, "0", 0))
    assert not any(checkpoint.fault(saved, {0}) for saved in found)
    return [saved.at for saved in found]


def floor_script(place):
    names = {path.name.split("-")[0] for path in Path(place).glob("*-*-*")}
    return names.pop() if names else "none"


@pytest.mark.parametrize("name", by_need(recipes.SOLO, "adam"))
def test_a_training_goes_on_from_what_was_written_while_it_was_parked(
    name, tier, alone, trained, make_node, monkeypatch  # noqa: F811
):
    """Killed where it stands parked; in the last life too, memory in several slabs."""
    monkeypatch.setattr(host, "LEAST_SLAB", 64)
    monkeypatch.setattr(host, "LARGEST_SLAB", 256)
    want, lines, chance = alone(name), [], random.Random(name)
    for life in range(MOVES + 1):
        node, last = make_node(), chance.randint(1, BOUNDARIES // MOVES)
        node.is_killing = life < MOVES
        watch = watch_at(node, last) if node.is_killing else lambda run, number: None
        lines = trained(name, watch, life, lines)
        assert node.saved == [last] * node.is_killing
    assert lines == want


def test_parks_that_write_change_no_bit_and_two_stay(tier, train_alike, make_node, place):
    node, at = make_node(), (5, 9, 30, 31)
    train_alike(watch_at(node, *at))
    assert node.saved == list(at) and len(whole(place)) == checkpoint.KEEP


def test_what_is_not_through_when_its_turn_comes_is_given_up(
    tier, train_alike, make_node, place, monkeypatch, capfd
):
    """The training neither waits for it nor finds its tensors kept; what was whole before is whole still."""
    node, calls = make_node(), itertools.count(1)

    def watch(run, _):
        at = next(calls)
        if at in (4, 8):
            node.is_patient = at == 4
            monkeypatch.setattr(behind, "RATE", behind.RATE if at == 4 else 1000)
            node.write_parked()

    started_s = time.monotonic()
    train_alike(watch)
    assert node.saved == [4, 4] and time.monotonic() - started_s < DEADLINE_S * patience.slowness()
    finish_writing()
    assert "its turn came before it was written" in capfd.readouterr().err
    assert len(whole(place)) == 1 and not list(Path(place).rglob("*.tmp"))


class Full:
    """A file that takes some writes, and then says why no more."""

    def __init__(self, file, number):
        self.file, self.number, self.calls = file, number, itertools.count(1)

    def write(self, data):
        if next(self.calls) > 3:
            raise OSError(self.number, os.strerror(self.number))
        return self.file.write(data)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_costs_the_training_nothing(
    number, train_alike, make_node, place, monkeypatch, capfd
):
    node = make_node()
    real = checkpoint._Output.__init__
    monkeypatch.setattr(checkpoint._Output, "__init__", lambda self, file: real(self, Full(file, number)))
    train_alike(watch_at(node, 5))
    said = capfd.readouterr().err
    assert node.saved == [0] and "not saved while parked, training goes on: no " in said
    assert whole(place) == [] and not list(Path(place).rglob("*.tmp"))


def test_a_disk_with_little_room_left_is_not_begun_on(train_alike, make_node, place, monkeypatch, capfd):
    node = make_node()
    monkeypatch.setattr(behind, "ROOM", 1 << 60)
    train_alike(watch_at(node, 5))
    assert node.saved == [0] and "no space left for a checkpoint in" in capfd.readouterr().err
    assert not list(Path(place).rglob("*.data"))


def test_a_disk_that_hangs_keeps_nobody_waiting(
    tier, train_alike, make_node, place, monkeypatch, capfd
):
    """The training goes on and parks, and is not written a second time meanwhile."""
    gate, real = threading.Event(), os.fsync

    def hangs(fd):
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(DEADLINE_S)
        real(fd)

    node = make_node(is_patient=False)
    monkeypatch.setattr(checkpoint.os, "fsync", hangs)
    try:
        train_alike(watch_at(node, 5, 9, 13))
    finally:
        gate.set()
    assert len(node.said) == 3 and node.saved == [0, 0, 0]
    number = wire.TIER_TORCH if tier == "torch-cpu" else wire.TIER_HOLD
    assert {used for used, *_ in node.said} == {number}, "memory is moved beside a thread that hangs"
    assert "the file system has not taken the last one yet" in capfd.readouterr().err


def test_a_directory_of_another_users_is_refused(train_alike, make_node, place, capfd):
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's directory")
    node = make_node()
    place.mkdir()
    os.chown(place, 61001, 61001)
    train_alike(watch_at(node, 5))
    assert node.saved == [0] and "belongs to another user" in capfd.readouterr().err
    assert os.listdir(place) == []


class Lossy:
    """A file system by what of it is on the disk: bytes and names as of their last fsync."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.cuts = Path(directory), []
        self._bytes, self._names = {}, {}
        self._real = os.fsync
        monkeypatch.setattr(checkpoint.os, "fsync", self._fsync)

    def _fsync(self, fd):
        self._real(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            there = [entry for entry in path.iterdir() if not entry.is_dir()]
            self._names[path] = {entry.name: entry.stat().st_ino for entry in there}
        else:
            self._bytes[os.fstat(fd).st_ino] = path.read_bytes()
        self.cuts.append((dict(self._bytes), dict(self._names)))

    def after(self, cut, where):
        """Make a directory as it is when the power is back."""
        contents, names = cut
        for directory, files in names.items():
            made = where / directory.relative_to(self.directory)
            made.mkdir(parents=True, exist_ok=True)
            for name, inode in files.items():
                (made / name).write_bytes(contents.get(inode, b""))
                (made / name).chmod(0o600)
        return where


def test_power_is_cut_at_any_point_of_writing(train_alike, make_node, place, monkeypatch, tmp_path):
    """What was not synced is lost: the newest that is whole is sound, and none told of is gone."""
    node, disk = make_node(), Lossy(place, monkeypatch)
    train_alike(watch_at(node, 5, 9))
    assert node.saved == [5, 9]
    found = [whole(disk.after(cut, tmp_path / f"cut{number}")) for number, cut in enumerate(disk.cuts)]
    newest = [max(counts, default=0) for counts in found]
    assert newest == sorted(newest) and newest[-1] > newest[len(newest) // 2 - 1] > 0 and newest[0] == 0


class Box:
    """An object of a script's own, with a tensor in it."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_tensors_within_a_scripts_own_objects_are_written_as_they_were(fresh, make_node, place, monkeypatch):
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    fresh()
    model = torch.nn.Linear(4, 4)
    box, node = Box(model.weight.detach()), make_node()
    run = gandiva.attach(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    gandiva.on_save(lambda: box)
    for number in run.steps(range(5)):
        with torch.no_grad():
            model.weight += 1
        if number == 2:
            then = model.weight.detach().clone()
            node.write_parked()
    data = next(Path(place).rglob("*.data"))
    held = torch.load(data, weights_only=False)
    assert torch.equal(held["user"][0].tensor, then)
    assert torch.equal(held["parts"]["model"]["weights"]["weight"], then)
    assert node.said[0][0] == wire.TIER_TORCH
