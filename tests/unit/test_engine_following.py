"""engine.engine: ends, requeues, node loss, fencing, and what nodes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain, Start
from gandiva_slurm.model.ids import JobKey
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld, an_engine, starts

NOW_NS = 2_000_000 * SECOND_NS

#: What a node says of one that is parked, and whether it has not begun.
BORN_OR_NOT = [("WaitingTurn", True), ("NoMemoryToBegin", True), ("Parked", False)]


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld({"n1": 4})


# ends, requeues, node loss


def test_finished_job_frees_its_place_and_is_forgotten_later(world: FakeWorld) -> None:
    job_id = world.submit(gpus=4)
    world.run(3)
    world.finish(job_id, "FAILED")
    assert world.cycle() == []
    record = world.engine.jobs[job_id]
    assert (record.state, record.places) == (states.ENDED, {})
    assert record.text == "finished: FAILED"
    world.run(1000, dt_s=10)
    assert job_id not in world.engine.jobs


def test_requeued_job_is_placed_anew(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.requeue(job_id)
    (hold,) = world.run(2)
    assert isinstance(hold, HoldAgain), "and no start: slurmd would refuse it within the second of the kill"
    (start,) = world.cycle()
    assert isinstance(start, Start)
    assert start.key == JobKey(job_id, 1)
    world.run(2)
    record = world.engine.jobs[job_id]
    codes = [line.code for line in record.story]
    assert codes == ["Starting", "Started", "Running", "Requeued", "Starting", "Started", "Running"]


def test_requeue_between_two_pictures_is_noticed_by_its_count(world: FakeWorld) -> None:
    """Slurm restarted it before the next picture: the new incarnation is adopted, with GPUs of its own."""
    job_id = world.submit()
    world.run(3)
    job = world.jobs[job_id]
    world.procs.clear()
    world.jobs[job_id] = replace(job, restart=1)
    world.run(8)
    record = world.engine.jobs[job_id]
    assert (record.state, record.key, record.places) == (states.RUNNING, JobKey(job_id, 1), {"n1": (0,)})


def test_completing_job_is_left_alone_until_slurm_says_more(world: FakeWorld) -> None:
    """COMPLETING hides whether it ended or was requeued; its old node is no sign that it runs there."""
    job_id = world.submit()
    world.run(3)
    job = world.jobs[job_id]
    world.jobs[job_id] = replace(job, state="COMPLETING", restart=1)
    world.run(5)
    assert (world.state_of(job_id), world.code_of(job_id)) == (states.HELD, "NotPending")
    world.jobs[job_id] = replace(job, state="PENDING", restart=1, nodes=())
    world.run(5)
    assert world.state_of(job_id) == states.RUNNING


def test_unknown_slurm_word_never_means_finished(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.jobs[job_id] = replace(world.jobs[job_id], state="HIBERNATING")
    world.run(5)
    assert world.state_of(job_id) == states.RUNNING


def test_older_picture_of_a_job_changes_nothing(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.requeue(job_id)
    world.run(5)
    old = replace(world.jobs[job_id], restart=0, state="PENDING", nodes=())
    world.engine.handle([ev.JobSeen(old)], world.now_ns)
    assert world.engine.jobs[job_id].key == JobKey(job_id, 1)
    assert world.state_of(job_id) == states.RUNNING


def test_job_on_a_dead_node_says_so_until_slurm_requeues_it() -> None:
    world = FakeWorld({"n1": 4, "n2": 4})
    job_id = world.submit()
    world.run(3)
    world.down.add("n1")
    world.mute.add("n1")
    world.cycle()
    assert (world.state_of(job_id), world.code_of(job_id)) == (states.RUNNING, "NodeDown")
    world.lose_node("n1", processes_live_on=True)
    world.run(5)
    assert world.jobs[job_id].nodes == ("n2",)
    assert world.state_of(job_id) == states.RUNNING


def test_requeue_of_a_finished_job_brings_it_back(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    job = world.jobs[job_id]
    world.finish(job_id)
    world.cycle()
    world.jobs[job_id] = replace(job, state="PENDING", restart=1, nodes=())
    world.run(5)
    assert world.state_of(job_id) == states.RUNNING


# fencing


def test_older_incarnation_on_a_lost_node_is_fenced_as_soon_as_the_newer_may_run() -> None:
    world = FakeWorld({"n1": 4, "n2": 4})
    job_id = world.submit()
    world.run(3)
    world.mute.add("n1")
    world.lose_node("n1", processes_live_on=True)
    world.run(4)
    assert world.engine.fences("n1") == (JobKey(job_id, 0),)
    assert ("n1", JobKey(job_id, 0)) in world.procs, "its daemon cannot hear it yet"
    world.mute.clear()
    world.run(3)
    assert ("n1", JobKey(job_id, 0)) not in world.procs
    assert world.engine.fences("n1") == ()


def test_job_that_ends_slowly_is_not_fenced(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.finish(job_id, "CANCELLED", lingers=True)
    world.run(35)
    assert world.engine.fences("n1") == ()
    world.procs.clear()
    world.run(60)
    assert world.engine.fences("n1") == ()


def test_what_outlives_its_job_for_long_is_fenced(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.finish(job_id, "CANCELLED", lingers=True)
    actions = world.run(60)
    assert [(action.code, action.key) for action in actions] == [("Leftover", JobKey(job_id, 0))]
    assert world.procs == {}


@pytest.mark.parametrize(("reason", "fenced"), BORN_OR_NOT)
def test_job_cancelled_before_its_first_turn_is_fenced_at_once(reason: str, fenced: bool) -> None:
    """slurmstepd signals no task that has not begun; one that has begun gets its time to end."""
    world = FakeWorld({"n1": 4})
    job_id = world.submit()
    world.run(3)
    job = replace(world.engine.jobs[job_id].job, state="COMPLETING")
    seen = ev.ResidentSeen("n1", JobKey(job_id, 0), states.SUSPENDED, (0,), reason, "")
    actions = world.engine.handle([seen, ev.JobSeen(job), ev.CycleTick()], world.now_ns)
    assert [action.code for action in actions] == ["Leftover"] * fenced


@pytest.mark.parametrize(("reason", "fenced"), BORN_OR_NOT)
def test_job_requeued_before_its_first_turn_is_fenced_at_once(reason: str, fenced: bool) -> None:
    """Slurm shows the new incarnation while the old one ends, whose tasks hear nothing of it."""
    world = FakeWorld({"n1": 4})
    job_id = world.submit()
    world.run(3)
    job = replace(world.engine.jobs[job_id].job, state="COMPLETING", restart=1)
    seen = ev.ResidentSeen("n1", JobKey(job_id, 0), states.SUSPENDED, (0,), reason, "")
    world.engine.handle([seen, ev.JobSeen(job), ev.CycleTick()], world.now_ns)
    assert world.engine.fences("n1") == (JobKey(job_id, 0),) * fenced


def test_nothing_is_fenced_before_slurm_was_read() -> None:
    engine = an_engine()
    stranger = ev.ResidentSeen("n1", JobKey(5, 0), states.RUNNING, (0,), "", "")
    for second in range(200):
        assert engine.handle([stranger, ev.CycleTick()], NOW_NS + second * SECOND_NS) == []
    assert engine.fences("n1") == ()


def test_job_slurm_has_not_shown_yet_is_not_fenced_at_once(world: FakeWorld) -> None:
    stranger = ev.ResidentSeen("n1", JobKey(5, 0), states.RUNNING, (0,), "", "")
    world.cycle()
    world.engine.handle([stranger, ev.CycleTick()], world.now_ns)
    assert world.engine.fences("n1") == ()


# what nodes say


def test_nodes_word_is_the_jobs_state(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    proc = world.procs["n1", JobKey(job_id, 0)]
    proc.state, proc.reason = states.SUSPENDED, "WaitingTurn"
    assert world.cycle() == []
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.SUSPENDED, "WaitingTurn")
    assert record.places == {"n1": (0,)}


def test_word_on_another_incarnation_or_node_is_not_believed(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    for node, key in (("n1", JobKey(job_id, 1)), ("n9", JobKey(job_id, 0))):
        seen = ev.ResidentSeen(node, key, states.SUSPENDED, (3,), "", "")
        world.engine.handle([seen], world.now_ns)
    assert world.state_of(job_id) == states.RUNNING
    assert world.engine.jobs[job_id].places == {"n1": (0,)}


def test_slicing_does_not_push_the_story_out(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    proc = world.procs["n1", JobKey(job_id, 0)]
    for turn in range(200):
        proc.state = states.SLICED[turn % 4]
        world.cycle()
    codes = [line.code for line in world.engine.jobs[job_id].story]
    assert codes[:2] == ["Starting", "Started"]
    assert len(codes) == 12


def test_job_requeued_into_a_hold_by_its_owner_waits_for_him(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.requeue(job_id)
    world.jobs[job_id] = replace(world.jobs[job_id], priority=0, reason="JobHeldUser")
    assert starts(world.run(60)) == []
    assert world.code_of(job_id) == "RequeuedHeld"
    world.restart_controller(keep_journal=True)
    assert starts(world.run(10)) == []
    now_s = world.now_ns // SECOND_NS
    world.jobs[job_id] = replace(world.jobs[job_id], eligible_s=now_s)  # scontrol update StartTime=now
    world.run(3)
    assert world.state_of(job_id) == states.RUNNING


def test_an_incarnation_newer_than_slurms_picture_is_left_alone(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    newer = ev.ResidentSeen("n1", JobKey(job_id, 1), states.RUNNING, (0,), "", "")
    for seconds in (0, 1000):
        world.engine.handle([newer, ev.CycleTick()], world.now_ns + seconds * SECOND_NS)
    assert world.engine.fences("n1") == ()
