"""The whole loop against a Slurm and nodes in memory: starts, holds, requeues, silence, outages."""

import sqlite3
from functools import wraps

import pytest

from gandiva_slurm.controller.journal import Journal
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.model.snapshot import Association


async def test_job_is_planned_and_started(world):
    job_id = world.slurm.submit("user1", 2)
    await world.start()
    await world.until(lambda: world.runs(job_id), "runs")
    assert world.slurm.calls_of(job_id) == ["start"]
    await world.cycles(5)
    assert world.slurm.calls_of(job_id) == ["start"], "a settled job is left alone"


async def test_nothing_starts_on_a_node_that_does_not_answer(world):
    world.fleet["n1"].is_down = world.fleet["n2"].is_down = True
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.cycles(5)
    assert world.slurm.calls == []
    assert world.state(job_id) == "HELD"
    world.fleet["n2"].is_down = False
    await world.until(lambda: world.runs(job_id), "runs on n2")
    assert world.slurm.jobs[job_id].nodes == ("n2",)


async def test_nothing_is_released_before_the_node_has_taken_the_plan(world, monkeypatch):
    monkeypatch.setattr("gandiva_slurm.controller.executor.ACCEPT_DEADLINE_S", 0.3)
    for node in world.fleet.values():
        node.is_deaf = True
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: "did not accept" in _text(world, job_id), "the start fails with the reason")
    assert world.slurm.calls_of(job_id) == []


async def test_gang_over_nodes_waits_until_each_of_them_has_taken_the_plan(world, monkeypatch):
    monkeypatch.setattr("gandiva_slurm.controller.executor.ACCEPT_DEADLINE_S", 0.3)
    world.fleet["n2"].is_deaf = True
    job_id = world.slurm.submit("user1", 2, nodes_asked=2)
    await world.start()
    await world.until(lambda: "did not accept" in _text(world, job_id), "the start fails with the reason")
    assert world.slurm.calls_of(job_id) == []
    world.fleet["n2"].is_deaf = False
    await world.until(lambda: world.runs(job_id), "started once n2 obeys")
    assert world.slurm.jobs[job_id].nodes == ("n1", "n2")
    assert world.slurm.calls_of(job_id) == ["start"]


async def test_gang_over_nodes_that_is_requeued_is_started_again(world):
    job_id = world.slurm.submit("user1", 4, nodes_asked=2)
    await world.start()
    await world.until(lambda: world.runs(job_id))
    world.slurm.send_back(job_id)
    await world.until(lambda: world.slurm.calls_of(job_id).count("start") == 2, "second start")
    await world.until(lambda: world.runs(job_id), "runs again")
    assert world.controller.engine.jobs[job_id].key == (job_id, 1)


async def test_requeued_job_is_held_and_started_again(world):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    world.slurm.send_back(job_id)
    await world.until(lambda: world.slurm.calls_of(job_id).count("start") == 2, "second start")
    await world.until(lambda: world.runs(job_id), "runs again")
    assert world.controller.engine.jobs[job_id].key == (job_id, 1)


async def test_node_that_falls_silent_keeps_its_jobs_and_gets_no_new_ones(world):
    world.settings["silent_after_s"] = 1
    first = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(first))
    home = world.slurm.jobs[first].nodes[0]
    world.fleet[home].is_down = True
    await world.until(lambda: world.controller.nodes[home].is_silent, "silent")
    await world.cycles(2)
    jobs = [world.slurm.submit(f"user{number}") for number in range(1, 5)]
    await world.until(lambda: all(world.runs(job_id) for job_id in jobs), "all run elsewhere")
    assert {world.slurm.jobs[job_id].nodes[0] for job_id in jobs} == {"n1", "n2"} - {home}
    assert world.state(first) == "RUNNING"


async def test_slurm_away_stops_nothing_and_starts_nothing(world):
    first = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(first))
    world.slurm.is_down = True
    await world.until(lambda: world.controller.status.slurm_error, "the outage is known")
    second = world.slurm.submit("user2")
    seen = len(world.fleet["n1"].plans)
    await world.until(lambda: len(world.fleet["n1"].plans) > seen + 5, "plans go on")
    assert world.state(first) == "RUNNING" and world.state(second) == ""
    world.slurm.is_down = False
    await world.until(lambda: world.runs(second), "starts after the outage")


async def test_refused_start_is_shown_with_slurms_sentence(world):
    world.slurm.refuse_start = "Requested node configuration is not available"
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: "Requested node configuration" in _text(world, job_id), "the reason")
    assert world.state(job_id) == "HELD"


async def test_released_job_that_does_not_start_in_time_is_held_again(world):
    world.settings["start_deadline_s"] = 1
    world.slurm.is_full = True
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.slurm.calls_of(job_id) == ["start", "hold"], "held again")
    assert world.slurm.jobs[job_id].state == "PENDING"


async def test_unfinished_processes_of_an_old_incarnation_are_fenced(world):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    home = world.slurm.jobs[job_id].nodes[0]
    await world.until(lambda: world.controller.reports[home].residents)
    stray = world.controller.reports[home].residents[0]
    world.fleet[home].strays[(job_id, 0)] = stray
    world.slurm.send_back(job_id)
    await world.until(lambda: not world.fleet[home].strays, "the node stops the old one")
    await world.until(lambda: world.runs(job_id), "the new one runs")


async def test_shares_reach_the_nodes_as_tickets(world):
    world.slurm.associations = (
        Association("root", "", "", 1),
        Association("lab", "", "root", 1),
        Association("lab", "user1", "lab", 3),
        Association("lab", "user2", "lab", 1),
    )
    jobs = [world.slurm.submit(user, 4) for user in ("user1", "user2")]
    world.fleet["n2"].is_down = True
    await world.start()
    await world.until(lambda: all(world.lives(job_id) for job_id in jobs))
    tickets = {job.user: job.tickets for job in world.fleet["n1"].plan.jobs}
    assert tickets["user1"] == 3 * tickets["user2"]


async def test_job_whose_record_was_overwritten_stays_ours(world):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    world.slurm.change(job_id, options=None)
    await world.cycles(3)
    assert world.state(job_id) == "RUNNING"


async def test_job_gone_from_slurms_memory_ends(world):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    del world.slurm.jobs[job_id]
    await world.until(lambda: world.state(job_id) == "ENDED")
    await world.cycles(2)
    rows = _ledger(world, "SELECT state FROM jobs WHERE job_id = ?", job_id)
    assert rows == [("UNKNOWN",)]


async def test_error_in_a_cycle_is_counted_and_the_next_one_begins_anew(world, monkeypatch):
    job_id = world.slurm.submit("user1")
    controller = await world.start()
    await world.until(lambda: world.runs(job_id))
    handle, broken = type(controller.engine).handle, [True]

    def break_once(self, events, now_ns):
        if broken:
            broken.pop()
            raise RuntimeError("broken for the test")
        return handle(self, events, now_ns)

    monkeypatch.setattr(type(controller.engine), "handle", break_once)
    second = world.slurm.submit("user2")
    await world.until(lambda: world.runs(second), "goes on")
    assert world.controller.status.last_error == "RuntimeError: broken for the test"
    assert world.state(job_id) == "RUNNING"
    world.want_errors = 1


async def test_after_an_error_nothing_starts_on_nodes_that_have_not_reported_since(world, monkeypatch):
    """They have no new plan, and would not know the job."""
    controller = await world.start()
    first = world.slurm.submit("user1")
    await world.until(lambda: world.runs(first))
    take, handle, broken = controller.nodes.take_reports, type(controller.engine).handle, [True]

    def break_once(self, events, now_ns):
        if broken:
            broken.pop()
            monkeypatch.setattr(controller.nodes, "take_reports", list)
            raise RuntimeError("broken for the test")
        return handle(self, events, now_ns)

    monkeypatch.setattr(type(controller.engine), "handle", break_once)
    second = world.slurm.submit("user2")
    await world.until(lambda: second in controller.engine.jobs and not broken)
    await world.cycles(5)
    assert world.slurm.jobs[second].state == "PENDING"
    monkeypatch.setattr(controller.nodes, "take_reports", take)
    await world.until(lambda: world.runs(second), "goes on")
    world.want_errors = 1


async def test_full_disk_stops_nothing_and_is_told(world, monkeypatch):
    controller = await world.start()
    write = controller.books.journal.write

    @wraps(write)
    def full(*args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(controller.books.journal, "write", full)
    job_id = world.slurm.submit("user1")
    await world.until(lambda: world.runs(job_id), "runs without a journal")
    assert controller.books.error == "database or disk is full"
    monkeypatch.setattr(controller.books.journal, "write", write)
    await world.until(lambda: controller.books.error == "", "written again")


async def test_start_on_a_full_disk_ends_with_a_sentence(world, monkeypatch):
    def full(*args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Journal, "begin_epoch", full)
    with pytest.raises(ConfigError, match=r"controller\.state_dir: .*is full; free the disk, then start"):
        await world.start()


def _text(world, job_id: int) -> str:
    record = world.controller.engine.jobs.get(job_id)
    return record.text if record else ""


def _ledger(world, query: str, *args: object) -> list[tuple]:
    db = sqlite3.connect(world.controller.books.ledger_path)
    try:
        return db.execute(query, args).fetchall()
    finally:
        db.close()
