"""All interleavings of ranks on several nodes: nobody waits for ever, nobody releases before all hold.

State counts (pytest -s prints them) are what makes "0 found" mean something: each test asks for a minimum.
"""

import pytest

from tests.part_explorer import PartExplorer, Scenario
from tests.slow import by_states

#: Name: scenario, and how many states it must at least have.
PROTOCOL = {
    "two nodes": (Scenario(ends=(2, 2), reaims=1), 20_000),
    "two nodes, aimed two ahead": (Scenario(ends=(3, 3), reaims=0, margin=2), 10_000),
    "two nodes, one step more for one": (Scenario(ends=(1, 2), reaims=1), 5_000),
    "two nodes whose hosts run a step ahead": (Scenario(ends=(2, 2), reaims=0, ahead=1), 15_000),
    "two nodes, orders get lost": (Scenario(ends=(1, 1), reaims=1, lossy=True, bounds=True), 40_000),
    "two nodes that do not wait for a slow chief": (Scenario(ends=(2, 2), reaims=0, bounds=True), 40_000),
    "two nodes, the chief dies": (Scenario(ends=(2, 2), reaims=0, crash=True, bounds=True), 60_000),
    "two nodes, orders get lost and daemons start anew": (
        Scenario(ends=(1, 1), reaims=0, restarts=True, lossy=True, bounds=True),
        20_000,
    ),
    "three nodes": (Scenario(ends=(1, 1, 1), reaims=0), 100_000),
}


@pytest.mark.parametrize("name", by_states(PROTOCOL))
def test_hold_then_commit_over_nodes_never_deadlocks_and_never_releases_early(name):
    scenario, want_states = PROTOCOL[name]
    found = PartExplorer(scenario).run()
    assert found.states >= want_states and found.parked > 0
    assert found.stuck == []
    assert found.unsafe == []


def test_a_chief_that_does_not_wait_for_all_is_caught():
    assert PartExplorer(Scenario(ends=(2, 2), reaims=0, hasty=True)).run().unsafe


@pytest.mark.parametrize("fault", [{"crash": True}, {"lossy": True}])
def test_nodes_without_bounds_would_wait_for_ever(fault):
    assert PartExplorer(Scenario(ends=(1, 1), reaims=0, **fault)).run().stuck
