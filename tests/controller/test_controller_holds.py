"""Holds reach the ledger exactly once, and only what is in it is acknowledged."""

import sqlite3
from contextlib import closing
from dataclasses import replace

from gandiva_slurm.accounting.database import open_reader
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import held_by_job
from gandiva_slurm.accounting.upkeep import DAY_NS
from gandiva_slurm.model.ids import JobKey


def stored(world) -> list[tuple]:
    db = sqlite3.connect(world.controller.books.ledger_path)
    try:
        return db.execute("SELECT node, boot, seq, job_id, gpu_count FROM holds ORDER BY 1, 2, 3").fetchall()
    finally:
        db.close()


async def started(world) -> tuple[int, object]:
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    return job_id, world.fleet[world.slurm.jobs[job_id].nodes[0]]


async def test_holds_are_stored_then_acknowledged(world):
    job_id, node = await started(world)
    for _ in range(3):
        node.hold(job_id, 1.0)
    await world.until(lambda: node.plan.ack_seq == 3, "acknowledged")
    assert stored(world) == [(node.name, "boot-1", seq, job_id, 1) for seq in (1, 2, 3)]


async def test_report_repeated_changes_nothing(world):
    job_id, node = await started(world)
    node.hold(job_id, 1.0)
    await world.until(lambda: node.plan.ack_seq == 1)
    # A node that lost its memory of the acknowledgement sends it again.
    node.plan = replace(node.plan, ack_seq=0)
    node.closed = [*node.closed]
    await world.cycles(3)
    assert len(stored(world)) == 1


async def test_node_with_a_new_boot_counts_anew(world):
    job_id, node = await started(world)
    node.hold(job_id, 1.0)
    await world.until(lambda: node.plan.ack_seq == 1)
    node.boot, node.closed = "boot-2", []
    node.hold(job_id, 2.0)
    await world.until(lambda: (node.plan.ack_boot, node.plan.ack_seq) == ("boot-2", 1))
    assert [row[1] for row in stored(world)] == ["boot-1", "boot-2"]


async def test_nothing_is_acknowledged_that_could_not_be_written(world, monkeypatch):
    job_id, node = await started(world)
    record = world.controller.books.ledger.record_report

    def full(report):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.controller.books.ledger, "record_report", full)
    node.hold(job_id, 1.0)
    await world.until(lambda: world.controller.books.error)
    await world.cycles(2)
    assert node.plan.ack_seq == 0
    monkeypatch.setattr(world.controller.books.ledger, "record_report", record)
    await world.until(lambda: node.plan.ack_seq == 1)
    assert len(stored(world)) == 1


async def test_holds_survive_a_kill_of_the_controller(world):
    job_id, node = await started(world)
    node.hold(job_id, 1.0)
    await world.until(lambda: node.plan.ack_seq == 1)
    await world.kill()
    node.hold(job_id, 1.0)
    await world.start()
    await world.until(lambda: node.plan.ack_seq == 2)
    assert [row[2] for row in stored(world)] == [1, 2]


async def test_old_holds_are_removed_while_it_runs_and_stay_charged(world, monkeypatch):
    monkeypatch.setattr("gandiva_slurm.controller.books.UPKEEP_S", 0.05)
    job_id, node = await started(world)
    old = node.hold(job_id, 3.0)
    node.closed = [replace(old, t0_ns=old.t0_ns - 40 * DAY_NS, t1_ns=old.t1_ns - 40 * DAY_NS)]
    node.hold(job_id, 1.0)
    await world.until(lambda: node.plan.ack_seq == 2)
    await world.until(lambda: [row[2] for row in stored(world)] == [2], "the old one to be removed")
    with closing(open_reader(world.controller.books.ledger_path)) as db:
        held = held_by_job(db, Window(0, 1 << 62, 1 << 62), ())
    assert held == {JobKey(job_id, 0): 4 * 10**9}


async def test_start_latency_is_from_the_release_to_the_first_process(world):
    await started(world)
    await world.cycles(3)
    db = sqlite3.connect(world.controller.books.ledger_path)
    released_ns, registered_ns = db.execute("SELECT released_ns, registered_ns FROM runs").fetchone()
    db.close()
    assert 0 < registered_ns - released_ns < 60e9
