"""engine.engine: starts, holds, and who waits why."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gandiva_slurm.engine.engine import EngineSettings
from gandiva_slurm.engine.state.records import OWNER_HOLD_S
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain, Note, Start
from gandiva_slurm.model.ids import JobKey
from tests.builders import SECOND_NS, TICKET, a_job, a_node
from tests.fake_world import FakeWorld, an_engine, starts

NOW_NS = 2_000_000 * SECOND_NS


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld({"n1": 4})


# starts and holds


@pytest.mark.parametrize("cycle_s", [0.25, 0.5, 0.6])
def test_a_gang_starts_soon_though_its_user_has_another_job(cycle_s: float) -> None:
    """All users' passes are equal where every user has one job: it is the gang's wait that decides."""
    settings = EngineSettings(quantum_ns=SECOND_NS // 2, slots_per_gpu=4)
    world = FakeWorld({"n1": 2, "n2": 1}, settings, move_ns=SECOND_NS)
    world.types = {"n1": "v100", "n2": "k80"}
    for user in ("user1", "user2", "user3", "user1"):
        world.submit(user)
    world.cycle(cycle_s)
    gang = world.submit("user2", gpus=2)
    for _ in range(int(20 / cycle_s)):
        world.cycle(cycle_s)
        if world.state_of(gang) == states.RUNNING:
            return
    raise AssertionError("the gang did not start within 20 s")


def test_held_job_is_started_and_left_alone_while_it_runs(world: FakeWorld) -> None:
    job_id = world.submit(gpus=2)
    (start,) = world.cycle()
    assert isinstance(start, Start)
    assert (start.places, start.code) == ((("n1", (0, 1)),), "Starting")
    assert world.cycle() == []
    assert world.state_of(job_id) == states.RUNNING
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
    world.jobs[job_id] = replace(world.jobs[job_id], reason="Resources")
    actions = world.run(61)
    assert [type(action) for action in actions] == [HoldAgain]
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.HELD, "StartFailed")
    assert "Slurm says: Resources, the node has not enough" in record.text
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
    engine = an_engine()
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
    world.ignore_starts = True
    world.release(job_id)
    world.cycle()
    world.release(job_id)
    actions = world.run(11)
    assert [type(action) for action in actions] == [HoldAgain, Start]


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


def test_each_waiting_job_has_its_reason_told_once(world: FakeWorld) -> None:
    cases = {
        "TooManyGpus": world.submit(gpus=9),
        "NoSuchType": world.submit(types=("h100", "a100")),
        "WrongNodes": world.submit(node_count=2),
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
    world.rigid.update(jobs)
    world.run(600)
    waiting = [job_id for job_id in jobs if world.state_of(job_id) == states.HELD]
    assert waiting == jobs[12:]
    record = world.engine.jobs[jobs[12]]
    assert record.code == "NoFreeSlots"
    assert record.evidence == ("n1: a slot that it may have on 0 of 4 GPU(s)",)
    world.finish(jobs[0])
    world.run(130)
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
    engine = an_engine()
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
    assert world.code_of(job_id) == "HeldByUser"
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
    assert world.code_of(job_id) == "HeldByUser"
    world.jobs[job_id] = replace(world.jobs[job_id], eligible_s=world.now_ns // SECOND_NS)
    world.run(3)
    assert world.state_of(job_id) == states.RUNNING


def test_owners_hold_stops_a_start_that_slurm_has_not_made(world: FakeWorld) -> None:
    job_id = world.submit()
    world.ignore_starts = True
    world.run(2)
    world.jobs[job_id] = replace(world.jobs[job_id], priority=0, eligible_s=OWNER_HOLD_S)
    assert world.run(100) == []
    assert (world.state_of(job_id), world.code_of(job_id)) == (states.HELD, "HeldByUser")


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
    assert world.code_of(second) == "Dependency"
    world.finish(first)
    world.dependencies_met = True
    world.run(2)
    assert world.state_of(second) == states.RUNNING


def test_job_that_ends_wakes_those_that_were_put_off_for_it(world: FakeWorld) -> None:
    """`after:` is met by a start, so it is asked; the answer is asked for again when that job ends."""
    first = world.submit()
    second = world.submit(dependency=f"after:{first}+600(unfulfilled)")
    world.run(4)
    assert world.code_of(second) == "Dependency"
    world.finish(first)
    world.dependencies_met = True
    world.run(2)
    assert world.state_of(second) == states.RUNNING


def test_end_of_a_twin_wakes_a_singleton(world: FakeWorld) -> None:
    first = world.submit(name="train")
    second = world.submit(name="train", dependency="singleton(unfulfilled)")
    world.run(4)
    assert world.code_of(second) == "Dependency"
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
