"""A job is moved by the controller alone, among fakes; killed in the midst of it, it does not get stuck."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from gandiva_slurm.model.snapshot import JobOptions
from tests.controller.fakes import DEADLINE_S
from tests.controller.test_controller_restart import restart
from tests.patience import slowness


async def crowd(world, **changes):
    """Two jobs of four GPUs on one node, the other node empty; return the one that can be moved.

    With `changes` nobody is attached, and all jobs are so.
    """
    world.moves = {"cost_s": 0}
    jobs = [world.slurm.submit(f"user{n}", 4, **changes) for n in (1, 2, 3)]
    await world.start()
    await world.until(lambda: all(map(world.lives, jobs)))
    homes = {job: world.slurm.jobs[job].nodes[0] for job in jobs}
    home = next(name for name in world.fleet if list(homes.values()).count(name) == 2)
    (job, _), (other,) = [[j for j in jobs if (homes[j] == home) is here] for here in (True, False)]
    for node in world.fleet.values():
        node.attached |= set() if changes else {job}
    world.slurm.finish(other)
    return job, homes[other]


OWN = JobOptions(gpus=4, checkpoint="signal:USR1@20")


async def own_crowd(world, signal):
    """The same, of jobs that save themselves upon a signal; `signal` is what Slurm makes of it."""
    world.slurm.signal = signal
    for node in world.fleet.values():
        node.facts = {"has_floor": True}
    return await crowd(world, options=OWN)


async def test_a_job_that_requeues_itself_upon_its_signal_is_in_the_accounts(world):
    """When it was signalled, and that it was moved, though nobody asked Slurm for a requeue."""

    async def signal(job_id, name, to_batch):
        world.slurm.send_back(job_id)

    job, target = await own_crowd(world, signal)
    await world.until(lambda: is_there(world, job, target), "moved")
    await world.cycles(2)
    with closing(sqlite3.connect(world.controller.books.ledger_path)) as db:
        rows = db.execute("SELECT restart, moved_by, signalled_ns > 0, moved_ns >= signalled_ns FROM runs")
        found = {row[0]: row[1:] for row in rows if row[1]}
    assert found == {0: ("signal", 1, 1)} and "requeue" not in world.slurm.calls_of(job)


async def test_a_controller_killed_as_it_signals_takes_the_signal_for_sent(world):
    """Its outcome was not written: the job may save itself now, and ends by its convention."""
    sent = []

    async def signal(job_id, name, to_batch):
        sent.append(job_id)
        if len(sent) == 1:
            await asyncio.sleep(60)

    job, target = await own_crowd(world, signal)
    await world.until(lambda: sent, "signalled")
    await restart(world, "kept")
    await world.cycles(3)
    world.slurm.finish(job, "FAILED", "3:0")
    await world.until(lambda: is_there(world, job, target), "moved")
    assert sent == [job] and "requeue_ended" in world.slurm.calls_of(job)


async def test_no_signal_is_sent_that_the_journal_does_not_have(world, monkeypatch):
    """On a full disk the job stays: gandivactld, killed then, would take its end for a failure."""
    sent = []

    async def signal(job_id, name, to_batch):
        sent.append(job_id)

    job, _ = await own_crowd(world, signal)

    def write(*words):
        raise sqlite3.OperationalError("database or disk is full")

    def failed():
        story = world.controller.engine.jobs[job].story
        return [line.text for line in story if line.code == "MoveFailed"]

    with monkeypatch.context() as full:
        full.setattr(world.controller.books.journal, "write", write)
        await world.until(failed, "the move to be given up")
    assert "SIGUSR1 could not be sent: gandivactld's journal cannot be written now" in failed()[0]
    assert not sent and world.lives(job)
    await world.cycles(3)


def is_there(world, job, target):
    found = world.slurm.jobs[job]
    return found.nodes == (target,) and found.restart == 1


async def test_a_job_is_moved(world):
    job, target = await crowd(world)
    await world.until(lambda: is_there(world, job, target), "moved")
    await world.cycles(5)
    assert world.slurm.calls_of(job).count("requeue") == 1
    assert is_there(world, job, target)


@pytest.mark.parametrize("is_done", [False, True], ids=["not asked", "done"])
async def test_a_controller_killed_as_it_asks_for_the_requeue(world, monkeypatch, is_done):
    """The journal has the action, without an outcome: the engine asks again where it was not done."""
    requeue, asked = world.slurm.requeue, asyncio.Event()

    async def hang(job_id):
        if is_done:
            await requeue(job_id)
        asked.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(world.slurm, "requeue", hang)
    job, target = await crowd(world)
    await asyncio.wait_for(asked.wait(), DEADLINE_S * slowness())
    monkeypatch.setattr(world.slurm, "requeue", requeue)
    await restart(world, "kept")
    await world.until(lambda: is_there(world, job, target), "moved")
    assert world.slurm.calls_of(job).count("requeue") == 1
