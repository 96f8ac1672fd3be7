"""What an elastic job has grown into it keeps while it is saved and started anew, until others need it."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.engine import EngineSettings
from gandiva_slurm.model import job as states
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

QUANTUM_S = 5
#: A turn of idleness, a save and a start, and much more.
GROWN_S, LONG_S = 90, 600


def a_world(nodes: dict[str, int], min_run_s: int = 0) -> FakeWorld:
    """Moves cost next to nothing; a job stays `min_run_s` where it was started."""
    told = EngineSettings(QUANTUM_S * SECOND_NS, slots_per_gpu=2, min_run_ns=min_run_s * SECOND_NS)
    return FakeWorld(nodes, told, move_ns=SECOND_NS)


def resizes(world: FakeWorld, job_id: int) -> list[str]:
    """What its story says of its sizes, in order."""
    return [line.code for line in world.engine.jobs[job_id].story if line.code in ("Growing", "Shrinking")]


@pytest.mark.parametrize("min_run_s", [0, 30], ids=["moved at any time", "kept where it was started"])
def test_what_has_grown_stays_so_while_nobody_waits(min_run_s: int) -> None:
    world = a_world({"a": 2}, min_run_s)
    job = world.submit(elastic="1-2")
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing"], "once, and for good"
    assert world.engine.jobs[job].places == {"a": (0, 1)} and world.state_of(job) == states.RUNNING


def test_it_stays_grown_when_gandivactld_begins_anew() -> None:
    world = a_world({"a": 2})
    job = world.submit(elastic="1-2")
    world.run(GROWN_S)
    world.restart_controller(keep_journal=True)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing"]


@pytest.mark.parametrize("min_run_s", [0, 30], ids=["moved at any time", "kept where it was started"])
def test_it_gives_back_what_another_needs_and_grows_again_after_it(min_run_s: int) -> None:
    world = a_world({"a": 2}, min_run_s)
    job = world.submit(elastic="1-2")
    world.run(GROWN_S)
    other = world.submit("user2")
    world.run(GROWN_S)
    homes = (world.engine.jobs[job].places, world.engine.jobs[other].places)
    assert sorted(gpus for home in homes for gpus in home.values()) == [(0,), (1,)]
    world.finish(other)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing", "Shrinking", "Growing"]
