"""Rounds between two looks at Slurm: turns alone; and how far ahead users and jobs are, as nodes hear it."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.port import Plan
from gandiva_slurm.slicing.stride import STRIDE1
from tests.builders import SECOND_NS, an_association_tree
from tests.fake_world import FakeWorld
from tests.led_world import led


def two_on_one_gpu() -> FakeWorld:
    settings = EngineSettings(10 * SECOND_NS)
    world = FakeWorld({"a": 1}, settings)
    world.rigid = {1, 2}
    for user in ("user1", "user2"):
        world.submit(user)
    world.run(25)
    assert {record.state for record in world.engine.jobs.values()} <= {*states.SLICED}
    return world


def test_a_round_hands_gpus_over_when_the_quantum_ends() -> None:
    world = two_on_one_gpu()
    decider, seen = world.engine.decider, []
    for _ in range(6):
        world.now_ns = decider.wake_ns
        assert world.engine.handle([ev.RoundTick()], world.now_ns) == []
        assert decider.turn_ns == world.now_ns < decider.wake_ns
        seen.append({place.key.job_id for place in world.engine.plan_jobs("a") if place.is_on})
    assert seen in ([{1}, {2}] * 3, [{2}, {1}] * 3)


def test_a_round_starts_and_moves_nothing() -> None:
    world = led({"a": 1, "b": 1})
    one, two = world.submit(), world.submit()
    world.plan({one: (0,)})
    world.says.runs = {one: (1,), two: (0,)}
    for _ in range(3):
        world.now_ns += SECOND_NS
        assert world.engine.handle([ev.RoundTick()], world.now_ns) == []
        assert world.engine.jobs[one].state in states.SLICED
        assert world.engine.jobs[two].state == states.HELD
        assert world.on(one) is False, "its GPU is another's now"
    world.run(10)
    assert world.place(one).gpus == (0,) and set(world.engine.jobs[one].places) == {"b"}
    assert set(world.engine.jobs[two].places) == {"a"}, "at the looks that follow"


def test_nodes_hear_how_far_users_and_jobs_are_ahead_in_passes_of_all_their_tickets() -> None:
    """user1 has 3 of 4 tickets and two jobs, on two nodes; each node has a part of the tickets."""
    world = led({"a": 1, "b": 1})
    world.tree = an_association_tree(user1=3, user2=1)
    first, second, third = world.submit("user1"), world.submit("user1"), world.submit("user2")
    ahead = {first: (600, 100), second: (600, 0), third: (0, 0)}
    world.says.answer = lambda view: Plan(
        {job: gpus for job, gpus in world.says.runs.items() if job in view.jobs},
        ahead={job: lead for job, lead in ahead.items() if job in view.jobs},
    )
    world.plan({first: (0,), second: (1,)})
    world.plan({third: (0,), second: (1,)})
    places = {place.key.job_id: place for name in "ab" for place in world.engine.plan_jobs(name)}
    assert places.keys() == {first, second, third}
    told = {job: passes for name in "ab" for job, *passes in world.engine.ahead(name)}
    whole = places[first].tickets + places[second].tickets
    assert told[first] == [600 * STRIDE1 // whole, 100 * STRIDE1 // places[first].tickets]
    assert told[second] == [600 * STRIDE1 // whole, 0] and told[third] == [0, 0]
    assert whole == pytest.approx(3 * places[third].tickets, rel=1e-5)
