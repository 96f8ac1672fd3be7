"""A job's number that Slurm gives again is another job's: nothing of the one before it is handed on."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gandiva_slurm.accounting.ledger import Ledger
from gandiva_slurm.controller.differences import look, slurm_events
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob, Snapshot
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.fake_world import FakeWorld

S = 10**9
NEW = SlurmJob(7, "user1", 1001, "lab", "gandiva", "PENDING", submit_s=500, options=JobOptions())
OLD = replace(NEW, state="RUNNING", submit_s=100, nodes=("n1",))
#: what may come with the number 7 after that
OTHERS = {"another user's": replace(NEW, user="user2", uid=1002, submit_s=100), "a later one": NEW}


def hold(user: str, begin_s: int, seq: int) -> Hold:
    return Hold(seq, 7, 0, user, (0,), begin_s * S, (begin_s + 10) * S, 0)


def report(*holds: Hold) -> NodeReport:
    return NodeReport("n1", "boot", 0, 0, 0, 4, (), holds, ())


@pytest.mark.parametrize("new", OTHERS.values(), ids=OTHERS)
def test_gandivactld_sees_the_old_one_gone_before_the_new_one(new: SlurmJob) -> None:
    """One look in between: a policy keeps what it knows of a number that it is shown all the time."""
    first = look(Snapshot((OLD,), ()), None, {})
    second = look(Snapshot((new,), ()), first, {7: OLD})
    assert slurm_events(first, second, (7,), ()) == [ev.JobGone(7, "", 0, "")]
    third = look(Snapshot((new,), ()), second, {})
    assert slurm_events(second, third, (), ()) == [ev.JobSeen(new)]


def test_a_requeue_is_the_same_job() -> None:
    first = look(Snapshot((OLD,), ()), None, {})
    again = replace(OLD, state="PENDING", restart=1, submit_s=500, nodes=())
    forgotten = replace(OLD, state="PENDING", nodes=())
    for job in (again, forgotten):
        assert slurm_events(first, look(Snapshot((job,), ()), first, {7: OLD}), (7,), ()) == [ev.JobSeen(job)]


@pytest.mark.parametrize("is_over", [False, True], ids=["it runs still", "it has ended"])
def test_the_engine_hands_nothing_on(is_over: bool) -> None:
    world = FakeWorld({"n1": 2})
    job = world.submit("user1")
    world.run(5)
    kind, record = world.engine.state.nodes["n1"].node.gpu_type, world.engine.jobs[job]
    measured = ev.ResidentSeen(
        "n1", JobKey(job, 0), states.RUNNING, record.places["n1"], "Running", "",
        measured=Measured(rate_alone=1e300),
    )  # fmt: skip
    world.engine.handle([measured, ev.PriorityAsked(job, 3), ev.CycleTick()], world.now_ns)
    model = record.model
    assert world.engine.state.rates.alone(model, 1, kind) == 1e300
    if is_over:
        world.finish(job)
        world.run(2)
        assert world.state_of(job) == states.ENDED
    else:
        world._kill(job)
    world.next_id = job
    assert world.submit("user2") == job
    world.run(1)
    new = world.engine.jobs[job]
    assert new is not record and new.job.user == "user2"
    assert (new.asked_priority, new.held_ns, new.travels.rates) == (None, 0, {})
    assert all(line.code != "Ended" for line in new.story), "no line of the other's story"
    assert world.engine.state.rates.alone(new.model, 1, kind) is None
    world.run(5)
    assert world.state_of(job) == states.RUNNING


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def owners(path: Path) -> list[tuple[str, int, str, int]]:
    """Of each hold its user and begin, with the user and submit time of the job it is of."""
    query = """SELECT holds.user, t0_ns / 1000000000, jobs.user, submit_s FROM holds
        LEFT JOIN jobs USING (ref) ORDER BY t0_ns, holds.user"""
    with sqlite3.connect(path) as db:
        return db.execute(query).fetchall()


@pytest.mark.parametrize("new", OTHERS.values(), ids=OTHERS)
def test_a_late_hold_is_of_the_job_that_held(ledger: Ledger, tmp_path: Path, new: SlurmJob) -> None:
    new = replace(new, submit_s=500)
    ledger.record_jobs([OLD], {})
    ledger.record_report(report(hold("user1", 110, 1)))
    ledger.record_jobs([new], {})
    ledger.record_report(report(hold("user1", 130, 2), hold(new.user, 510, 3)))
    assert owners(tmp_path / "ledger.sqlite") == [
        ("user1", 110, "user1", 100), ("user1", 130, "user1", 100), (new.user, 510, new.user, 500),
    ]  # fmt: skip


def test_a_hold_of_a_job_that_nobody_has_seen_is_no_other_users(ledger: Ledger, tmp_path: Path) -> None:
    new = OTHERS["another user's"]
    ledger.record_report(report(hold("user1", 110, 1)))
    ledger.record_jobs([new], {})
    ledger.record_report(report(hold("user1", 130, 2)))
    assert owners(tmp_path / "ledger.sqlite") == [("user1", 110, None, None), ("user1", 130, None, None)]
    ledger.record_jobs([replace(OLD, submit_s=90)], {})
    ledger.record_report(report(hold("user1", 150, 3)))
    assert [row[2:] for row in owners(tmp_path / "ledger.sqlite")] == [("user1", 90)] * 3
