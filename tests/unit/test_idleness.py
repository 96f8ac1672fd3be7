"""engine.idleness: jobs that hold GPUs and do nothing with them are told of, set behind, and taken back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.lifecycle import idleness
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

TELL_S, PARK_S, QUANTUM_S = 600, 1200, 60


def a_world(requeue: bool = False, gpus: int = 1, **settings: object) -> FakeWorld:
    """Job 1 is on the first GPU, and may be idle."""
    times = {"idle_tell_ns": TELL_S * SECOND_NS, "idle_park_ns": PARK_S * SECOND_NS}
    made = EngineSettings(**{**times, "idle_requeue": requeue, "slots_per_gpu": 2, **settings})  # type: ignore[arg-type]
    world = FakeWorld({"n1": gpus}, made)
    world.submit("user1")
    world.run(5)
    return world


def code(world: FakeWorld, job_id: int = 1) -> str:
    """What its row of the queue says it is for, "" for nothing of this."""
    reason = idleness.reason_of(world.engine.state, world.engine.jobs[job_id])
    return reason.code if reason is not None else ""


def codes(world: FakeWorld) -> list[str]:
    """The reasons in its story that are of this."""
    return [line.code for line in world.engine.jobs[1].story if line.code.startswith("Idle")]


def test_it_is_told_of_then_set_behind_and_taken_back_when_it_works() -> None:
    world = a_world()
    other = world.submit("user2")
    world.run(5)
    assert (code(world), world.engine.jobs[1].is_opportunistic) == ("", False)
    world.idle[1] = TELL_S - 1
    world.run(2)
    assert code(world) == ""
    world.idle[1] = TELL_S
    world.run(2)
    record = world.engine.jobs[1]
    assert code(world) == "IdleGpus" and not record.is_opportunistic
    (line, then) = idleness.told(world.settings, world.engine.state, record, world.now_ns)
    assert line.startswith("its GPUs have been idle for 600 s") and "idle for 1800 s" in then
    world.idle[1] = TELL_S + PARK_S
    world.run(QUANTUM_S + 5)
    assert code(world) == "IdleParked" and record.is_opportunistic
    assert world.engine.state.on == {other}, "it has what others leave"
    assert codes(world) == ["IdleGpus", "IdleParked"]
    world.idle[1] = 0
    world.run(2)
    assert code(world) == "" and not record.is_opportunistic
    world.run(3 * QUANTUM_S)
    assert record.held_ns > 0 and record.state in states.SLICED


def test_while_nobody_wants_its_gpus_it_keeps_them() -> None:
    world = a_world()
    world.idle[1] = TELL_S + PARK_S
    world.run(QUANTUM_S + 5)
    assert code(world) == "IdleParked" and world.engine.state.on == {1}


def test_one_that_has_waited_long_has_a_turn_to_work_in_and_no_more() -> None:
    world = a_world()
    world.submit("user2")
    world.idle[1] = TELL_S + PARK_S
    world.run(QUANTUM_S + 5)
    seen: list[tuple[str, bool]] = []
    for _ in range(4000):
        world.cycle()
        seen.append((code(world), 1 in world.engine.state.on))
        world.idle[1] += 1 if seen[-1][1] else 0
    tries = [now for before, now in itertools.pairwise(seen) if now[0] != before[0]]
    assert [name for name, _ in tries[:2]] == ["IdleGpus", "IdleParked"]
    assert any(on for _, on in seen), "it had a turn"
    assert sum(on for _, on in seen) <= 5 * QUANTUM_S


@pytest.mark.parametrize("fields", [{"batch": False}, {}])
def test_off_and_of_interactive_jobs_nothing_is_said(fields: dict[str, bool]) -> None:
    world = a_world(idle_tell_ns=0 if not fields else TELL_S * SECOND_NS)
    world.jobs[1] = replace(world.jobs[1], **fields)
    world.idle[1] = 10 * (TELL_S + PARK_S)
    world.run(PARK_S, 10)
    assert codes(world) == [] and not world.engine.jobs[1].is_opportunistic


def test_told_only_where_the_site_has_no_time_to_park() -> None:
    world = a_world(idle_park_ns=0)
    world.idle[1] = 100 * TELL_S
    world.run(20)
    assert codes(world) == ["IdleGpus"] and not world.engine.jobs[1].is_opportunistic
    assert len([*idleness.told(world.settings, world.engine.state, world.engine.jobs[1], world.now_ns)]) == 1


@pytest.mark.parametrize(
    ("requeue", "can_be_saved", "waits", "want"),
    [(True, True, True, 1), (False, True, True, 0), (True, False, True, 0), (True, True, False, 0)],
)
def test_requeued_where_the_site_says_so_it_can_be_saved_and_others_wait(
    requeue: bool, can_be_saved: bool, waits: bool, want: int
) -> None:
    world = a_world(requeue)
    if not can_be_saved:
        world.rigid.add(1)
    world.submit("user2")
    world.run(5)
    if waits:
        world.submit("user1")
    world.run(30)
    world.idle[1] = TELL_S + PARK_S
    actions = world.run(PARK_S + 3 * QUANTUM_S)
    requeued = [action for action in actions if isinstance(action, Requeue) and action.key.job_id == 1]
    assert len(requeued) == want
    made_way = any(line.code == "MakingWay" for line in world.engine.jobs[1].story)
    assert made_way == bool(want)


def test_it_is_remembered_over_a_restart_and_forgotten_when_the_site_turns_it_off() -> None:
    world = a_world()
    world.idle[1] = TELL_S + PARK_S
    world.run(20)
    data = world.engine.to_json()
    again = Engine.from_json(world.settings, data, world.leader())
    assert again.jobs[1].idle == world.engine.jobs[1].idle and again.jobs[1].is_opportunistic
    world.engine.settings = replace(world.settings, idle_tell_ns=0)
    world.run(2)
    assert not world.engine.jobs[1].is_opportunistic
