"""All interleavings of ranks and coordinator: nobody waits for ever, nobody releases before all hold.

State counts (pytest -s prints them) are what makes "0 found" mean something: each test asks for a minimum.
"""

import pytest

from gandiva_slurm.client import machine
from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    HOLD,
    PARKED,
    RELEASING,
    RESTORING,
    RUN,
    command_of,
    generation_of,
)
from tests.park_explorer import NOW, Explorer, Scenario
from tests.slow import by_states

#: Name: scenario, and how many states it must at least have.
PROTOCOL = {
    "two ranks, any number of parks": (Scenario(ends=(4, 4), reaims=5), 30_000),
    "two ranks, three parks, no states merged": (Scenario(ends=(2, 2), reaims=0, exact_parks=3), 30_000),
    "two ranks aimed two ahead": (Scenario(ends=(5, 5), margin=2), 20_000),
    "two ranks, words in any order": (Scenario(ends=(3, 3), reaims=1, any_order=True), 50_000),
    "two ranks, one step more for one": (Scenario(ends=(3, 4)), 30_000),
    "two ranks whose hosts run two steps ahead": (Scenario(ends=(4, 4), reaims=1, ahead=2), 30_000),
    "two ranks, release may fail": (Scenario(ends=(3, 3), may_fail=True), 15_000),
    "two ranks, coordinator dies": (Scenario(ends=(3, 3), crash=True), 20_000),
    "two ranks, coordinator dies, words in any order": (
        Scenario(ends=(2, 2), crash=True, any_order=True),
        50_000,
    ),
    "two ranks, coordinator dies and another takes over": (
        Scenario(ends=(3, 3), crash=True, comes_back=True),
        60_000,
    ),
    "three ranks": (Scenario(ends=(3, 3, 3), reaims=1), 100_000),
    "three ranks, uneven ends": (Scenario(ends=(2, 3, 4), reaims=0), 100_000),
    "three ranks whose hosts run a step ahead": (Scenario(ends=(3, 3, 3), reaims=0, ahead=1), 100_000),
    "three ranks, coordinator dies": (Scenario(ends=(2, 2, 2), crash=True), 100_000),
    "one rank, coordinator dies and another takes over": (
        Scenario(ends=(4,), crash=True, comes_back=True),
        1_000,
    ),
}


@pytest.mark.parametrize("name", by_states(PROTOCOL))
def test_hold_then_commit_never_deadlocks_and_never_releases_early(name):
    scenario, want_states = PROTOCOL[name]
    found = Explorer(scenario).run()
    assert found.states >= want_states and found.parked > 0
    assert found.stuck == []
    assert found.unsafe == []


def acknowledge_then_park(place, order, seq, now_ns, bounds):
    """The variant of ADR 0007's alternatives: say yes to the aim, go on, park at it once committed."""
    gen, command = generation_of(order.word), command_of(order.word)
    if place.state in (RELEASING, PARKED, RESTORING):
        return machine.advance(place, order, seq, now_ns, bounds)
    if place.state == HOLD and gen == place.gen:
        if command == CMD_COMMIT and seq == place.seq:
            return place._replace(state=RELEASING), machine.RELEASE
        if seq > place.seq:
            return place._replace(state=RUN, missed=gen), machine.GO
        return place, machine.GO
    if command == CMD_AIM and order.at >= seq and gen != place.served:
        return place._replace(state=HOLD, gen=gen, seq=order.at), machine.GO
    return machine.advance(place._replace(state=RUN), order, seq, now_ns, bounds)


def park_at_once(place, order, seq, now_ns, bounds):
    """The variant without a commit: whoever reaches the aim releases."""
    after, effect = machine.advance(place, order, seq, now_ns, bounds)
    if after.state == HOLD:
        return after._replace(state=RELEASING), machine.RELEASE
    return after, effect


def never_leave(place, order, seq, now_ns, bounds):
    """The variant that trusts its node to come back."""
    return machine.advance(place, order, seq, NOW, bounds)


def test_explorer_catches_acknowledge_then_park():
    found = Explorer(Scenario(ends=(3, 3), margin=2, advance=acknowledge_then_park, looks_early=True)).run()
    assert found.unsafe, "a rank that releases while another trains went unseen"


def test_explorer_catches_parking_without_commit():
    found = Explorer(Scenario(ends=(3, 3), advance=park_at_once)).run()
    assert found.unsafe


def test_explorer_catches_ranks_that_wait_for_a_dead_coordinator():
    found = Explorer(Scenario(ends=(3, 3), crash=True, advance=never_leave)).run()
    assert found.stuck and not found.unsafe
