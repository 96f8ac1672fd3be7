"""Trainings that are saved and go on as if nothing had been, to the last bit; moved within this process."""

import argparse

import pytest

from tests import attach_recipes as recipes
from tests.attach_train import train
from tests.slow import long_form, soaked

# A script that goes on at an epoch's edge ends the epoch before its first step.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")

EPOCHS = 3


class Moved(BaseException):
    """The script is killed here."""


def job(recipe, workers=0, epochs=EPOCHS):
    return argparse.Namespace(recipe=recipe, workers=workers, epochs=epochs, step_ms=0, device="cpu")


def undisturbed(args, monkeypatch, fresh):
    """What the training computes outside Gandiva."""
    lines = []
    with monkeypatch.context() as alone:
        alone.delenv("GANDIVA_CHECKPOINT_DIR")
        fresh()
        recipes.seed(7)
        train(args, lines.append)
    return lines


def moved(args, stops, fresh):
    """What it computes when it is saved before each of the mini-batches `stops`, and killed there."""
    lines, stops = [], list(stops)
    for life in range(len(stops) + 1):
        stop = stops[life] if life < len(stops) else None
        fresh()
        recipes.seed(7 if life == 0 else 1000 + life)
        try:
            train(args, lines.append, watch_for(stop))
        except Moved:
            continue
        assert stop is None, f"it never came to {stop}"
    return lines


def watch_for(stop):
    """Save at the boundary before `stop` and end the script when it goes on behind it."""
    seen = []

    def watch(training, number):
        if seen:
            raise Moved
        if stop is not None and (training.epoch, number) == (stop[0], stop[1] - 1):
            training.save()
            seen.append(stop)

    return watch


PLACES = {
    "middle": [(0, 3), (1, 1), (1, 6)],
    "edges": [(0, recipes.BATCHES), (1, recipes.BATCHES + 1), (2, recipes.BATCHES)],
}


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize(
    "recipe, workers",
    [
        *((recipe, 0) for recipe in recipes.SOLO),
        long_form("adam", 2, why="test_frameworks has a worker"),
        *(soaked(recipe, 2, why="as adam") for recipe in recipes.SOLO if recipe != "adam"),
    ],
)
def test_moved_training_computes_what_it_would_have(recipe, workers, places, monkeypatch, fresh):
    args = job(recipe, workers)
    want = undisturbed(args, monkeypatch, fresh)
    assert len(set(want)) == EPOCHS * recipes.BATCHES + 1
    assert moved(args, PLACES[places], fresh) == want
