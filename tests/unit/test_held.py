"""What jobs have held, as told and as planned since; shares hold however late the word of nodes is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.lifecycle.event_handlers import resident_gone
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.held import follow_plan, held_ns, held_told
from gandiva_slurm.engine.state.records import EngineState, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.event import HeldTold, ResidentGone
from gandiva_slurm.model.ids import JobKey
from tests.builders import SECOND_NS, an_association_tree
from tests.fake_world import FakeWorld

QUANTUM_NS = SECOND_NS


@pytest.fixture
def world() -> FakeWorld:
    """A job on a node of two GPUs, and another's that waits for one of these."""
    made = FakeWorld({"n1": 2}, EngineSettings(QUANTUM_NS))
    made.submit("user1", 2)
    made.submit("user2", 1)
    made.run(20, 0.5)
    return made


def gpus_of(record: JobRecord) -> int:
    """How many it lives on."""
    return sum(map(len, record.places.values()))


def cycle(world: FakeWorld, seconds: float = 0.0) -> Cycle:
    """A cycle so much later, on what the engine knows now."""
    now_ns = world.now_ns + round(seconds * SECOND_NS)
    return Cycle(world.engine.state, world.settings, now_ns)


def test_what_is_not_told_yet_is_held_as_planned(world: FakeWorld) -> None:
    """From the node's last word on, by all GPUs of the job; the next word counts alone."""
    state = world.engine.state
    (on,) = state.on
    record = state.jobs[on]
    before_ns, gpus = held_ns(cycle(world), record), gpus_of(record)
    follow_plan(cycle(world, 0.7))
    assert held_ns(cycle(world), record) == before_ns + gpus * 7 * SECOND_NS // 10
    assert record.held_ns == before_ns
    told_ns = before_ns + SECOND_NS // 2
    state.followed_ns = cycle(world, 0.7).now_ns  # that plan goes on
    held_told(cycle(world, 1), HeldTold("n1", ((record.key, told_ns),), world.now_ns + SECOND_NS // 2))
    assert held_ns(cycle(world), record) == record.held_ns == told_ns
    follow_plan(cycle(world, 1))  # of that the second half is not told
    assert held_ns(cycle(world), record) == told_ns + gpus * 3 * SECOND_NS // 10
    other = next(each for job_id, each in state.jobs.items() if job_id != on)
    assert held_ns(cycle(world), other) == other.held_ns


def test_of_a_shared_gpu_half_is_planned(world: FakeWorld) -> None:
    state = world.engine.state
    (on,) = state.on
    other = next(job_id for job_id in state.jobs if job_id != on)
    state.on.add(other)
    seen = state.sightings["n1", state.jobs[on].key]
    seen.measured = replace(seen.measured, mate=other)
    before_ns = held_ns(cycle(world), state.jobs[on])
    follow_plan(cycle(world, 1))
    assert held_ns(cycle(world), state.jobs[on]) == before_ns + gpus_of(state.jobs[on]) * SECOND_NS // 2


@pytest.mark.parametrize("lacks", ["daemon", "node", "sighting", "place"])
def test_nothing_is_taken_from_a_plan_of_which_nothing_was_heard(world: FakeWorld, lacks: str) -> None:
    state = world.engine.state
    (on,) = state.on
    record = state.jobs[on]
    if lacks == "daemon":
        state.nodes["n1"].has_daemon = False
    elif lacks == "node":
        del state.nodes["n1"]
    elif lacks == "sighting":
        del state.sightings["n1", record.key]
    else:
        record.state = states.STARTING
    before_ns = held_ns(cycle(world), record)
    follow_plan(cycle(world, 1))
    assert held_ns(cycle(world), record) == before_ns


def test_word_of_what_is_not_known_changes_nothing(world: FakeWorld) -> None:
    before = world.engine.to_json()
    held_told(cycle(world), HeldTold("n1", ((JobKey(99, 0), 5),), world.now_ns))
    assert world.engine.to_json() == before


def test_what_was_planned_is_kept_over_a_restart(world: FakeWorld) -> None:
    follow_plan(cycle(world, 0.3))
    state = world.engine.state
    kept = Engine.from_json(world.settings, world.engine.to_json(), world.leader()).state
    assert (kept.followed_ns, kept.sightings) == (state.followed_ns, state.sightings)
    older = state.to_json()  # of a release that did not follow plans
    del older["followed_ns"]
    assert EngineState.from_json(older).followed_ns == 0


def test_what_was_not_told_before_the_end_is_kept(world: FakeWorld) -> None:
    """Of an incarnation that is gone the node says nothing more."""
    state = world.engine.state
    (on,) = state.on
    record = state.jobs[on]
    follow_plan(cycle(world, 0.3))
    by_then_ns = held_ns(cycle(world), record)
    resident_gone(cycle(world, 0.3), ResidentGone("n1", record.key))
    assert record.held_ns == by_then_ns == held_ns(cycle(world), record)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_shares_hold_however_late_the_word_of_nodes_is(late: int, seed: int) -> None:
    """It is half a quantum old, or missing for some; a user's quantum that is not told yet is no other's."""
    world = FakeWorld({"n1": 2, "n2": 1}, EngineSettings(QUANTUM_NS), move_ns=0)
    world.tree = an_association_tree(user1=5, user2=1, user3=2)
    rng = random.Random(seed)
    world.late_steps = lambda: rng.randint(0, late)
    world.types = {"n1": "v100", "n2": "k80"}
    owners = {}
    for user, gpus, kind in (
        ("user1", 2, "v100"), ("user2", 1, "v100"), ("user2", 1, "v100"),
        ("user1", 1, "k80"), ("user3", 1, "k80"), ("user3", 1, "k80"),
    ):  # fmt: skip
        job_id = world.submit(user, gpus)
        job = world.jobs[job_id]
        world.jobs[job_id] = replace(job, options=replace(job.options, types=(kind,)))
        owners[job_id] = user

    def gpu_s() -> dict[str, float]:
        found = dict.fromkeys(world.users, 0.0)
        for (_, key), proc in world.procs.items():
            found[owners[key.job_id]] += proc.held_ns / SECOND_NS
        return found

    world.run(60, 0.5)
    before = gpu_s()
    world.run(300, 0.5)
    held = {user: gpu - before[user] for user, gpu in gpu_s().items()}
    parts = {user: gpu / sum(held.values()) for user, gpu in held.items()}
    assert parts == pytest.approx({"user1": 5 / 8, "user2": 1 / 8, "user3": 2 / 8}, rel=0.02)
