"""kill -9 at random points of park, restore and the writing of a parked state, on the simulated card."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

from gandiva_slurm.client import checkpoint
from gandiva_slurm.client.checkpoint import Store
from gandiva_slurm.wire import page as wire
from tests import patience
from tests.device import card
from tests.park_harness import Harness, is_alive, wait_until
from tests.slow import long_form, soak

#: Of a kill: order given, how long after it at most, in seconds (quiet machine: what each of them takes).
WHEN = {"park": 0.02, "write": 0.09, "restore": 0.02}
#: Mini-batches of a life before it is told to park.
STEPS, JOB = 4, "7"
KILLS = [
    8,
    long_form(40, why="20 s; eight kills in make test"),
    pytest.param(200, marks=soak("90 s; forty kills in make test-all")),
]


class Lives:
    """One training after the other, each killed, and what they leave behind."""

    def __init__(self, env, directory):
        command = [sys.executable, "-m", "tests.device.lives"]
        self.directory, self.number = directory, itertools.count()
        self.out, self.kept = directory / "losses", directory / "kept"
        self.source = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, out, steps, **more):
        words = {"OUT": str(out), "STEPS": str(steps), "BYTES_PER_S": str(400 << 20), **more}
        self.source.stdin.write(json.dumps(words) + "\n")
        self.source.stdin.flush()
        return int(self.source.stdout.readline())

    def life(self):
        """Begin the next life of the job; return its pid and the node that plays with it."""
        number = next(self.number)
        node = Harness(str(self.directory / f"{number}.sock"), 1)
        words = {"GANDIVA_SOCKET": str(self.directory / f"{number}.sock"), "SLURM_JOB_ID": JOB}
        words |= {"SLURM_RESTART_COUNT": str(number), "GANDIVA_CHECKPOINT_DIR": str(self.kept)}
        return self.begin(self.out, 10**9, **words), node

    def lines(self, out=None):
        found = [line.split() for line in (out or self.out).read_text().splitlines()]
        return [(int(number), loss) for number, loss in found]

    def newest(self):
        """The mini-batches done by the newest checkpoint, all of which are sound; 0 without any."""
        found = checkpoint.complete(Store(str(self.kept), "lives", 0, 1, JOB, 0))
        assert not any(checkpoint.fault(saved, {0}) for saved in found)
        return torch.load(checkpoint.data_path(found[0], 0))["place"][3] if found else 0

    def close(self):
        self.source.stdin.close()
        self.source.wait()


@pytest.fixture
def lives(card_env, tmp_path):
    made = Lives(card_env, tmp_path)
    yield made
    made.close()


def kill(node, pid, at, chance):
    """Have it do what it is to be killed in, and kill it; return how it stood, and what was told as whole."""
    node.serve(30, STEPS)
    node.peers[0].page.write([(wire.W_TIER, wire.TIER_BEHIND)])
    node.begin_park()
    if at != "park":
        node.wait(lambda: node.gang.phase == "parked", "the park", between=node.tick)
    if at == "restore":
        is_over = chance.random() < 0.5
        node.wait(lambda: not (is_over and node.views()[0][wire.W_SAVING]), "the writing")
        node.write(node.gang.resume(node.views(), time.monotonic_ns()))
    until_s = time.monotonic() + chance.random() * WHEN[at]
    while time.monotonic() < until_s:
        node.tick()
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "it to be dead")
    (view,) = node.views()
    return wire.STATE_NAMES[view[wire.W_STATE]] + " writing" * bool(view[wire.W_SAVING]), view


def alone(lives, steps):
    """The losses of `steps` mini-batches that nobody touched, on the card."""
    out = lives.directory / "alone"
    pid = lives.begin(out, steps)
    wait_until(lambda: not is_alive(pid), "the training alone", patience.MOST * 60)
    return dict(lives.lines(out))


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_any_point_the_state_is_sound(lives, card_path, kills):
    """Nothing stays on the card, what is on disk is whole, and the next life goes on from it to the bit."""
    chance, stood, midway, began = random.Random(18), Counter(), 0, []
    started_s = time.monotonic()
    for number in range(kills):
        saved = lives.newest()
        before = len(lives.lines()) if lives.out.exists() else 0
        pid, node = lives.life()
        try:
            how, view = kill(node, pid, list(WHEN)[number % 3], chance)
        finally:
            node.close()
        stood[how] += 1
        assert card.used(card_path) == {}, "the card is free"
        assert lives.lines()[before][0] == saved, "it went on from the newest that was whole"
        began.append(saved)
        assert lives.newest() >= saved + bool(view[wire.W_SAVED]), "what was told is there"
        midway += any(lives.kept.glob(f"*-{JOB}.{number}/*.tmp"))
    found = lives.lines()
    want = alone(lives, max(number for number, _ in found) + 1)
    assert [loss for _, loss in found] == [want[number] for number, _ in found]
    assert began == sorted(began) and began[-1] > STEPS and len(set(want.values())) > len(want) * 0.9
    took_s = time.monotonic() - started_s
    print(f"{kills} kills in {took_s:.0f} s: {dict(stood)}, {midway} with a file half written")
