"""engine.moving: a job is told to leave, saves itself, is requeued, and goes on on the place kept for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.lifecycle.moves_told import told
from gandiva_slurm.engine.lifecycle.moving import begin_move
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import OWNER_HOLD_S, EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue
from gandiva_slurm.model.ids import JobKey
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

TARGET = {"n2": (1,)}


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld({"n1": 2, "n2": 2})
    world.submit()
    world.run(5)
    assert world.engine.jobs[1].nodes == ("n1",)
    return world


def leave(world: FakeWorld, target: dict[str, tuple[int, ...]] = TARGET) -> None:
    """Have job 1 leave for a target."""
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, world.engine.jobs[1], target, "n2 is empty")


def path(world: FakeWorld, job_id: int = 1) -> list[str]:
    """The states a job went through, and the last reason."""
    return [line.to for line in world.engine.jobs[job_id].story if line.from_ != line.to]


def test_job_that_leaves_goes_on_on_its_target(world: FakeWorld) -> None:
    leave(world)
    record = world.engine.jobs[1]
    assert (record.state, record.code) == (states.CHECKPOINTING, "Leaving")
    assert record.text == "saves itself in its next turn, to go on on n2 GPU 1: n2 is empty"
    actions = world.run(30)
    assert [type(action) for action in actions].count(Requeue) == 1
    assert path(world)[2:] == ["CHECKPOINTING", "REQUEUED", "STARTING", "RUNNING"]
    assert record.places == {"n2": (1,)}
    assert (record.job.restart, record.target, record.travels.is_moving) == (1, {}, False)
    assert world.run(120) == [], "settled: nothing acts any more"


def test_what_a_move_cost_is_measured(world: FakeWorld) -> None:
    leave(world)
    world.run(30)
    travels = world.engine.jobs[1].travels
    assert 2 * SECOND_NS <= travels.cost_ns <= 10 * SECOND_NS
    (line,) = told(world.engine.jobs[1], world.now_ns)
    assert line.startswith("moves in the last hour: 1, the last one cost ")


def test_nodes_plan_says_leaving_as_long_as_it_is_so(world: FakeWorld) -> None:
    world.rigid.add(1)
    leave(world)
    world.run(3)
    assert [place.is_leaving for place in world.engine.plan_jobs("n1")] == [True]
    world.run(900)
    assert [place.is_leaving for place in world.engine.plan_jobs("n1")] == [False]


@pytest.mark.parametrize("what", ("well", "never", "requeue", "rigid", "off"))
def test_job_that_cannot_be_moved_stays(what: str) -> None:
    """Three users on two GPUs of two nodes: each goes where its turn is, but for one that cannot."""
    settings = EngineSettings(10 * SECOND_NS, slots_per_gpu=1, moves=what != "off")
    world = FakeWorld({"n1": 1, "n2": 1}, settings, move_ns=SECOND_NS)
    job_id = world.submit("user1", migrate="never" if what == "never" else "auto", requeue=what != "requeue")
    if what == "rigid":
        world.rigid.add(job_id)
    world.run(5)
    for user in ("user2", "user3"):
        world.submit(user)
    world.run(600)
    was_told = any(line.to == states.CHECKPOINTING for line in world.engine.jobs[job_id].story)
    assert (was_told, world.jobs[job_id].restart > 0) == (what == "well",) * 2


def test_job_that_cannot_save_itself_stays_and_rests(world: FakeWorld) -> None:
    world.saves_badly.add(1)
    leave(world)
    assert not any(isinstance(action, Requeue) for action in world.run(905))
    record = world.engine.jobs[1]
    assert record.state == states.RUNNING
    line = next(line for line in record.story if line.code == "MoveFailed")
    assert line.text == "was not moved to n2 GPU 1: it had not saved itself within 900 s: disk full"
    assert record.travels.wait_until_ns - world.now_ns > 1700 * SECOND_NS
    assert (record.target, record.travels.is_moving) == ({}, False)


def test_requeue_that_slurm_refuses_is_given_up(world: FakeWorld) -> None:
    world.refuse_requeues = True
    leave(world)
    actions = world.run(70)
    asked = [action for action in actions if isinstance(action, Requeue)]
    assert 3 < len(asked) <= 70 * SECOND_NS // world.settings.retry_ns + 1, "asked again, not in each cycle"
    record = world.engine.jobs[1]
    assert (record.state, record.places) == (states.RUNNING, {"n1": (0,)})
    assert any("Requested operation is presently disabled" in line.text for line in record.story)
    proc = world.procs["n1", JobKey(1, 0)]
    assert (proc.state, proc.has_left) == (states.RUNNING, False), "it goes on where it is"


@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_target_lost_on_the_way_costs_no_job(world: FakeWorld, after_s: int) -> None:
    """It is no failed move either, after which none would be tried for a while."""
    leave(world)
    world.run(after_s)
    record = world.engine.jobs[1]
    world.lose_node("n2")
    world.run(60)
    assert (record.state, record.nodes, record.target) == (states.RUNNING, ("n1",), {})
    assert (record.travels.failures, record.travels.wait_until_ns) == (0, 0), record.told()


@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_home_lost_on_the_way_costs_no_job(world: FakeWorld, after_s: int) -> None:
    leave(world)
    world.run(after_s)
    world.lose_node("n1")
    world.run(60)
    record = world.engine.jobs[1]
    assert (record.state, record.nodes, record.target) == (states.RUNNING, ("n2",), {})


@pytest.mark.parametrize("keep_journal", (False, True))
@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_controller_restarts_on_the_way(world: FakeWorld, after_s: int, keep_journal: bool) -> None:
    leave(world)
    world.run(after_s)
    world.restart_controller(keep_journal)
    world.run(60)
    record = world.engine.jobs[1]
    assert record.state == states.RUNNING
    if keep_journal:
        assert record.places == {"n2": (1,)}
    assert world.run(120) == []


@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_cancelled_on_the_way_leaves_nothing_kept(world: FakeWorld, after_s: int) -> None:
    leave(world)
    world.run(after_s)
    world.finish(1, "CANCELLED")
    world.run(5)
    record = world.engine.jobs[1]
    assert (record.state, record.target, record.travels.is_moving) == (states.ENDED, {}, False)


@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_requeued_by_its_owner_on_the_way(world: FakeWorld, after_s: int) -> None:
    leave(world)
    world.run(after_s)
    if world.jobs[1].state == "RUNNING":
        world.requeue(1)
    world.run(60)
    record = world.engine.jobs[1]
    assert record.state == states.RUNNING
    assert world.run(120) == []


def test_held_by_its_owner_on_the_way_gives_its_place_to_others(world: FakeWorld) -> None:
    leave(world)
    while world.state_of(1) != states.REQUEUED:
        world.cycle()
    world.jobs[1] = replace(world.jobs[1], eligible_s=OWNER_HOLD_S, priority=0)
    world.run(10)
    record = world.engine.jobs[1]
    assert (record.state, record.code, record.target) == (states.HELD, "HeldByUser", {})


def test_moved_job_waits_behind_nobody_for_limits(world: FakeWorld) -> None:
    """A peer that a limit keeps waiting, and that came first, does not take its part of it meanwhile."""
    older = world.submit(gpus=1)
    world.jobs[older] = replace(world.jobs[older], submit_s=1)
    world.ignore_starts = True
    world.cycle()
    world.jobs[older] = replace(world.jobs[older], reason="QOSMaxGRESPerUser")
    world.run(2)
    assert world.code_of(older) == "Limit"
    world.ignore_starts = False
    leave(world)
    world.run(20)
    assert world.engine.jobs[1].places == TARGET


def test_start_that_fails_on_the_target_is_tried_anywhere(world: FakeWorld) -> None:
    leave(world)
    while world.state_of(1) != states.REQUEUED:
        world.cycle()
    world.refuse_starts = True
    world.run(10)
    assert world.engine.jobs[1].travels.failures == 1
    world.refuse_starts = False
    world.run(60)
    assert world.state_of(1) == states.RUNNING


def test_no_requeue_on_a_word_of_yesterday(world: FakeWorld) -> None:
    """Whoever leaves must be said to have left in that very cycle."""
    leave(world)
    world.cycle()
    assert world.procs["n1", JobKey(1, 0)].has_left
    assert not any(isinstance(action, Requeue) for action in world.cycle(reports=False))
    assert any(isinstance(action, Requeue) for action in world.cycle())


def test_rates_are_kept_by_gpu_type() -> None:
    world = FakeWorld({"n1": 2})
    world.types, world.rates = {"n1": "k80"}, {"k80": 2.5}
    world.submit()
    world.run(5)
    assert world.engine.jobs[1].travels.rates == {"k80": 2.5}


# over nodes


def leave_both(world: FakeWorld) -> JobKey:
    """A job of two nodes leaves for two others."""
    job_id = world.submit(gpus=2, span=2)
    world.run(5)
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, world.engine.jobs[job_id], {"n3": (1,), "n4": (0,)}, "they are empty")
    return world.engine.jobs[job_id].key


@pytest.fixture
def wide() -> FakeWorld:
    return FakeWorld({f"n{n}": 2 for n in range(1, 5)})


def test_job_of_several_nodes_goes_on_on_its_target(wide: FakeWorld) -> None:
    key = leave_both(wide)
    record = wide.engine.jobs[key.job_id]
    wide.cycle()
    assert [place.is_leaving for name in record.nodes for place in wide.engine.plan_jobs(name)] == [True] * 2
    actions = wide.run(30)
    assert [type(action) for action in actions].count(Requeue) == 1
    assert record.places == {"n3": (1,), "n4": (0,)}
    assert (record.job.restart, record.target, record.travels.is_moving) == (1, {}, False)
    assert wide.run(120) == [], "settled: nothing acts any more"


def test_it_is_requeued_when_all_its_nodes_have_just_said_that_it_has_left(wide: FakeWorld) -> None:
    key = leave_both(wide)
    one, two = wide.engine.jobs[key.job_id].nodes
    wide.procs[two, key].is_movable = False
    assert not any(isinstance(action, Requeue) for action in wide.run(10))
    assert wide.procs[one, key].has_left
    wide.procs[two, key].is_movable = True
    wide.cycle()
    wide.mute = {one}
    assert not any(isinstance(action, Requeue) for action in wide.run(5)), "the other said so earlier"
    wide.mute = set()
    assert any(isinstance(action, Requeue) for action in wide.run(2))


def test_where_one_node_cannot_save_its_part_all_of_it_goes_on(wide: FakeWorld) -> None:
    key = leave_both(wide)
    record = wide.engine.jobs[key.job_id]
    wide.saves_badly.add(key.job_id)
    homes = record.nodes
    assert not any(isinstance(action, Requeue) for action in wide.run(905))
    assert (record.state, record.nodes) == (states.RUNNING, homes)
    (line,) = [line for line in record.story if line.code == "MoveFailed"]
    assert line.text.endswith("it had not saved itself within 900 s: disk full, disk full")


@pytest.mark.parametrize("lost", (0, 1))
@pytest.mark.parametrize("after_s", (0, 1, 2, 3, 4, 5))
def test_a_home_or_a_target_of_several_lost_on_the_way_costs_no_job(
    wide: FakeWorld, after_s: int, lost: int
) -> None:
    key = leave_both(wide)
    record = wide.engine.jobs[key.job_id]
    wide.run(after_s)
    wide.lose_node((*record.nodes, "n3")[0] if lost else "n4")
    wide.run(60)
    assert record.state == states.RUNNING and len(record.nodes) == 2 and not record.target
