"""A slurmctld that is killed forgets a requeue of ours: what the requeue has killed is no end of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model import job as states
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

DISK = "gandiva: a new disk"


def requeued(until: str) -> tuple[FakeWorld, int]:
    """A job that leaves n1, in the moment in which it has come to this state."""
    world = FakeWorld({"n1": 1, "n2": 1}, EngineSettings(10 * SECOND_NS, slots_per_gpu=4), move_ns=SECOND_NS)
    world.drained = {"n2": DISK}
    job = world.submit()
    world.run(5)
    world.drained = {"n1": DISK, "n2": DISK}
    for _ in range(60):
        world.cycle()
        record = world.engine.jobs[job]
        is_asked = record.travels.asked_ns > 0
        if record.state == until and (is_asked or until != states.CHECKPOINTING):
            return world, job
    raise AssertionError(f"{record.state}, {record.code}")


def forget(
    world: FakeWorld, job: int, exit_code: str = "0:9", state: str = "FAILED", restart: int = 0
) -> None:
    """slurmctld comes back, and hears from the node that the job was killed."""
    world.remembers_failed = True
    told = {"restart": restart, "state": state, "exit_code": exit_code, "nodes": ()}
    world.jobs[job] = replace(world.jobs[job], **told)
    world.procs = {where: proc for where, proc in world.procs.items() if where[1].job_id != job}


@pytest.mark.parametrize(
    "until, restart", [(states.CHECKPOINTING, 0), (states.HELD, 0), (states.HELD, 1)]
)
def test_it_is_requeued_once_more_and_goes_on(until: str, restart: int) -> None:
    """Of which incarnation Slurm has it depends on what it had written down."""
    world, job = requeued(until)
    forget(world, job, restart=restart)
    world.cycle()
    record = world.engine.jobs[job]
    assert (record.code == "Forgotten" and "(0:9)" in record.text) or record.job.state == "PENDING"
    world.drained = {"n1": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.state in states.SLICED
    assert record.job.restart == restart + 1 and record.travels.forgotten_ns == 0


@pytest.mark.parametrize("exit_code", ["0:15", "143:0", "137:0"])
@pytest.mark.parametrize("until, restart", [(states.CHECKPOINTING, 0), (states.HELD, 1)])
def test_a_requeue_tells_it_to_terminate_before_it_kills_it(exit_code: str, until: str, restart: int) -> None:
    """A shell tells the end of its last command so."""
    world, job = requeued(until)
    forget(world, job, exit_code, restart=restart)
    world.drained = {"n1": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.state in states.SLICED


@pytest.mark.parametrize("exit_code, state", [("1:0", "FAILED"), ("0:0", "COMPLETED")])
def test_one_that_was_seen_to_be_requeued_ended_by_that_whatever_it_made_of_it(
    exit_code: str, state: str
) -> None:
    """A script that heeds SIGTERM ends as it likes."""
    world, job = requeued(states.HELD)
    forget(world, job, exit_code, state)
    world.drained = {"n1": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.state in states.SLICED


@pytest.mark.parametrize(
    "until, restart, exit_code, state",
    [
        (states.CHECKPOINTING, 0, "1:0", "FAILED"),
        (states.CHECKPOINTING, 0, "0:0", "COMPLETED"),
        (states.CHECKPOINTING, 0, "0:11", "FAILED"),
        (states.CHECKPOINTING, 0, "0:15", "CANCELLED"),
        (states.HELD, 1, "1:0", "FAILED"),
        (states.HELD, 1, "0:0", "COMPLETED"),
        (states.HELD, 0, "0:15", "CANCELLED"),
        (states.HELD, 0, "0:9", "CANCELLED"),
        (states.HELD, 0, "0:0", "TIMEOUT"),
    ],
)
def test_any_other_end_is_its_end(until: str, restart: int, exit_code: str, state: str) -> None:
    world, job = requeued(until)
    forget(world, job, exit_code, state, restart)
    world.run(5)
    assert world.engine.jobs[job].state == states.ENDED


def in_the_midst_of_an_image(
    until: str, framework: str = "image", may_return: bool = True
) -> tuple[FakeWorld, int]:
    """A job that is parked, runs, or leaves n1 for n2; its node says so of how it is moved."""
    world = FakeWorld({"n1": 1, "n2": 1}, EngineSettings(10 * SECOND_NS, slots_per_gpu=4), move_ns=SECOND_NS)
    world.drained = {"n2": DISK}
    both = [world.submit(), world.submit()]
    world.frameworks = dict.fromkeys(both, framework)
    world.jobs |= {job: replace(world.jobs[job], requeue=may_return) for job in both}
    world.run(5)
    if until == states.CHECKPOINTING:
        world.drained = {"n1": DISK}
    for _ in range(60):
        world.cycle()
        for job in both:
            if world.engine.jobs[job].state == until:
                return world, job
    raise AssertionError([world.engine.jobs[job].state for job in both])


@pytest.mark.parametrize("exit_code", ["0:5", "133:0"])
@pytest.mark.parametrize("until", [states.SUSPENDED, states.CHECKPOINTING])
def test_what_a_killed_criu_has_killed_is_requeued(until: str, exit_code: str) -> None:
    """Its trap is left in a process in some kills: no end of the job's, and no failed move of it."""
    world, job = in_the_midst_of_an_image(until)
    forget(world, job, exit_code)
    world.cycle()
    record = world.engine.jobs[job]
    assert record.code == "ImageBroke" and f"({exit_code})" in record.text
    world.drained = {}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.state in states.SLICED and record.job.restart == 1 and record.travels.forgotten_ns == 0


@pytest.mark.parametrize(
    "until, framework, exit_code, state, may_return",
    [
        (states.RUNNING, "image", "0:5", "FAILED", True),
        (states.SUSPENDED, "lightning", "0:5", "FAILED", True),
        (states.SUSPENDED, "image", "0:11", "FAILED", True),
        (states.SUSPENDED, "image", "0:5", "CANCELLED", True),
        (states.SUSPENDED, "image", "0:5", "FAILED", False),
    ],
)
def test_any_other_trap_is_the_job_s_own(
    until: str, framework: str, exit_code: str, state: str, may_return: bool
) -> None:
    world, job = in_the_midst_of_an_image(until, framework, may_return)
    forget(world, job, exit_code, state)
    world.run(3)
    assert world.engine.jobs[job].state == states.ENDED


def test_one_that_is_attached_since_is_in_no_image() -> None:
    world, job = in_the_midst_of_an_image(states.SUSPENDED)
    world.frameworks[job] = ""
    world.run(1)
    assert world.engine.jobs[job].state == states.SUSPENDED
    forget(world, job, "0:5")
    world.run(3)
    assert world.engine.jobs[job].state == states.ENDED


@pytest.mark.parametrize("what", ["often", "another start", "its own signal"])
def test_a_trap_is_no_criu_s_where(what: str) -> None:
    world, job = in_the_midst_of_an_image(states.SUSPENDED)
    travels = world.engine.jobs[job].travels
    travels.broken = 3 if what == "often" else 0
    travels.signalled_ns = 1 if what == "its own signal" else 0
    forget(world, job, "0:5", restart=1 if what == "another start" else 0)
    world.run(3)
    assert world.engine.jobs[job].state == states.ENDED


def test_a_job_that_runs_and_is_killed_has_ended() -> None:
    world, job = requeued(states.HELD)
    world.drained = {"n1": DISK}
    world.run(60)
    assert world.engine.jobs[job].state in states.SLICED
    forget(world, job, restart=1)
    world.run(5)
    assert world.engine.jobs[job].state == states.ENDED


def test_one_that_slurm_does_not_requeue_has_ended_after_a_while() -> None:
    """Slurm itself does not know what ended five minutes ago."""
    world, job = requeued(states.HELD)
    forget(world, job)
    world.refuse_requeues = True
    world.run(5)
    assert world.engine.jobs[job].code == "Forgotten"
    del world.jobs[job]
    world.run(5)
    assert world.engine.jobs[job].state == states.ENDED


def test_what_has_ended_is_not_asked_for_any_more() -> None:
    """A controller that sees Slurm anew, later than it asks, takes the end for one."""
    world, job = requeued(states.HELD)
    world.refuse_requeues = True
    forget(world, job)
    world.run(400)
    assert world.engine.jobs[job].state == states.ENDED
    assert not any(action.key.job_id == job for action in world.run(100))


def test_a_controller_that_is_started_anew_meanwhile_goes_on_asking() -> None:
    world, job = requeued(states.HELD)
    world.refuse_requeues = True
    forget(world, job)
    world.cycle()
    state = EngineState.from_json(world.engine.state.to_json())
    assert state.jobs[job].travels.forgotten_ns > 0
    world.restart_controller(keep_journal=True)
    world.refuse_requeues = False
    world.drained = {"n1": DISK}
    world.run(60)
    assert world.engine.jobs[job].nodes == ("n2",)
