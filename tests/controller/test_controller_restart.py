"""The controller is killed in every state of a job and comes back, with its journal or without."""

import asyncio
from dataclasses import replace

import pytest

from tests.controller.fakes import DEADLINE_S
from tests.patience import slowness

KEPT_OR_LOST = pytest.mark.parametrize("journal", ["kept", "lost"])


async def restart(world, journal: str) -> None:
    await world.kill()
    if journal == "lost":
        for file in world.state_dir.glob("journal.sqlite*"):
            file.unlink()
    await world.start()


@KEPT_OR_LOST
async def test_waiting_job(world, journal):
    for node in world.fleet.values():
        node.is_down = True
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.state(job_id) == "HELD")
    await world.cycles(1)
    await restart(world, journal)
    for node in world.fleet.values():
        node.is_down = False
    await world.until(lambda: world.runs(job_id))
    assert world.slurm.calls_of(job_id) == ["start"]


@KEPT_OR_LOST
async def test_start_that_was_journalled_and_not_done(world, journal, monkeypatch):
    start, killed = world.slurm.start, asyncio.Event()

    async def hang(job_id, node):
        killed.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(world.slurm, "start", hang)
    job_id = world.slurm.submit("user1")
    await world.start()
    await asyncio.wait_for(killed.wait(), DEADLINE_S * slowness())
    monkeypatch.setattr(world.slurm, "start", start)
    await restart(world, journal)
    await world.until(lambda: world.runs(job_id))
    assert world.slurm.calls_of(job_id) == ["start"]


@KEPT_OR_LOST
async def test_start_that_was_done_and_its_outcome_not_written(world, journal, monkeypatch):
    start, done = world.slurm.start, asyncio.Event()

    async def hang_after(job_id, node):
        await start(job_id, node)
        done.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(world.slurm, "start", hang_after)
    job_id = world.slurm.submit("user1")
    await world.start()
    await asyncio.wait_for(done.wait(), DEADLINE_S * slowness())
    monkeypatch.setattr(world.slurm, "start", start)
    await restart(world, journal)
    await world.until(lambda: world.runs(job_id), "adopted")
    await world.cycles(3)
    assert world.slurm.calls_of(job_id) == ["start"]


@KEPT_OR_LOST
async def test_released_job_that_waits_in_slurm(world, journal):
    world.slurm.is_full = True
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.slurm.calls_of(job_id) == ["start"])
    await world.cycles(1)
    await restart(world, journal)
    await world.cycles(2)
    world.slurm.is_full = False
    (home,) = world.controller.engine.jobs[job_id].nodes or ("n1",)
    if not world.slurm.jobs[job_id].is_held:
        world.slurm.run(job_id, home)
    await world.until(lambda: world.runs(job_id), "runs, by this start or the next")


@KEPT_OR_LOST
@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "SUSPENDING", "RESUMING"])
async def test_job_on_a_node_is_left_alone_and_keeps_its_gpus(world, journal, state):
    job_id = world.slurm.submit("user1", 2)
    await world.start()
    await world.until(lambda: world.runs(job_id))
    home = world.fleet[world.slurm.jobs[job_id].nodes[0]]
    world.fleet[home.name].states[job_id] = state
    await world.until(lambda: world.state(job_id) == state)
    places = world.controller.engine.jobs[job_id].places
    calls = list(world.slurm.calls)
    await restart(world, journal)
    await world.until(lambda: world.state(job_id) == state, "the same state again")
    await world.until(lambda: world.controller.engine.jobs[job_id].places == places, "the same GPUs again")
    await world.until(lambda: (job_id, 0) in home.planned(), "in the plan again")
    await world.cycles(3)
    assert world.slurm.calls == calls


@KEPT_OR_LOST
async def test_gang_over_nodes_keeps_its_gpus_on_each(world, journal):
    first = world.slurm.submit("user2", 2)
    await world.start()
    await world.until(lambda: world.runs(first))
    span = world.slurm.submit("user1", 4, nodes_asked=2)
    await world.until(lambda: world.runs(span))
    for node in world.fleet.values():
        node.states[span] = "SUSPENDED"
    await world.until(lambda: world.state(span) == "SUSPENDED")
    places = world.controller.engine.jobs[span].places
    assert places == {"n1": (2, 3), "n2": (0, 1)}
    calls = list(world.slurm.calls)
    await restart(world, journal)
    await world.until(lambda: world.state(span) == "SUSPENDED", "the same state again")
    await world.until(lambda: world.controller.engine.jobs[span].places == places, "the same GPUs again")
    await world.until(lambda: all((span, 0) in node.planned() for node in world.fleet.values()), "planned")
    await world.cycles(3)
    assert world.slurm.calls == calls


@KEPT_OR_LOST
async def test_job_that_ran_unheld(world, journal):
    job_id = world.slurm.submit("user1")
    world.slurm.run(job_id, "n2")
    world.slurm.change(job_id, priority=1000)
    await world.start()
    await world.until(lambda: world.runs(job_id))
    await world.cycles(3)
    assert world.slurm.calls_of(job_id) == [], "whoever runs is left as he is"
    await restart(world, journal)
    await world.until(lambda: world.runs(job_id))
    assert world.slurm.jobs[job_id].nodes == ("n2",)


@KEPT_OR_LOST
async def test_job_requeued_meanwhile(world, journal):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    await world.kill()
    world.slurm.send_back(job_id)
    await restart(world, journal)
    await world.until(lambda: world.slurm.calls_of(job_id).count("start") == 2)
    await world.until(lambda: world.runs(job_id))
    assert world.controller.engine.jobs[job_id].key == (job_id, 1)


@KEPT_OR_LOST
async def test_job_that_ended_meanwhile(world, journal):
    first, second = world.slurm.submit("user1"), world.slurm.submit("user2")
    await world.start()
    await world.until(lambda: world.runs(first) and world.runs(second))
    await world.kill()
    world.slurm.finish(first)
    del world.slurm.jobs[second]
    await restart(world, journal)
    await world.cycles(3)
    assert {world.state(first), world.state(second)} <= {"ENDED", ""}
    assert all(not node.planned() for node in world.fleet.values())


async def test_epoch_rises_with_every_start_and_plans_of_a_dead_controller_lose(world):
    await world.start()
    await world.until(lambda: world.fleet["n1"].plan)
    old = world.fleet["n1"].plan
    await restart(world, "kept")
    await world.until(lambda: world.fleet["n1"].plan.epoch_ns > old.epoch_ns)


async def test_nodes_that_obeyed_a_later_clock_are_overtaken(world):
    await world.start()
    await world.until(lambda: world.fleet["n1"].plan)
    await world.kill()
    late_ns = world.fleet["n1"].plan.epoch_ns + 10**18
    world.fleet["n1"].plan = replace(world.fleet["n1"].plan, epoch_ns=late_ns)
    job_id = world.slurm.submit("user1", 4)
    world.fleet["n2"].is_down = True
    await restart(world, "lost")
    await world.until(lambda: world.runs(job_id), "n1 obeys again")
    assert world.fleet["n1"].plan.epoch_ns > late_ns


async def test_damaged_journal_is_put_aside(world):
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    await world.stop()
    (world.state_dir / "journal.sqlite").write_bytes(b"not a database" * 1000)
    await world.start()
    await world.until(lambda: world.state(job_id) == "RUNNING", "adopted")
    assert (world.state_dir / "journal.damaged").exists()


async def test_damaged_ledger_is_put_aside_and_begun_anew(world):
    """Never over one that was put aside before: it has the accounts of the time until then."""
    job_id = world.slurm.submit("user1")
    await world.start()
    await world.until(lambda: world.runs(job_id))
    for number in range(2):
        await world.stop()
        (world.state_dir / "ledger.sqlite").write_bytes(b"not a database %d" % number * 1000)
        await world.start()
        await world.until(lambda: world.state(job_id) == "RUNNING", "adopted")
    aside = sorted(path.name for path in world.state_dir.glob("ledger.damaged*"))
    assert aside == ["ledger.damaged", "ledger.damaged1"]
    assert (world.state_dir / "ledger.damaged").read_bytes().startswith(b"not a database 0")
