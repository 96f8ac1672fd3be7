"""A hundred parks at random boundaries, and a dozen moves, change no bit of any kind of training.

All in one process: the rank's page is real, and whenever the rank waits there, its own sleep plays the node.
A hundred parks of moved memory are in tests/unit/test_client_offload.py; here fewer go all the way.
"""

import argparse
import contextlib
import itertools
import random

import pytest
from torch.utils._python_dispatch import _disable_current_modes

from gandiva_slurm.client import device, rank, stop
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.stop import Stop
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.pages import Page
from gandiva_slurm.wire import page as wire
from tests import attach_recipes as recipes
from tests import offload_kit as kit
from tests.attach_train import train
from tests.park_harness import map_words
from tests.slow import slow

# A script that goes on at an epoch's edge ends the epoch before its first step.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")

EPOCHS, MOVES = 16, 12
BOUNDARIES = EPOCHS * (recipes.BATCHES + 1)
#: GANDIVA_TIER, what the page calls it, how many parks.
TIERS = {"hold": (wire.TIER_HOLD, 100), "torch-cpu": (wire.TIER_TORCH, 20)}


class Killed(BaseException):
    """Slurm has ended this life of the job, where it stood parked."""


class Node:
    """Plays the node for the one rank of this process, and keeps what the rank said when it was parked."""

    def __init__(self, monkeypatch):
        self.is_killing = False
        #: Of each park: tier, bytes released and held by the page, bytes live before and meanwhile.
        self.said = []
        self.live = lambda: 0
        self._gen = self._before = 0
        self._page = Page.make(JobKey(1, 0), 0, 1, 0)
        mine = Rank("")
        mine.words = map_words(self._page.fd, wire.PAGE_BYTES)
        mine.stop = Stop(mine.words, 0, mine.seen)
        monkeypatch.setattr(mine.stop, "obey", self._unseen(mine.stop.obey))
        monkeypatch.setattr(rank, "_rank", mine)
        monkeypatch.setattr(stop, "sleep", self._answer)

    def park(self, tier=wire.TIER_HOLD):
        """Order the rank to park at its next boundary."""
        self._order(wire.CMD_COMMIT, 0, (wire.W_TIER, tier))

    def close(self):
        """Forget the rank."""
        self._page.close()

    def _answer(self, _pause_s):
        """The rank waits: it goes on, or is killed."""
        view = self._page.read()
        assert view[wire.W_STATE] == wire.PARKED, wire.STATE_NAMES[view[wire.W_STATE]]
        words = (wire.W_TIER_USED, wire.W_RELEASED, wire.W_HELD)
        self.said.append((*(view[word] for word in words), self._before, self.live()))
        if self.is_killing:
            raise Killed
        self._order(wire.CMD_RUN, wire.NEVER)

    def _order(self, command, at, *more):
        self._gen += 1
        order = ((wire.W_AT2, at), (wire.W_WORD, wire.word(self._gen, command)), (wire.W_AT, at))
        self._page.write([*more, *order])

    def _unseen(self, obey):
        def without_modes(*args):
            self._before = self.live()
            with _disable_current_modes():  # what the tier makes for itself is none of the training's
                obey(*args)

        return without_modes


@pytest.fixture
def make_node(monkeypatch):
    """Make the node of one life."""
    with contextlib.ExitStack() as nodes:

        def _make_node():
            node = Node(monkeypatch)
            nodes.callback(node.close)
            return node

        yield _make_node


@pytest.fixture
def trained(fresh):
    """Train anew as a process of its own would; return its lines, those of former lives before them."""

    def _trained(name, watch=lambda run, number: None, life=0, lines=(), workers=0):
        fresh()
        recipes.seed(7 if life == 0 else 1000 + life)
        lines = list(lines)
        job = argparse.Namespace(recipe=name, workers=workers, epochs=EPOCHS, step_ms=0, device="cpu")
        with contextlib.suppress(Killed):
            train(job, lines.append, watch)
        return lines

    return _trained


@pytest.fixture
def alone(trained, monkeypatch):
    """What a training computes outside Gandiva; each is trained once."""

    def _alone(name, workers=0):
        if (name, workers) not in _known:
            with monkeypatch.context() as outside:
                outside.delenv("GANDIVA_CHECKPOINT_DIR")
                _known[name, workers] = trained(name, workers=workers)
            assert len(set(_known[name, workers])) > EPOCHS * recipes.BATCHES * 0.9
        return _known[name, workers]

    return _alone


_known = {}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", [*recipes.SOLO, *recipes.FIXED])
def test_parks_change_no_bit(name, tier, alone, trained, make_node, monkeypatch):
    """Memory held, or moved off the device: then nothing is held."""
    want, (number, parks) = alone(name), TIERS[tier]
    monkeypatch.setenv("GANDIVA_TIER", tier)
    at, calls = set(random.Random(name).sample(range(BOUNDARIES), parks)), itertools.count()
    with kit.AllStorages() as storages:
        gauge, node = kit.ExactGauge(storages), make_node()
        node.live = storages.live
        monkeypatch.setattr(device, "CpuGauge", lambda torch: gauge)
        assert trained(name, lambda run, _: next(calls) in at and node.park()) == want
    assert len(node.said) == parks
    for used, released, held, before, meanwhile in node.said:
        assert (used, before > 300) == (number, True)
        assert (released, held, meanwhile) == ((before, 0, 0) if tier == "torch-cpu" else (0, 0, before))


@slow("30 s; 2 workers are in test_frameworks and test_moved, parks of moved memory above")
def test_parks_beside_loader_workers_change_no_bit(alone, trained, make_node, monkeypatch):
    """Its loader's processes read ahead while its memory is away; batches that they share stay."""
    want, parks = alone("adam", workers=2), 40
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    at, calls, node = set(random.Random(2).sample(range(BOUNDARIES), parks)), itertools.count(), make_node()
    assert trained("adam", lambda run, _: next(calls) in at and node.park(), workers=2) == want
    assert [(used, released > 300) for used, released, *_ in node.said] == [(wire.TIER_TORCH, True)] * parks


@pytest.mark.parametrize("name", recipes.SOLO)
def test_moves_change_no_bit(name, alone, trained, make_node):
    """Saved at a random boundary, killed where it stands parked there, started again."""
    want, lines, chance = alone(name), [], random.Random(name)
    for life in range(MOVES + 1):
        node, calls, last = make_node(), itertools.count(1), chance.randint(1, BOUNDARIES // MOVES)
        node.is_killing = life < MOVES

        def watch(run, _, node=node, calls=calls, last=last):
            if next(calls) == last and node.is_killing:
                node.park(wire.TIER_REQUEUE)

        lines = trained(name, watch, life, lines)
        assert [said[0] for said in node.said] == [wire.TIER_REQUEUE] * node.is_killing
    assert lines == want
