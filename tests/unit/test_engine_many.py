"""Many jobs that come at once: they are placed over several cycles, as they would have been in one."""

import pytest

from gandiva_slurm.engine import placing
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.model import job as states
from tests.fake_world import FakeWorld, ruled


def a_crowd() -> FakeWorld:
    """Jobs of three users, more than two nodes have GPUs for at once; one fits nowhere."""
    world = ruled({"n1": 4, "n2": 4})
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
    world = ruled({"n1": 1, "n2": 1})
    for gpus in range(2, 20):
        world.submit("user1", gpus=gpus)
    fits = world.submit("user1")
    world.cycle()
    assert world.state_of(fits) == states.STARTING


def test_who_may_have_to_wait_comes_after_those_who_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MOST_LOOKS", 1)
    world = ruled({"n1": 2})
    depends = world.submit("user1", dependency="afterok:77(unfulfilled)")
    sure = [world.submit("user2") for _ in range(2)]
    world.cycle()
    assert [world.code_of(job_id) for job_id in (depends, *sure)] == ["NextCycle", "Starting", "NextCycle"]
    world.run(5)
    assert all(world.state_of(job_id) == states.RUNNING for job_id in sure)


def test_nobody_borrows_before_the_owner_has_had_his_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MOST_LOOKS", 1)
    settings = EngineSettings(virtual_clusters={"a": {"v100": 1}, "b": {"v100": 1}}, slots_per_gpu=2)
    world = ruled({"n1": 2}, settings)
    for user in ("user1", "user2"):
        world.submit(user, vc="a")
    world.run(5)
    borrows = world.submit("user3", vc="a")
    owners = [world.submit(user, vc="b") for user in ("user1", "user2")]
    world.cycle()
    assert [world.code_of(job_id) for job_id in (borrows, *owners)] == ["NextCycle", "Starting", "NextCycle"]
    world.run(5)
    assert all(world.engine.jobs[job_id].places == {"n1": (1,)} for job_id in owners)
    assert world.code_of(borrows) == "NoFreeSlots"
