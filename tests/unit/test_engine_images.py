"""The engine and process images: a way like any other for what knows no other, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.lifecycle.moving import IMAGE, is_attached, moves_by
from gandiva_slurm.model import job as states
from tests.fake_world import FakeWorld
from tests.led_world import led


@pytest.mark.parametrize(
    "options, by",
    [
        ({}, IMAGE),
        ({"checkpoint": "self"}, "self"),
        ({"checkpoint": "signal:USR1@20"}, "signal"),
        ({"elastic": "1-2"}, ""),
        ({"migrate": "never"}, ""),
    ],
)
def test_only_what_knows_no_other_way_is_moved_by_an_image(options: dict[str, object], by: str) -> None:
    world = FakeWorld({"n1": 2, "n2": 2})
    world.submit(**options)
    world.run(5)
    state, record = world.engine.state, world.engine.jobs[1]
    at = ("n1", record.key)
    state.sightings[at] = replace(
        state.sightings[at], measured=replace(state.sightings[at].measured, framework=IMAGE)
    )
    assert record.nodes and moves_by(state, record) == by
    assert is_attached(state, record) == (by == IMAGE or options.get("migrate") == "never")


def test_where_host_memory_is_short_it_makes_way_by_its_image_and_comes_back() -> None:
    """Turns without residency, for what has no checkpoint: a parked job leaves for one that comes."""
    world = led({"n1": 1})
    first, second = (world.submit(memory_mib=200_000) for _ in range(2))
    world.frameworks = {first: IMAGE, second: IMAGE}
    world.plan({first: (0,)})
    world.plan({second: (0,)}, cycles=20)
    assert (world.state_of(first), world.state_of(second)) == (states.HELD, states.RUNNING)
    codes = [line.code for line in world.engine.jobs[first].story]
    assert codes[codes.index("MakingWay") :][:3] == ["MakingWay", "Imaged", "MadeWay"]
    world.plan({first: (0,)}, cycles=20)
    assert (world.state_of(first), world.state_of(second)) == (states.RUNNING, states.HELD)
