"""Many jobs that come at once: they are placed over several cycles, as they would have been in one."""

import pytest

from gandiva_slurm.engine import placing
from gandiva_slurm.model import job as states
from tests.fake_world import FakeWorld


def a_crowd() -> FakeWorld:
    """Jobs of three users, more than two nodes have GPUs for at once; one fits nowhere."""
    world = FakeWorld({"n1": 4, "n2": 4})
    for n in range(12):
        world.submit(f"user{1 + n % 3}", gpus=1 + n % 2)
    world.submit("user1", gpus=3)
    world.submit("user1", gpus=9)
    return world


def places(world: FakeWorld) -> dict[int, object]:
    return {job_id: record.places for job_id, record in world.engine.jobs.items()}


def test_who_is_not_looked_at_yet_is_told_so_and_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = a_crowd()
    at_once.run(30)
    monkeypatch.setattr(placing, "MOST_LOOKS", 4)
    world = a_crowd()
    world.cycle()
    started = [job_id for job_id, record in world.engine.jobs.items() if record.state == states.STARTING]
    assert len(started) == 2, "two nodes, so two jobs a cycle"
    assert sum(record.code == "NextCycle" for record in world.engine.jobs.values()) == 11
    world.run(30)
    assert places(world) == places(at_once)
    assert world.code_of(14) == "TooManyGpus"


def test_those_without_room_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MOST_LOOKS", 1)
    world = FakeWorld({"n1": 1, "n2": 1})
    for gpus in range(2, 20):
        world.submit("user1", gpus=gpus)
    fits = world.submit("user1")
    world.cycle()
    assert world.state_of(fits) == states.STARTING
