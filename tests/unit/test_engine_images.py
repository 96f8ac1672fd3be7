"""The engine and process images: a way like any other for what knows no other, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.lifecycle.moving import IMAGE, is_attached, moves_by
from tests.fake_world import FakeWorld


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
