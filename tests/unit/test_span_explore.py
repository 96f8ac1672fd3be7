"""All interleavings of a span's parts and the controller: none is stuck, no GPU is given on too early.

State counts (pytest -s prints them) are what
makes "0 found" mean something: each test asks for a minimum.
"""

from __future__ import annotations

import pytest

from gandiva_slurm.model.span import AIM, COMMIT, FREE
from gandiva_slurm.slicing.span_park import SpanMove
from tests.slow import long_form
from tests.span_explorer import Explorer, Scenario

#: Name: scenario, and how many states it must at least have.
PROTOCOL = {
    "two nodes": (Scenario(loses=False), 1_000),
    "two nodes, the controller dies": (Scenario(loses=False, crash=True), 1_500),
    "three nodes": (Scenario(nodes=3, loses=False, reaims=0), 4_000),
}
LONG = {
    "two nodes, a gandivad is killed": (Scenario(loses=False, kills=1), 3_000),
    "two nodes, the controller dies and comes back": (
        Scenario(loses=False, reaims=0, crash=True, comes_back=True),
        5_000,
    ),
    "two nodes, anything gets lost": (Scenario(), 15_000),
    "two nodes, orders are sent again": (Scenario(resends=1), 20_000),
    "two nodes, a gandivad is killed, all else too": (Scenario(reaims=2, resends=1, kills=1), 60_000),
    "two nodes, the controller dies, anything gets lost": (Scenario(crash=True), 15_000),
    "two nodes, controller and gandivad die and come back": (
        Scenario(crash=True, comes_back=True, kills=1),
        60_000,
    ),
    "three nodes, three aims": (Scenario(nodes=3, loses=False, reaims=2), 8_000),
}
NAMES = [*PROTOCOL, *(long_form(name, why="12 s and more") for name in LONG)]


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_stuck_and_nothing_is_given_on_too_early(name: str) -> None:
    scenario, want_states = (PROTOCOL | LONG)[name]
    found = Explorer(scenario).run()
    assert found.states >= want_states
    assert found.stuck == []
    assert found.unparkable == []
    assert found.unsafe == []


class CommitsEarly(SpanMove):
    """Lets ranks release as soon as one part holds."""

    def answered(self, *told):  # type: ignore[no-untyped-def]
        sends = super().answered(*told)
        return self._enter(COMMIT, self.nodes, 0) if self.stage == AIM and self._done else sends


class FreesEarly(SpanMove):
    """Lets GPUs be given on as soon as one part has released."""

    def answered(self, *told):  # type: ignore[no-untyped-def]
        sends = super().answered(*told)
        return self._enter(FREE, self.nodes, 0) if self.stage == COMMIT and self._done else sends


@pytest.mark.parametrize("move", [CommitsEarly, FreesEarly])
def test_explorer_catches_a_controller_that_does_not_wait_for_all(move: type[SpanMove]) -> None:
    assert Explorer(Scenario(loses=False, reaims=0, stops_at_unsafe=True, move=move)).run().unsafe


def test_explorer_catches_nodes_that_give_gpus_on_before_all_have_released() -> None:
    spoiled = "GPUs are given on at once"
    assert Explorer(Scenario(loses=False, reaims=0, stops_at_unsafe=True, spoiled=spoiled)).run().unsafe


def test_explorer_catches_nodes_that_wait_for_a_dead_controller() -> None:
    found = Explorer(Scenario(loses=False, reaims=0, crash=True, spoiled="no bounds")).run()
    assert found.stuck and not found.unsafe


def test_explorer_catches_nodes_that_obey_an_order_of_a_park_before() -> None:
    assert Explorer(Scenario(reaims=0, stops_at_unsafe=True, spoiled="stale orders are obeyed")).run().unsafe
