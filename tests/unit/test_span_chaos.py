"""Spans that want the same GPUs over a bad network: no GPU is held twice, and all take turns again."""

from __future__ import annotations

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.domains import Planned
from tests.slow import long_form, soaked
from tests.span_chaos import SECOND, Chaos

NODES = {"n1": 2, "n2": 2, "n3": 2}


def plan(number: int, *nodes: str) -> Planned:
    places = tuple((node, (0, 1)) for node in nodes)
    return Planned(JobKey(number, 0), f"user{number}", 1000, number, places)


#: Two on the same nodes; a chain; three that each overlap with both others.
SHAPES = {
    "the same nodes": [plan(1, "n1", "n2"), plan(2, "n1", "n2")],
    "a chain": [plan(1, "n1", "n2"), plan(2, "n2", "n3")],
    "a ring": [plan(1, "n1", "n2"), plan(2, "n2", "n3"), plan(3, "n1", "n3")],
}


def seeds(few: int, all_of_them: int) -> list[object]:
    """The first few in `make test`, one more in `make test-all`; half a second of processor time each."""
    more = [soaked(seed, why="one more seed") for seed in range(few + 1, all_of_them)]
    return [*range(few), long_form(few, why="one more seed"), *more]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(3, 8))
def test_all_take_turns_again_once_the_network_is_well(shape: str, seed: int) -> None:
    plans = SHAPES[shape]
    nodes = {node for plan in plans for node in plan.nodes}
    chaos = Chaos(seed, plans, {node: gpus for node, gpus in NODES.items() if node in nodes})
    chaos.run(20 * SECOND, loss=0.05)
    chaos.run(60 * SECOND, loss=0.2)
    chaos.crash((seed % 8 * 3 + 1) * SECOND)
    chaos.run(100 * SECOND, loss=0.1)
    assert chaos.wrong == []
    chaos.run(130 * SECOND)
    chaos.longest_torn_ns = 0
    calm_ns = chaos.now_ns
    chaos.run(190 * SECOND)
    assert chaos.wrong == []
    # Some answers are seven seconds late even then.
    assert chaos.longest_torn_ns < 30 * SECOND
    for key, turns in chaos.turns.items():
        assert any(at_ns > calm_ns for at_ns in turns), f"{key} has no turn any more"


def test_without_trouble_turns_are_equal() -> None:
    chaos = Chaos(1, SHAPES["the same nodes"], {"n1": 2, "n2": 2})
    chaos._way_ns = lambda: 5_000_000  # type: ignore[method-assign]
    chaos.run(100 * SECOND)
    assert chaos.wrong == []
    one, other = (chaos.here["n1", key].held_ns for key in chaos.plans)
    assert one == pytest.approx(other, rel=0.05) and one + other > 90 * SECOND
    assert chaos.longest_torn_ns < SECOND


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_gangs_that_refuse_to_park_leave_turns_to_all_over_a_bad_network(shape: str, seed: int) -> None:
    plans = SHAPES[shape]
    nodes = {node for plan in plans for node in plan.nodes}
    refuses = frozenset(plan.key for plan in plans[: 1 + seed % 2])
    chaos = Chaos(seed, plans, {node: NODES[node] for node in NODES if node in nodes}, refuses)
    chaos.run(60 * SECOND, loss=0.1)
    chaos.crash(5 * SECOND)
    chaos.run(100 * SECOND, loss=0.1)
    chaos.run(140 * SECOND)
    calm_ns = chaos.now_ns
    chaos.run(300 * SECOND)
    assert chaos.wrong == []
    for key, turns in chaos.turns.items():
        assert any(at_ns > calm_ns for at_ns in turns), f"{key} has no turn any more"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_gangs_told_to_leave_are_requeued_saved_whole_or_not_at_all(shape: str, seed: int) -> None:
    plans = SHAPES[shape]
    nodes = {node for plan in plans for node in plan.nodes}
    chaos = Chaos(seed, plans, {node: NODES[node] for node in NODES if node in nodes})
    leaver, other = plans[seed % len(plans)].key, plans[(seed + 1) % len(plans)].key
    chaos.failing = 1.0
    chaos.run(10 * SECOND, loss=0.1)
    chaos.leave(leaver)
    chaos.run(40 * SECOND, loss=0.2)
    chaos.crash((seed + 1) * 3 * SECOND)
    chaos.leave(other)
    while chaos.now_ns < 90 * SECOND:
        chaos.run(chaos.now_ns + 3 * SECOND, loss=0.1)
        chaos.restart(chaos.rng.choice(sorted(nodes)))
    chaos.leave(other, is_leaving=False)
    chaos.run(110 * SECOND, loss=0.1)
    chaos.failing, before = 0.0, len(chaos.requeued)
    chaos.leave(leaver)
    while not chaos.requeued[before:] and chaos.now_ns < 500 * SECOND:
        chaos.run(chaos.now_ns + 10 * SECOND)  # its turn comes late if it could not be parked for long before
    calm_ns = chaos.now_ns
    chaos.run(calm_ns + 90 * SECOND)
    assert chaos.wrong == [] and chaos.requeued[before:] == [leaver]
    for key, turns in chaos.turns.items():
        assert any(at_ns > calm_ns for at_ns in turns), f"{key} has no turn any more"
