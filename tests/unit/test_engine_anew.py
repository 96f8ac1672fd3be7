"""A job that has not begun goes elsewhere at no loss, whatever it knows; one that has begun stays."""

from __future__ import annotations

import pytest

from gandiva_slurm.accounting.losses import Moves
from gandiva_slurm.engine.lifecycle.moving import ANEW, moves_by
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import PolicySettings
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.led_world import led

QUANTUM_NS = 10 * SECOND_NS


def test_one_that_borrowed_a_gpu_and_has_not_begun_makes_way_to_its_own() -> None:
    """The owner's job comes while it is being started there: it would wait for as long as that runs."""
    settings = EngineSettings(QUANTUM_NS, virtual_clusters={"a": {"v100": 1}, "b": {"v100": 1}})
    told = PolicySettings(QUANTUM_NS, restart_ns=2 * SECOND_NS)
    world = FakeWorld({"n1": 1, "n2": 1}, settings, make_policy=lambda: gandiva_fair.make(told))
    first, second = (world.submit(user, vc="a") for user in ("user1", "user2"))
    world.wayless = {first, second}
    world.run(1)
    owner = world.submit("user3", vc="b")
    seen: dict[int, int] = {}
    for _ in range(240):
        world.run(1)
        for job in world.engine.state.on:
            seen[job] = seen.get(job, 0) + 1
    codes = [line.code for line in world.engine.jobs[second].story]
    assert "NotBegun" in codes and world.jobs[second].restart == 1
    assert world.engine.jobs[first].nodes == world.engine.jobs[second].nodes
    assert seen[owner] > 220 and min(seen[first], seen[second]) > 80, seen


@pytest.mark.parametrize(
    "options, by",
    [({}, ANEW), ({"checkpoint": "self"}, ANEW), ({"elastic": "1-2"}, ""), ({"migrate": "never"}, "")],
)
def test_one_that_has_not_begun_says_so_and_one_that_has_stays(options: dict[str, object], by: str) -> None:
    world = led({"n1": 1})
    job = world.submit(**options)
    world.wayless = {job}
    world.plan({}, cycles=10)
    if world.state_of(job) == states.HELD:
        world.plan({job: (0,)}, cycles=1)
        world.plan({}, cycles=5)
    assert moves_by(world.engine.state, world.engine.jobs[job]) == by
    world.plan({job: (0,)}, cycles=10)
    after = options.get("checkpoint", "")
    assert moves_by(world.engine.state, world.engine.jobs[job]) == after


def test_its_move_has_lost_nothing_and_told_no_cost() -> None:
    moves = Moves()
    run = {"moved_ns": 0, "moved_by": "", "written_ns": 0, "save_ns": 0, "signalled_ns": 0, "gone_ns": 0}
    run |= {"reached": -1, "begun": -1, "steps": 0}
    moves.add({**run, "moved_ns": 5, "moved_by": "anew"})
    moves.add({**run, "begun": 0, "steps": 70})
    told = moves.told()
    assert (told["migrations"], told["lost_steps"], told["ckpt_s"], told["moved_by"]) == (1, 0, 0, ["anew"])


def test_a_move_is_given_up_when_its_turn_came_first() -> None:
    world = led({"n1": 1, "n2": 1})
    job, other = world.submit(), world.submit()
    world.wayless = {job, other}
    world.plan({job: (0,), other: (1,)}, cycles=6)
    second = world.submit()
    world.wayless.add(second)
    world.plan({second: (1,)}, cycles=1)
    world.plan({other: (1,)}, cycles=6)
    assert moves_by(world.engine.state, world.engine.jobs[second]) == ANEW
    world.turns_away = 3
    world.plan({second: (0,)}, cycles=1)
    assert world.state_of(second) == states.CHECKPOINTING
    (proc,) = [proc for (_, key), proc in world.procs.items() if key.job_id == second]
    proc.held_ns = 1
    world.run(3)
    (line,) = [line for line in world.engine.jobs[second].story if line.code == "MoveFailed"]
    assert "it has begun" in line.text and world.jobs[second].restart == 0
