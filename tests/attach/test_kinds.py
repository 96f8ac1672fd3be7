"""Trainings of more kinds: their memory is moved while they are parked, and they are moved, to the bit."""

import itertools
import random

import pytest

from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.wire import page as wire
from tests import attach_recipes as recipes
from tests.attach import kinds
from tests.attach import test_floor as floor
from tests.attach.test_floor import alone, trained  # noqa: F401  (fixtures)
from tests.attach.test_parked import make_node  # noqa: F401  (a fixture)
from tests.skips import NO_COMPILER
from tests.slow import slow

pytestmark = [
    floor.pytestmark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    slow("a minute of a compiler in all; plain loops are in test_floor"),
]

PARKS, MOVES = 12, 3


@pytest.fixture
def kind(request, monkeypatch, tmp_path_factory):
    """One more recipe; skipped where it cannot be made here."""
    name = request.param
    if name == "compiled" and not kinds.has_compiler():
        pytest.skip(NO_COMPILER)
    if name == "custom_op" and not hasattr(kinds.torch.ops.gandiva_kinds, "squared"):
        kinds.build_op(tmp_path_factory.mktemp("op"))
    if name == "accelerated":
        pytest.importorskip("accelerate", reason="accelerate is not installed here")
    monkeypatch.setitem(recipes.SOLO, name, lambda device: kinds.KINDS[name]())
    return name


@pytest.mark.parametrize("kind", kinds.KINDS, indirect=True)
def test_its_memory_is_moved_while_it_is_parked_and_comes_back(
    kind, alone, trained, make_node, monkeypatch  # noqa: F811
):
    want = alone(kind)
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    before, kept = CpuGauge(kinds.torch).live(), 2 * kinds.torch.get_rng_state().nbytes
    at, calls = set(random.Random(kind).sample(range(floor.BOUNDARIES), PARKS)), itertools.count()
    node = make_node()
    assert trained(kind, lambda run, _: next(calls) in at and node.park()) == want
    assert len(node.said) == PARKS
    for used, released, held, *_ in node.said:
        assert (used, released > 300) == (wire.TIER_TORCH, True)
        assert held <= before + kept, "all but what is the host's on any device"


@pytest.mark.parametrize("kind", kinds.KINDS, indirect=True)
@pytest.mark.parametrize("asked", [wire.TIER_REQUEUE, wire.TIER_BEHIND], ids=["leaves", "written"])
def test_it_is_moved_to_the_bit(kind, asked, alone, trained, make_node):  # noqa: F811
    """Saved at a random boundary, killed where it stands parked there, started again."""
    want, lines, chance = alone(kind), [], random.Random(kind)
    for life in range(MOVES + 1):
        node, calls, last = make_node(), itertools.count(1), chance.randint(1, floor.BOUNDARIES // MOVES)
        node.is_killing = life < MOVES

        def watch(run, _, node=node, calls=calls, last=last):
            if next(calls) == last and node.is_killing:
                node.park(asked)

        lines = trained(kind, watch, life, lines)
    assert lines == want
