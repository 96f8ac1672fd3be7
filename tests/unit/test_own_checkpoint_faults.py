"""engine.moving: what strikes a job between the signal upon which it saves itself and its next start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Fence, Start, Unhold
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.unit.test_engine_own_checkpoint import SIGNAL, TARGET, codes, kinds, leaving

#: Longer than it may take to save itself, and than any start.
LONG_S = 60


def signalled(checkpoint: str = SIGNAL) -> FakeWorld:
    """A world in which job 1 has just been sent its signal, and does nothing yet."""
    world = leaving(checkpoint)
    world.remembers_failed = True
    world.run(3)
    assert world.signals == [(1, "USR1")] and world.state_of(1) == states.CHECKPOINTING
    return world


def runs(world: FakeWorld) -> list[tuple[str, int]]:
    """Where processes of the job are, and of which incarnation."""
    return sorted((node, key.restart) for node, key in world.procs)


def does_requeue(world: FakeWorld) -> None:
    world.requeue(1)


def does_fail(world: FakeWorld) -> None:
    world.finish(1, "FAILED")


DOES = pytest.mark.parametrize("does", (does_requeue, does_fail))


# a handler that hangs, or takes its time


@pytest.mark.parametrize(("checkpoint", "late_s"), [(SIGNAL, 25), ("signal:USR1@3600", 1000)])
def test_one_that_ends_non_zero_after_its_time_goes_on_all_the_same(checkpoint: str, late_s: int) -> None:
    """It ends for our signal: the site gave it less time than it asked for, or the machine was slow."""
    world = signalled(checkpoint)
    world.run(late_s)
    assert "MoveFailed" in codes(world) and world.state_of(1) == states.RUNNING
    world.finish(1, "FAILED")
    assert kinds(world.run(LONG_S)) == ["Requeue"]
    record = world.engine.jobs[1]
    assert (record.state, record.job.restart, len(world.signals)) == (states.RUNNING, 1, 1)


@pytest.mark.parametrize(("checkpoint", "own_s"), [(SIGNAL, 20), ("signal:USR1@200", 200)])
def test_one_that_stays_is_held_until_it_can_leave_no_more(checkpoint: str, own_s: int) -> None:
    """Held, for it may still requeue itself late; not for ever, for Slurm shows it so."""
    world = signalled(checkpoint)
    bound_s = max(own_s, world.settings.move_deadline_ns // SECOND_NS)
    early = world.run(bound_s - 5)
    assert world.jobs[1].is_held and not [action for action in early if isinstance(action, Unhold)]
    later = world.run(30)
    assert [type(action) for action in later if isinstance(action, Unhold)] == [Unhold]
    assert not world.jobs[1].is_held and world.state_of(1) == states.RUNNING


def test_a_hold_that_slurm_keeps_is_taken_back_again() -> None:
    """Its release was lost: it is asked for once a while, not in every cycle."""
    world = signalled()
    world.run(world.settings.move_deadline_ns // SECOND_NS - 5)
    world.lose_unholds = True
    asked = [action for action in world.run(31) if isinstance(action, Unhold)]
    assert 2 <= len(asked) <= 7
    world.lose_unholds = False
    world.run(10)
    assert not world.jobs[1].is_held


def test_one_that_requeues_itself_after_its_time_is_placed_anew() -> None:
    world = signalled()
    world.run(25)
    assert "MoveFailed" in codes(world)
    world.requeue(1)
    assert kinds(world.run(LONG_S)) == []
    assert (world.state_of(1), world.engine.jobs[1].job.restart) == (states.RUNNING, 1)


def test_one_that_fails_long_after_its_signal_has_failed() -> None:
    world = signalled()
    world.run(1000)
    world.finish(1, "FAILED")
    assert kinds(world.run(LONG_S)) == []
    assert world.state_of(1) == states.ENDED


@DOES
def test_one_that_fails_in_its_next_run_has_failed(does: Callable[[FakeWorld], None]) -> None:
    """Whatever it was sent in the run before."""
    world = signalled()
    does(world)
    world.run(LONG_S)
    assert (world.state_of(1), world.engine.jobs[1].job.restart) == (states.RUNNING, 1)
    world.finish(1, "FAILED")
    assert kinds(world.run(600)) == [] and world.state_of(1) == states.ENDED


# it saves half a file and is killed, or its disk is full


@pytest.mark.parametrize("state", ("FAILED", "COMPLETED", "OUT_OF_MEMORY"))
def test_one_that_is_killed_as_it_saves_is_run_again_once(state: str) -> None:
    """If at all: what it finds of its half file is its own matter, and when it fails on it, it has failed."""
    world = signalled()
    world.finish(1, state)
    comes_back = state == "FAILED"
    assert kinds(world.run(LONG_S)) == ["Requeue"] * comes_back
    assert world.state_of(1) == (states.RUNNING if comes_back else states.ENDED)
    if comes_back:
        world.finish(1, "FAILED")
        assert kinds(world.run(600)) == [] and world.state_of(1) == states.ENDED


# it requeues itself twice


@pytest.mark.parametrize("pause_s", (0, 1, 5, 30))
def test_a_second_requeue_is_one_more_start_and_never_a_second_job(pause_s: int) -> None:
    world = signalled()
    world.requeue(1)
    world.run(pause_s)
    world.requeue(1)
    for _ in range(LONG_S):
        world.cycle()
        assert len(runs(world)) <= 1
    record = world.engine.jobs[1]
    assert (record.state, record.job.restart, world.signals) == (states.RUNNING, 2, [(1, "USR1")])


# kill -9, and lost nodes


@DOES
@pytest.mark.parametrize("for_s", (5, 100))
def test_gandivad_dies_while_the_job_saves_itself(does: Callable[[FakeWorld], None], for_s: int) -> None:
    """It goes on on its target, which another gandivad has, be its own one back or not."""
    world = signalled()
    world.mute = {"n1"}
    world.run(5)
    does(world)
    world.run(for_s)
    assert (world.state_of(1), world.engine.jobs[1].places) == (states.RUNNING, TARGET)
    world.mute = set()
    world.run(LONG_S)
    assert runs(world) == [("n2", 1)] and len(world.signals) == 1


@DOES
@pytest.mark.parametrize("keep_journal", (True, False))
def test_gandivactld_dies_while_the_job_saves_itself(
    does: Callable[[FakeWorld], None], keep_journal: bool
) -> None:
    """Without its journal it cannot know that a job which failed has saved itself: that one has failed."""
    world = signalled()
    world.restart_controller(keep_journal)
    does(world)
    world.run(LONG_S)
    is_known = keep_journal or does is does_requeue
    assert world.signals == [(1, "USR1")]
    if is_known:
        assert world.state_of(1) == states.RUNNING and len(runs(world)) == 1
    else:
        assert runs(world) == []
    assert not keep_journal or world.engine.jobs[1].places == TARGET


@DOES
@pytest.mark.parametrize("away_s", (5, 100))
def test_slurmctld_dies_while_the_job_saves_itself(does: Callable[[FakeWorld], None], away_s: int) -> None:
    """Nothing is seen and nothing decided meanwhile; then it is as it would have been."""
    world = signalled()
    world._pass_time(away_s)
    does(world)
    world.run(LONG_S)
    assert (world.state_of(1), world.engine.jobs[1].places) == (states.RUNNING, TARGET)
    assert world.signals == [(1, "USR1")]


def test_slurmctld_forgets_the_hold_before_the_signal() -> None:
    """Killed, it may not know it any more: the job is held again as soon as it is seen."""
    world = signalled()
    world.release(1)
    world.requeue(1)
    world.run(LONG_S)
    assert (world.state_of(1), world.engine.jobs[1].places) == (states.RUNNING, TARGET)


@pytest.mark.parametrize("lives_on", (False, True))
def test_its_node_is_lost_while_it_saves_itself(lives_on: bool) -> None:
    """Its other start is stopped before anything else is, when its node is back."""
    world = signalled()
    world.lose_node("n1", processes_live_on=lives_on)
    world.run(LONG_S)
    record = world.engine.jobs[1]
    assert (record.state, record.places, world.signals) == (states.RUNNING, TARGET, [(1, "USR1")])
    world.restore_node("n1")
    world.run(LONG_S)
    assert runs(world) == [("n2", 1)]


# two starts alive


def test_a_start_that_outlives_its_requeue_is_stopped_before_the_next_one_may_run() -> None:
    """Two would write the same files: its node hears that it is to stop with the plan, before the start."""
    world = signalled()
    world.requeue(1, lingers=True)
    order: list[str] = []
    for _ in range(5):
        actions = world.cycle()
        order += [type(action).__name__ for action in actions if isinstance(action, Fence | Start)]
        assert len(runs(world)) <= 1
    assert order == ["Fence", "Start"]
    assert runs(world) == [("n2", 1)]
