"""Trainings on one card, each 0.6 of it: in turns by the client's own tier, and without."""

import contextlib
import json
import subprocess
import sys

import pytest

from gandiva_slurm.wire.page import TIER_TORCH
from tests.device import card
from tests.device.conftest import CONTEXT, MIB
from tests.device.trainer import STEPS
from tests.slow import slow

SEEDS = (1, 2)
#: Of this a training takes 0.6, its context included.
TOTAL = 150 * MIB


@pytest.fixture
def card_path(tmp_path):
    return card.make(tmp_path / "card", TOTAL, CONTEXT)


class Trainer:
    """A training's process, and what it says."""

    def __init__(self, env, recipe, seeds, mode):
        command = [sys.executable, "-m", "tests.device.trainer", recipe, seeds, mode]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self):
        line = self.process.stdout.readline()
        assert line, "the training ended without a word"
        return json.loads(line)

    def turn(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()


@pytest.fixture
def start(card_env):
    """Start trainings; those that run on at the end are ended."""
    with contextlib.ExitStack() as stack:

        def begin(recipe, seeds, mode):
            trainer = Trainer(card_env, recipe, str(seeds), mode)
            stack.enter_context(trainer.process)
            stack.callback(trainer.process.kill)
            return trainer

        yield begin


@pytest.fixture(scope="module")
def alone():
    """By seed: what the training comes to when it has the card for itself."""
    return {}


def run_alone(start, alone):
    if not alone:
        trainer = start("mlp", ",".join(map(str, SEEDS)), "alone")
        alone.update({seed: trainer.hear() for seed in SEEDS})
        trainer.process.wait()
    return alone


@slow("17 s of processor; the trainings in turns below are compared with runs alone on the card")
def test_bits_are_the_cpus(start):
    said = start("compare", "", "").hear()
    assert len(said["same"]) == 9 and all(said["same"].values()), said
    assert len(said["apart"]) == 2 and max(said["apart"].values()) < 1e-5, "cells of its own round otherwise"
    assert said["autocast"] == "torch.bfloat16"


def test_two_trainings_that_do_not_fit_together_take_turns(start, alone, card_path):
    wanted = run_alone(start, alone)
    assert all(0.55 < (CONTEXT + said["peak"]) / TOTAL < 0.65 for said in wanted.values()), wanted
    trainers = {seed: start("mlp", seed, "parked") for seed in SEEDS}
    ended = {}
    while len(ended) < len(SEEDS):
        for seed, trainer in trainers.items():
            if seed in ended:
                continue
            said = trainer.turn()
            if said["what"] == "done":
                ended[seed] = said
                trainer.process.wait()
                continue
            released, held, *_ = said["done"]
            assert (said["what"], said["tier"]) == ("parked", TIER_TORCH)
            assert released > 64 * MIB and held == 0
            assert card.used(card_path)[trainer.process.pid] == CONTEXT, "a context is all that stays"
    for seed, said in ended.items():
        assert said["losses"] == wanted[seed]["losses"] and len(set(said["losses"])) == STEPS
        assert said["addresses"] == STEPS, "memory came back elsewhere"
    assert card.used(card_path) == {}


def test_without_parking_the_second_runs_out_of_memory(start, alone):
    wanted = run_alone(start, alone)
    first, second = (start("mlp", seed, "resident") for seed in SEEDS)
    assert first.turn()["what"] == "resident"
    said = second.turn()
    assert said["what"] == "out of memory" and "card out of memory" in said["error"]
    for _ in range(STEPS - 1):
        said = first.turn()
    assert said["losses"] == wanted[SEEDS[0]]["losses"], "the first is none the worse"


def test_restore_on_a_full_card_raises_and_works_later(start, alone, card_path):
    wanted = run_alone(start, alone)
    trainer = start("mlp", SEEDS[0], "parked")
    assert trainer.turn()["what"] == "parked"
    with card.occupied(card_path, 2 * TOTAL // 3):
        said = trainer.turn()
        assert said["what"] == "no room" and "card out of memory" in said["error"]
        assert card.used(card_path)[trainer.process.pid] == CONTEXT, "it has taken nothing"
        assert trainer.turn()["what"] == "no room"
    for _ in range(STEPS - 1):
        said = trainer.turn()
    assert said["losses"] == wanted[SEEDS[0]]["losses"]
