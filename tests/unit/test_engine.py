"""engine: starts, holds, requeues, reasons and recovery, one at a time on a small fake Slurm."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state import OWNER_HOLD_S, EngineSettings
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain, HoldRunning, Note, Start
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import IllegalTransition
from gandiva_slurm.model.reason import because
from tests.builders import ACCOUNT, SECOND_NS, TICKET, a_job, a_node
from tests.fake_world import FakeWorld, starts

NOW_NS = 2_000_000 * SECOND_NS


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld({"n1": 4})


# starts and holds


def test_held_job_is_started_then_held_while_it_runs(world: FakeWorld) -> None:
    job_id = world.submit(gpus=2)
    (start,) = world.cycle()
    assert isinstance(start, Start)
    assert (start.node, start.gpus, start.code) == ("n1", (0, 1), "Starting")
    (hold,) = world.cycle()
    assert isinstance(hold, HoldRunning)
    assert world.state_of(job_id) == states.RUNNING
    assert world.jobs[job_id].is_held
    assert world.run(120) == [], "settled: nothing acts any more"


def test_plan_names_the_job_before_it_is_released(world: FakeWorld) -> None:
    world.submit(gpus=2)
    world.ignore_starts = True
    world.cycle()
    (place,) = world.engine.plan_jobs("n1")
    assert (place.key, place.gpus, place.tickets, place.user) == (JobKey(1, 0), (0, 1), 100 * TICKET, "user1")
    assert world.engine.plan_jobs("n2") == ()


def test_start_slurm_does_not_make_in_time_is_taken_back(world: FakeWorld) -> None:
    job_id = world.submit()
    world.ignore_starts = True
    world.cycle()
    world.jobs[job_id] = replace(world.jobs[job_id], reason="AssocGrpGRES")
    actions = world.run(61)
    assert [type(action) for action in actions] == [HoldAgain]
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.HELD, "StartFailed")
    assert "Slurm says: AssocGrpGRES" in record.text
    assert world.engine.plan_jobs("n1") == ()


def test_failed_starts_are_tried_ever_more_rarely(world: FakeWorld) -> None:
    job_id = world.submit()
    world.refuse_starts = True
    tries = [world.now_ns for _ in range(2000) if starts(world.cycle())]
    waits = [round((b - a) / SECOND_NS) for a, b in pairwise(tries)]
    assert waits[:4] == [6, 11, 21, 41]
    assert max(waits) <= 302
    assert "Requested node configuration is not available" in world.engine.jobs[job_id].text
    world.refuse_starts = False
    world.run(310)
    assert world.state_of(job_id) == states.RUNNING
    assert world.engine.jobs[job_id].failures == 0


def test_busy_slurm_is_tried_again_without_growing_waits() -> None:
    engine = Engine()
    engine.handle([ev.NodeSeen(a_node()), ev.JobSeen(a_job(1)), ev.CycleTick()], NOW_NS)
    for turn in range(1, 6):
        now_ns = NOW_NS + turn * 6 * SECOND_NS
        done = ev.ActionDone(f"start:1.0:{turn}", "Job is completing", retry=True)
        engine.handle([done], now_ns)
        assert engine.jobs[1].failures == 0
        assert starts(engine.handle([ev.CycleTick()], now_ns + 5 * SECOND_NS))


def test_outcome_of_an_older_start_changes_nothing(world: FakeWorld) -> None:
    job_id = world.submit()
    world.ignore_starts = True
    world.cycle()
    world.engine.handle([ev.ActionDone("start:1.0:99", "late"), ev.ActionDone("nonsense", "x")], world.now_ns)
    assert world.state_of(job_id) == states.STARTING


def test_node_lost_while_starting_costs_no_back_off() -> None:
    world = FakeWorld({"n1": 4, "n2": 4})
    job_id = world.submit()
    world.ignore_starts = True
    world.cycle()
    world.down.add("n1")
    world.cycle()
    assert world.engine.jobs[job_id].code == "NodeLost"
    world.ignore_starts = False
    world.run(3)
    assert world.jobs[job_id].nodes == ("n2",)


def test_hold_that_did_not_take_is_asked_for_again(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.jobs[job_id] = replace(world.jobs[job_id], priority=7)
    actions = world.run(11)
    assert [type(action) for action in actions] == [HoldRunning]


def test_job_released_by_someone_else_is_taken_back_and_placed(world: FakeWorld) -> None:
    job_id = world.submit()
    world.ignore_starts = True
    world.release(job_id)
    assert HoldAgain in [type(action) for action in world.cycle()]
    world.ignore_starts = False
    world.run(4)
    assert world.state_of(job_id) == states.RUNNING
    assert world.procs["n1", JobKey(job_id, 0)].gpus == (0,)


# who waits, and why


def reason_of(world: FakeWorld, job_id: int) -> str:
    return world.engine.jobs[job_id].code


def test_each_waiting_job_has_its_reason_told_once(world: FakeWorld) -> None:
    cases = {
        "TooManyGpus": world.submit(gpus=9),
        "NoSuchType": world.submit(types=("h100", "a100")),
        "OneNodeOnly": world.submit(node_count=2),
        "TooMuchMemory": world.submit(memory_mib=10**9),
        "TooManyCpus": world.submit(cpus=999),
        "NoNodes": world.submit(partition="elsewhere"),
        "HeldByUser": world.submit(user_hold=True),
        "BeginTime": world.submit(eligible_s=world.now_ns // SECOND_NS + 100),
    }
    notes = world.cycle()
    assert all(isinstance(action, Note) for action in notes)
    assert {action.code: action.key.job_id for action in notes} == cases  # type: ignore[union-attr]
    assert world.run(60) == []
    text = world.engine.jobs[cases["NoSuchType"]].text
    assert text == "no node has GPUs of type h100 or a100"
    assert "ask for one of: v100" in world.engine.jobs[cases["NoSuchType"]].reason.next
    world.run(50)
    assert world.state_of(cases["BeginTime"]) == states.RUNNING


def test_full_nodes_are_named_as_evidence(world: FakeWorld) -> None:
    jobs = [world.submit() for _ in range(13)]
    world.run(3)
    waiting = [job_id for job_id in jobs if world.state_of(job_id) == states.HELD]
    assert waiting == jobs[12:]
    record = world.engine.jobs[jobs[12]]
    assert record.code == "NoFreeSlots"
    assert record.evidence == ("n1: 12 of 16 slots taken, a free one on 0 GPU(s)",)
    world.finish(jobs[0])
    world.run(3)
    assert world.state_of(jobs[12]) == states.RUNNING


def test_dead_nodes_and_silent_daemons_get_no_jobs(world: FakeWorld) -> None:
    world.mute.add("n1")
    job_id = world.submit()
    world.run(3)
    record = world.engine.jobs[job_id]
    assert record.code == "NodesDown"
    assert record.evidence == ("n1: IDLE, its gandivad does not answer",)
    world.mute.clear()
    world.run(2)
    assert world.state_of(job_id) == states.RUNNING


def test_drained_node_keeps_what_it_has_and_gets_nothing_new() -> None:
    engine = Engine()
    engine.handle([ev.NodeSeen(a_node()), ev.JobSeen(a_job(1)), ev.CycleTick()], NOW_NS)
    running = a_job(1, state="RUNNING", nodes=("n1",))
    drained = a_node(state=frozenset({"MIXED", "DRAIN"}), reason="disk")
    events = [ev.NodeSeen(drained), ev.JobSeen(running), ev.JobSeen(a_job(2)), ev.CycleTick()]
    engine.handle(events, NOW_NS + SECOND_NS)
    assert engine.jobs[1].state == states.RUNNING
    assert engine.jobs[2].evidence == ("n1: DRAIN+MIXED (disk)",)


def test_user_held_job_starts_once_an_operator_released_it(world: FakeWorld) -> None:
    job_id = world.submit(user_hold=True)
    world.run(5)
    assert reason_of(world, job_id) == "HeldByUser"
    world.ignore_starts = True
    world.release(job_id)
    world.cycle()
    world.ignore_starts = False
    world.run(5)
    assert world.state_of(job_id) == states.RUNNING


def test_owners_hold_is_known_by_its_begin_time(world: FakeWorld) -> None:
    """The submission filter marks an owner's hold by a begin time in 2100, his release by a past one."""
    job_id = world.submit(user_hold=True, eligible_s=OWNER_HOLD_S)
    world.run(5)
    assert reason_of(world, job_id) == "HeldByUser"
    world.jobs[job_id] = replace(world.jobs[job_id], eligible_s=world.now_ns // SECOND_NS)
    world.run(3)
    assert world.state_of(job_id) == states.RUNNING


def test_owners_hold_stops_a_start_that_slurm_has_not_made(world: FakeWorld) -> None:
    job_id = world.submit()
    world.ignore_starts = True
    world.run(2)
    world.jobs[job_id] = replace(world.jobs[job_id], priority=0, eligible_s=OWNER_HOLD_S)
    assert world.run(100) == []
    assert (world.state_of(job_id), reason_of(world, job_id)) == (states.HELD, "HeldByUser")


def test_dependency_is_asked_of_slurm_now_and_then(world: FakeWorld) -> None:
    """Slurm shows a dependency as unfulfilled for as long as it holds the job: only a start can tell."""
    job_id = world.submit(dependency="afterok:77(unfulfilled)")
    actions = world.run(100)
    kinds = [type(action) for action in actions]
    assert kinds == [Start, HoldAgain] * 4
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.HELD, "Dependency")
    assert "waits for other jobs: afterok:77" in record.text
    world.dependencies_met = True
    world.run(40)
    assert world.state_of(job_id) == states.RUNNING


def test_dependency_on_a_live_job_of_ours_is_not_asked_and_met_at_once(world: FakeWorld) -> None:
    first = world.submit()
    second = world.submit(dependency=f"afterok:{first}(unfulfilled)")
    world.run(3)
    assert world.run(300) == []
    assert reason_of(world, second) == "Dependency"
    world.finish(first)
    world.dependencies_met = True
    world.run(2)
    assert world.state_of(second) == states.RUNNING


def test_job_that_ends_wakes_those_that_were_put_off_for_it(world: FakeWorld) -> None:
    """`after:` is met by a start, so it is asked; the answer is asked for again when that job ends."""
    first = world.submit()
    second = world.submit(dependency=f"after:{first}+600(unfulfilled)")
    world.run(4)
    assert reason_of(world, second) == "Dependency"
    world.finish(first)
    world.dependencies_met = True
    world.run(2)
    assert world.state_of(second) == states.RUNNING


def test_job_that_may_have_to_wait_takes_no_idle_gpu_from_one_that_will_run(world: FakeWorld) -> None:
    world.submit(gpus=2)
    for _ in range(3):
        world.submit(dependency="singleton(unfulfilled)")
    last = world.submit()
    gpus = {start.key.job_id: start.gpus for start in starts(world.cycle())}
    assert gpus[last] == (2,)


def test_end_of_a_twin_wakes_a_singleton(world: FakeWorld) -> None:
    first = world.submit(name="train")
    second = world.submit(name="train", dependency="singleton(unfulfilled)")
    world.run(4)
    assert reason_of(world, second) == "Dependency"
    world.finish(first)
    world.dependencies_met = True
    world.run(2)
    assert world.state_of(second) == states.RUNNING


def test_dependency_that_cannot_be_met_says_so(world: FakeWorld) -> None:
    job_id = world.submit(dependency="afternotok:8(failed)")
    world.cycle()
    world.jobs[job_id] = replace(world.jobs[job_id], reason="DependencyNeverSatisfied")
    world.cycle()
    assert world.engine.jobs[job_id].text == "what it waits for cannot come: afternotok:8(failed)"
    assert len(world.run(280)) <= 1


def test_ordinary_jobs_are_none_of_ours(world: FakeWorld) -> None:
    job_id = world.submit()
    plain = replace(world.jobs.pop(job_id), options=None, state="RUNNING", nodes=("n1",))
    world.engine.handle([ev.JobSeen(plain), ev.CycleTick()], world.now_ns)
    assert world.engine.jobs == {}


# ends, requeues, node loss


def test_finished_job_frees_its_place_and_is_forgotten_later(world: FakeWorld) -> None:
    job_id = world.submit(gpus=4)
    world.run(3)
    world.finish(job_id, "FAILED")
    assert world.cycle() == []
    record = world.engine.jobs[job_id]
    assert (record.state, record.node, record.gpus) == (states.ENDED, "", ())
    assert record.text == "finished: FAILED"
    world.run(1000, dt_s=10)
    assert job_id not in world.engine.jobs


def test_requeued_job_is_placed_anew(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    world.requeue(job_id)
    assert world.run(2) == [], "slurmd would refuse it within the second of the kill"
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
    assert (record.state, record.key, record.gpus) == (states.RUNNING, JobKey(job_id, 1), (0,))


def test_completing_job_is_left_alone_until_slurm_says_more(world: FakeWorld) -> None:
    """COMPLETING hides whether it ended or was requeued; its old node is no sign that it runs there."""
    job_id = world.submit()
    world.run(3)
    job = world.jobs[job_id]
    world.jobs[job_id] = replace(job, state="COMPLETING", restart=1)
    world.run(5)
    assert (world.state_of(job_id), reason_of(world, job_id)) == (states.HELD, "NotPending")
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
    assert (world.state_of(job_id), reason_of(world, job_id)) == (states.RUNNING, "NodeDown")
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


def test_nothing_is_fenced_before_slurm_was_read() -> None:
    engine = Engine()
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
    assert record.gpus == (0,)


def test_word_on_another_incarnation_or_node_is_not_believed(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    for node, key in (("n1", JobKey(job_id, 1)), ("n9", JobKey(job_id, 0))):
        seen = ev.ResidentSeen(node, key, states.SUSPENDED, (3,), "", "")
        world.engine.handle([seen], world.now_ns)
    assert world.state_of(job_id) == states.RUNNING
    assert world.engine.jobs[job_id].gpus == (0,)


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


# recovery


@pytest.mark.parametrize("keep_journal", [True, False])
def test_restarted_controller_finds_everything_as_it_was(keep_journal: bool) -> None:
    world = FakeWorld({"n1": 4, "n2": 2})
    jobs = [
        world.submit("user1", 2),
        world.submit("user2", 4),
        world.submit("user3", 1),
        world.submit("user3", 9),
    ]
    world.run(4)
    before = {
        job_id: (record.state, record.node, record.gpus) for job_id, record in world.engine.jobs.items()
    }
    plans = [world.engine.plan_jobs(node) for node in ("n1", "n2")]
    world.restart_controller(keep_journal)
    actions = world.run(10)
    assert [action for action in actions if not isinstance(action, Note)] == []
    after = {job_id: (record.state, record.node, record.gpus) for job_id, record in world.engine.jobs.items()}
    assert after == before
    assert sorted(after) == jobs
    assert [world.engine.plan_jobs(node) for node in ("n1", "n2")] == plans


def test_running_job_of_a_silent_node_is_given_gpus_after_a_while(world: FakeWorld) -> None:
    job_id = world.submit(gpus=2)
    world.run(3)
    world.restart_controller(keep_journal=False)
    world.procs.clear()
    world.cycle()
    assert world.engine.jobs[job_id].gpus == ()
    assert reason_of(world, job_id) == "Unbound"
    world.run(6)
    assert world.engine.jobs[job_id].gpus == (0, 1)


def test_job_gone_while_the_controller_was_away_is_ended(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    del world.jobs[job_id]
    world.procs.clear()
    world.restart_controller(keep_journal=True)
    world.cycle()
    assert world.engine.jobs[job_id].text == "finished: gone from Slurm"


def test_journal_of_another_schema_is_refused() -> None:
    data = Engine().to_json() | {"schema": 99}
    with pytest.raises(ValueError, match="schema 99, 1 expected"):
        Engine.from_json(EngineSettings(), data)


def test_journal_keeps_every_field(world: FakeWorld) -> None:
    world.submit(gpus=2, types=("v100", "p100"), array_job_id=7, array_task_id=0)
    world.submit(dependency="afterok:1")
    world.run(3)
    data = json.loads(json.dumps(world.engine.to_json()))
    again = Engine.from_json(world.settings, data)
    again.state.has_read_slurm = True
    assert again.state == world.engine.state


# tickets


def test_tickets_follow_shares_and_weights() -> None:
    world = FakeWorld({"n1": 4})
    world.submit("user1", 1, tickets=300)
    world.submit("user1", 1, tickets=100)
    world.submit("user2", 1)
    world.run(3)
    tickets = {place.key.job_id: place.tickets for place in world.engine.plan_jobs("n1")}
    assert tickets == {1: 75 * TICKET, 2: 25 * TICKET, 3: 100 * TICKET}
    shares = world.engine.tickets()
    assert {user: share.tickets for user, share in shares.items()} == {
        "user1": 100,
        "user2": 100,
        "user3": 100,
    }
    assert sum(share.norm_share for share in shares.values()) == 1
    assert shares["user1"].account == ACCOUNT


def test_waiting_jobs_hold_no_tickets(world: FakeWorld) -> None:
    """A user's tickets lie on the jobs that have a place, all of them."""
    world.submit()
    for _ in range(5):
        world.submit(gpus=9)
    world.run(3)
    assert [place.tickets for place in world.engine.plan_jobs("n1")] == [100 * TICKET]


def test_illegal_move_carries_the_jobs_story(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    with pytest.raises(IllegalTransition, match="HELD -> STARTING Starting: released to start on n1"):
        world.engine.jobs[job_id].move(states.STARTING, because("Adopted", node="n1"), world.now_ns)
