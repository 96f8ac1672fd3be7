"""A job that causes errors in the engine is set aside with a sentence; others start, take turns and move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gandiva_slurm.engine import blame
from gandiva_slurm.engine import engine as engines
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.lifecycle import setting_aside
from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from tests.fake_world import FakeWorld, starts
from tests.guarded import Guard, news_of, the_policys_look, the_view, what_slurm_shows

Poison = Callable[[pytest.MonkeyPatch, FakeWorld, int], None]
WAITING = {
    "its news": news_of(ev.JobSeen),
    "what Slurm shows": what_slurm_shows,
    "the policy": the_policys_look,
    "the view": the_view,
}
RUNNING = WAITING | {"its node's word": news_of(ev.ResidentSeen)}


@pytest.fixture
def bare() -> FakeWorld:
    """Two nodes of two GPUs."""
    made = FakeWorld({"n1": 2, "n2": 2})
    Guard(made)
    return made


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    """The same; whatever was set aside, its recording is decided as it was."""
    made = FakeWorld({"n1": 2, "n2": 2})
    guard = Guard(made)
    yield made
    tally = guard.replay()
    assert tally.cycles and tally.first is None, tally.first


def is_aside(world: FakeWorld, job_id: int) -> bool:
    return job_id in world.engine.state.aside


def starts_beside(world: FakeWorld, poison: Callable[[int], None] | None) -> set[int]:
    """The jobs that run after half a minute; without a poison the second of them is taken back at once."""
    world.submit("user1", 2)
    world.run(5)
    bad = world.submit("user2")
    if poison is None:
        del world.jobs[bad]
    else:
        poison(bad)
    for gpus in (1, 2, 2):
        world.submit("user3", gpus)
    world.run(120)
    return {*world.running()}


@pytest.fixture(params=["suspects", "halves"])
def search(request: pytest.FixtureRequest) -> Iterator[None]:
    """The error's frames name jobs, or none."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "halves":
            patch.setattr(blame, "in_frames", lambda err: [])
        yield


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("poison", WAITING.values(), ids=WAITING)
def test_a_job_that_waits_is_set_aside_and_all_others_go_on(
    world: FakeWorld, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = starts_beside(FakeWorld(world.nodes), None)
    assert starts_beside(world, lambda bad: poison(monkeypatch, world, bad)) == others and len(others) == 4
    (bad,) = world.engine.state.aside
    assert world.jobs[bad].state == "PENDING" and world.code_of(bad) == "SetAside"
    world.finish(3)
    world.run(5)
    assert world.state_of(3) == states.ENDED and is_aside(world, bad)


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("poison", RUNNING.values(), ids=RUNNING)
def test_a_job_that_runs_goes_on_beside_all_others(
    world: FakeWorld, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, other = world.submit("user1", 2), world.submit("user2", 2)
    world.run(10)
    poison(monkeypatch, world, bad)
    late = world.submit("user3", 2)
    actions = world.run(60)
    assert is_aside(world, bad) and {*world.running()} == {bad, other, late}
    assert not [action for action in actions if action.key.job_id == bad]
    node = world.jobs[bad].nodes[0]
    (place,) = [place for place in world.engine.plan_jobs(node) if place.key.job_id == bad]
    assert place.gpus == world.procs[node, place.key].gpus and not place.is_leaving


def test_a_reason_says_what_where_and_what_next(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = world.submit()
    what_slurm_shows(monkeypatch, world, bad)
    world.run(3)
    reason = world.engine.state.aside[bad].reason
    assert "TypeError" in reason.text and "first_ns" not in reason.text and "picture.py:" in reason.text
    assert "gandiva update" in reason.next and "requeue" in reason.next


def test_what_its_owner_changes_is_tried_again(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = world.submit()
    what_slurm_shows(monkeypatch, world, bad)
    world.run(5)
    assert is_aside(world, bad)
    world.jobs[bad] = replace(world.jobs[bad], reason="Priority")  # Slurm's own words try nothing
    world.run(2)
    assert world.engine.state.aside[bad].since_ns == world.now_ns - 6 * 10**9
    world.jobs[bad] = replace(world.jobs[bad], time_limit_s=3600)
    world.run(5)
    assert not is_aside(world, bad) and bad in world.running()


def test_what_is_still_wrong_is_set_aside_again_and_told_once_a_minute(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, other = world.submit(), world.submit("user2")
    what_slurm_shows(monkeypatch, world, bad)
    world.run(5)
    since_ns = world.engine.state.aside[bad].since_ns
    world.jobs[bad] = replace(world.jobs[bad], account="lab2")
    world.run(2)
    assert world.engine.state.aside[bad].since_ns > since_ns and other in world.running()
    assert len(caplog.records) == 1


def test_a_slot_of_one_that_the_policy_may_not_see_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld({"n1": 1}, EngineSettings(slots_per_gpu=1))
    Guard(world)
    bad = world.submit()
    world.run(5)
    the_policys_look(monkeypatch, world, bad)
    other = world.submit("user2")
    assert not starts(world.run(20)) and bad in world.engine.state.hidden
    world.finish(bad)
    world.run(5)
    assert other in world.running()


@pytest.mark.usefixtures("search")
def test_a_requeue_and_an_operators_word_try_it_again(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, worse = world.submit(), world.submit("user2")
    with monkeypatch.context() as patch:
        news_of(ev.ResidentSeen)(patch, world, bad)
        world.run(5)
        assert [*world.engine.state.aside] == [bad]
        the_policys_look(patch, world, worse)
        world.submit("user3")
        world.run(5)
        assert {*world.engine.state.aside} == {bad, worse}
    world.requeue(bad)
    world.outcomes.append(ev.PriorityAsked(worse, 70))
    world.run(1)
    assert not world.engine.state.aside and world.engine.jobs[worse].priority == 70
    world.run(20)
    assert {bad, worse} <= {*world.running()}


def test_another_release_tries_it_again(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = world.submit()
    with monkeypatch.context() as patch:
        news_of(ev.JobSeen)(patch, world, bad)
        world.run(3)
    world.restart_controller(keep_journal=True)
    world.run(3)
    assert is_aside(world, bad)
    monkeypatch.setattr(setting_aside, "__version__", "99.0")
    data = world.engine.to_json()
    assert not Engine.from_json(world.settings, data, world.leader()).state.aside


def test_its_end_is_heard(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, waits = world.submit(), world.submit("user2")
    world.run(5)
    news_of(ev.ResidentSeen)(monkeypatch, world, bad)
    what_slurm_shows(monkeypatch, world, waits)
    world.run(5)
    assert {*world.engine.state.aside} == {bad, waits}
    for job_id in (bad, waits):
        world.finish(job_id, "CANCELLED")
    world.run(2)
    assert not world.engine.state.aside and not world.engine.state.hidden
    assert {world.state_of(bad), world.state_of(waits)} == {states.ENDED}


def test_an_error_of_no_job_is_raised_as_before(bare: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = bare
    world.submit()
    world.run(5)

    def fence_strays(at: object) -> None:
        raise RuntimeError("of our own")

    with monkeypatch.context() as patch:
        patch.setattr(engines, "fence_strays", fence_strays)
        with pytest.raises(RuntimeError, match="of our own"):
            world.cycle()
    world.restart_controller(keep_journal=True)
    world.run(2)
    assert not world.engine.state.aside


@pytest.mark.usefixtures("search")
def test_what_many_jobs_cause_is_ours(bare: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = bare
    jobs = [world.submit() for _ in range(blame.MOST + 1)]
    for job_id in jobs:
        what_slurm_shows(monkeypatch, world, job_id)
    with pytest.raises(TypeError):
        world.cycle()
    tasks = {"array_job_id": 500}
    for job_id in jobs:  # all tasks of an array are one's fault
        world.jobs[job_id] = replace(world.jobs[job_id], **tasks)  # type: ignore[arg-type]
    world.restart_controller(keep_journal=False)
    Guard(world)
    other = world.submit("user2")
    world.run(5)
    assert [*world.engine.state.aside] == jobs and other in world.running()


def test_a_journalled_record_that_cannot_be_read_is_that_jobs_alone(bare: FakeWorld) -> None:
    world = bare
    one, two = world.submit("user1"), world.submit("user2")
    world.run(10)
    held_ns = world.engine.jobs[two].held_ns
    data = world.engine.to_json()
    raw = next(raw for raw in data["jobs"] if raw["job"]["job_id"] == one)
    raw["reason"] = None
    state = EngineState.from_json(data)
    assert [*state.jobs] == [two] and state.jobs[two].held_ns == held_ns > 0 and len(state.unread) == 1
    world.engine = Engine.from_json(world.settings, data, world.leader())
    world.fresh = True
    world.run(5)
    assert {world.state_of(one), world.state_of(two)} <= {*states.SLICED}
