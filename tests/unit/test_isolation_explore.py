"""Every order of events around a node that may be cut off: no two incarnations work, none is forgotten.

State counts (pytest -s prints them) are what makes "0 found" mean something: each test asks for a minimum.
"""

from __future__ import annotations

import pytest

from gandiva_slurm.slicing import lease
from tests.isolation_explorer import Explorer, Scenario
from tests.slow import by_states

SLURM, LED, OTHER = frozenset({"slurmctld"}), frozenset({"controller"}), frozenset({"other"})

#: Name: scenario, and how many states it must at least have. By each way alone a job that stands still must
#: be able to go on, or end.
PROTOCOL = {
    "slurmctld alone is heard, and dies": (Scenario(SLURM, dies=True), 15_000),
    "the same, and gandivad is killed": (Scenario(SLURM, kills=1), 30_000),
    "the longest silence that is safe": (Scenario(SLURM, silence=4), 20_000),
    "another gandivad alone is heard, all others die": (Scenario(OTHER, dies=True), 10_000),
    "the same, there is a third one": (Scenario(OTHER, dies=True, are_all=False), 8_000),
    "gandivactld alone is heard": (Scenario(LED), 100_000),
    "gandivactld alone is heard, and does not hear Slurm": (Scenario(LED, blind=True), 100_000),
    "slurmctld and another are heard, all others die": (Scenario(SLURM | OTHER, dies=True), 80_000),
    "slurmctld and another are heard, gandivad is killed": (Scenario(SLURM | OTHER, kills=1), 150_000),
}

#: What is spoiled, and where that shows.
SPOILED = {
    "an answer is enough": (Scenario(SLURM), 10_000),
    "heard again is enough": (Scenario(SLURM), 10_000),
    "any answer counts": (Scenario(OTHER), 5_000),
    "nobody keeps its word": (Scenario(OTHER, dies=True), 10_000),
    "a new gandivad begins anew": (Scenario(SLURM, kills=1), 10_000),
    "plans are as old as their way": (Scenario(LED), 61_000),
    "blind plans hold nothing up": (Scenario(LED, blind=True), 61_000),
}


@pytest.mark.parametrize("name", by_states(PROTOCOL, "gandivactld alone is heard, and does not hear Slurm"))
def test_no_two_incarnations_work_and_none_stands_still_for_ever(name: str) -> None:
    scenario, want_states = PROTOCOL[name]
    found = Explorer(scenario).run()
    assert found.unsafe == []
    assert found.stuck == []
    assert found.states >= want_states


@pytest.mark.parametrize("name", by_states(SPOILED, "blind plans hold nothing up"))
def test_explorer_catches(name: str) -> None:
    scenario, _ = SPOILED[name]
    assert Explorer(scenario._replace(spoiled=name)).run().unsafe


def test_explorer_catches_a_node_that_forgets_whom_it_has_frozen() -> None:
    found = Explorer(Scenario(SLURM, spoiled="what is shown is not looked at")).run()
    assert found.stuck and not found.unsafe


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(SLURM, silence=5),
        Scenario(SLURM, can_ask=False),
        Scenario(SLURM, kills=1, has_guard=True),
    ],
    ids=["a silence too long", "scontrol cannot be run", "no gandivad comes, and the guard lets go"],
)
def test_what_is_not_promised(scenario: Scenario) -> None:
    """Two may work where the site asks for too much, and where no gandivad can find out, or none is there."""
    assert Explorer(scenario).run().unsafe


def test_nodes_that_hear_slurm_do_not_speak_for_it() -> None:
    """Else a job that Slurm has started anew would be held back for ever by one that is cut off."""
    bounds = lease.Bounds(silence=10, kept_back=2)
    assert lease.is_nobodys(100, bounds, last_heard=109)
    assert not lease.is_nobodys(100, bounds, last_heard=110)
