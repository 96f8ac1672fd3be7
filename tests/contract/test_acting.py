"""What acts on jobs must bring about, whichever back end does them."""

import asyncio

import pytest

from gandiva_slurm.engine.lifecycle.event_handlers import REQUEUE_PAUSE_NS
from gandiva_slurm.model.errors import SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.snapshot import Snapshot
from tests.contract.contract_world import World, job, submit, tasks


async def started(world: World, job_id: int, node: str) -> None:
    await world.port.start(job_id, [node])
    await world.until(lambda s: job(s, job_id).state == "RUNNING")


def slots_used(snapshot: Snapshot) -> dict[str, int]:
    """Return how many slots Slurm counts as taken, by node."""
    return {node.name: node.slots_used for node in snapshot.nodes}


async def test_start_hold_requeue_and_start_elsewhere(world: World) -> None:
    job_id = await submit(world, "--gpus=2", gpus=2)
    await world.port.start(job_id, ["n2"])
    # Jobs and nodes are read side by side: the nodes may be a moment older.
    snapshot = await world.until(lambda s: job(s, job_id).state == "RUNNING" and slots_used(s)["n2"] == 2)
    running = job(snapshot, job_id)
    assert (running.nodes, running.restart, running.node_count) == (("n2",), 0, 1)
    assert running.start_s >= running.submit_s > 0
    assert running.end_s == 0

    await world.port.hold(job_id)
    held = job(await world.port.snapshot(False), job_id)
    assert held.state == "RUNNING" and held.is_held

    await world.run("scontrol", "requeue", str(job_id))
    returned = job(await world.until(lambda s: job(s, job_id).state == "PENDING"), job_id)
    assert returned.is_held and (returned.restart, returned.nodes, returned.start_s) == (1, (), 0)
    assert returned.options is not None

    await world.port.start(job_id, ["n1"])
    again = job(await world.until(lambda s: job(s, job_id).state == "RUNNING"), job_id)
    assert (again.nodes, again.restart) == (("n1",), 1)


async def test_a_requeued_job_still_ending_is_neither_running_nor_waiting(world: World) -> None:
    job_id = await submit(world, "--gpus=1", script="trap '' TERM; while :; do sleep 1; done")
    await started(world, job_id, "n1")
    await world.has_begun(job_id)
    await world.port.hold(job_id)
    await world.run("scontrol", "requeue", str(job_id))
    ending = job(await world.until(lambda s: job(s, job_id).state != "RUNNING"), job_id)
    assert (ending.state, ending.restart, ending.nodes) == ("COMPLETING", 1, ("n1",))
    await world.until(lambda s: job(s, job_id).state == "PENDING")


@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [("true", "COMPLETED", "0:0"), ("exit 3", "FAILED", "3:0"), ("kill -9 $$", "FAILED", "0:9")],
    ids=["well", "exit", "signal"],
)
async def test_how_a_job_ended(world: World, script: str, state: str, exit_code: str) -> None:
    job_id = await submit(world, "--gpus=1", script=script)
    await world.port.start(job_id, ["n1"])
    ended = job(await world.until(lambda s: job(s, job_id).end_s > 0), job_id)
    assert (ended.state, ended.exit_code) == (state, exit_code)
    assert ended.end_s >= ended.start_s > 0


async def test_a_dependency_is_lifted_from_a_held_job(world: World) -> None:
    first = await submit(world, "--gpus=1", script="true")
    after = await submit(world, "--gpus=1", f"--dependency=afterok:{first}")
    assert job(await world.port.snapshot(False), after).dependency
    await world.port.start(first, ["n1"])
    freed = job(await world.until(lambda s: not job(s, after).dependency), after)
    assert freed.is_held and freed.state == "PENDING"
    await started(world, after, "n1")


async def test_a_dependency_that_fails_is_told(world: World) -> None:
    first = await submit(world, "--gpus=1", script="false")
    after = await submit(world, "--gpus=1", f"--dependency=afterok:{first}")
    await world.port.start(first, ["n1"])
    said = f"afterok:{first}(failed)"
    snapshot = await world.until(lambda s: job(s, first).end_s > 0 and job(s, after).dependency == said)
    assert job(snapshot, after).dependency == said


async def test_a_cancelled_job(world: World) -> None:
    job_id = await submit(world, "--gpus=1")
    await world.run("scancel", str(job_id))
    assert job(await world.until(lambda s: job(s, job_id).end_s > 0), job_id).state == "CANCELLED"


async def test_a_task_is_started_alone(world: World) -> None:
    array = await submit(world, "--array=1-3", "--gpus=1")
    found = tasks(await world.until(lambda s: len(tasks(s, array)) == 3), array)
    last = next(task for task in found.values() if task.job_id == array)
    assert last.array_task_id is not None
    await started(world, last.job_id, "n2")
    now = tasks(await world.port.snapshot(False), array)
    assert {number: task.state for number, task in now.items()} == {
        number: "RUNNING" if number == last.array_task_id else "PENDING" for number in (1, 2, 3)
    }
    await world.port.hold(last.job_id)
    now = tasks(await world.port.snapshot(False), array)
    assert all(task.is_held for task in now.values())
    assert now[last.array_task_id].nodes == ("n2",)


async def test_a_job_of_two_nodes_is_started_on_both(world: World) -> None:
    """What it asks of each node is known while it waits, and again when it is requeued."""
    job_id = await submit(world, "-N2", "--gpus-per-node=2", "-n4", "--mem=200", gpus=4)
    waiting = job(await world.port.snapshot(False), job_id)
    assert (waiting.node_count, waiting.nodes, waiting.memory_mib, waiting.cpus) == (2, (), 200, 4)
    await world.port.start(job_id, ["n1", "n2"])
    running = job(await world.until(lambda s: job(s, job_id).state == "RUNNING"), job_id)
    assert (running.node_count, running.nodes, running.memory_mib) == (2, ("n1", "n2"), 200)
    await world.port.hold(job_id)
    await world.run("scontrol", "requeue", str(job_id))
    back = job(await world.until(lambda s: job(s, job_id).state == "PENDING"), job_id)
    assert (back.is_held, back.restart, back.node_count, back.nodes) == (True, 1, 2, ())


async def test_the_hold_of_a_job_that_runs_is_taken_back(world: World) -> None:
    """It runs on where it is, and would be free to start again once it is requeued."""
    job_id = await submit(world, "--gpus=1")
    await started(world, job_id, "n1")
    await world.port.hold(job_id)
    assert job(await world.port.snapshot(False), job_id).is_held
    await world.port.unhold(job_id)
    running = job(await world.until(lambda s: not job(s, job_id).is_held), job_id)
    assert (running.state, running.nodes, running.restart) == ("RUNNING", ("n1",), 0)


async def test_many_are_started_at_once_and_one_is_refused(world: World) -> None:
    jobs = [await submit(world, "--gpus=1") for _ in range(3)]
    await world.run("scancel", str(jobs[1]))
    await world.until(lambda s: job(s, jobs[1]).state == "CANCELLED")
    refused = await world.port.start_many({jobs[0]: ["n1"], jobs[1]: ["n1"], jobs[2]: ["n2"]})
    assert list(refused) == [jobs[1]]
    assert "already finished" in str(refused[jobs[1]])
    snapshot = await world.until(lambda s: all(job(s, n).state == "RUNNING" for n in (jobs[0], jobs[2])))
    assert job(snapshot, jobs[0]).nodes + job(snapshot, jobs[2]).nodes == ("n1", "n2")


async def test_a_job_that_runs_is_requeued_and_no_other(world: World) -> None:
    """Slurm runs a job again that is requeued after its end, a cancelled one too: it must not be asked to."""
    moved, cancelled = [await submit(world, "--gpus=1") for _ in range(2)]
    await world.port.requeue(moved)
    assert job(await world.port.snapshot(False), moved).restart == 0
    for job_id in (moved, cancelled):
        await started(world, job_id, "n1")
    await world.run("scancel", str(cancelled))
    await world.until(lambda s: job(s, cancelled).state == "CANCELLED")
    for job_id in (moved, cancelled, moved):
        await world.port.requeue(job_id)
    snapshot = await world.until(lambda s: job(s, moved).state == "PENDING")
    assert (job(snapshot, moved).restart, job(snapshot, cancelled).restart) == (1, 0)
    assert job(snapshot, cancelled).state == "CANCELLED"


async def test_a_task_is_requeued_alone(world: World) -> None:
    array = await submit(world, "--array=1-2", "--gpus=1")
    found = tasks(await world.until(lambda s: len(tasks(s, array)) == 2), array)
    for task in found.values():
        await started(world, task.job_id, "n1")
    await world.port.requeue(array)
    last = next(number for number, task in found.items() if task.job_id == array)
    snapshot = await world.until(lambda s: tasks(s, array)[last].state == "PENDING")
    assert {number: task.restart for number, task in tasks(snapshot, array).items()} == {last: 1, 3 - last: 0}


async def test_a_requeue_is_refused_with_slurms_sentence(world: World) -> None:
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        await world.port.requeue(99_999_999)
    job_id = await submit(world, "--gpus=1", "--no-requeue")
    await started(world, job_id, "n1")
    with pytest.raises(SlurmRefused, match="presently disabled"):
        await world.port.requeue(job_id)
    assert job(await world.port.snapshot(False), job_id).state == "RUNNING"


async def test_a_requeued_job_is_given_another_number_of_gpus(world: World) -> None:
    """Its tasks and CPUs follow; what it asks for already is not asked again."""
    job_id = await submit(world, "--gres=gpu:v100:2", "-n2", "--mem=200", gpus=2)
    await world.port.resize(job_id, 2)
    await started(world, job_id, "n1")
    await world.port.requeue(job_id)
    await world.until(lambda s: job(s, job_id).state == "PENDING")
    await world.port.hold(job_id)
    await world.port.resize(job_id, 4)
    await world.port.resize(job_id, 4)
    if world.is_live:  # by whole seconds slurmd remembers what it killed: Gandiva waits as long
        await asyncio.sleep(REQUEUE_PAUSE_NS / 1e9)
    await started(world, job_id, "n1")
    snapshot = await world.until(lambda s: slots_used(s)["n1"] == 4)
    grown = job(snapshot, job_id)
    assert (grown.cpus, grown.memory_mib, grown.node_count, grown.nodes) == (4, 200, 1, ("n1",))


async def test_gpus_that_another_flag_asked_for_are_not_changed(world: World) -> None:
    job_id = await submit(world, "--gpus=2", "-n2", gpus=2)
    with pytest.raises(SlurmRefused, match="changed only where --gres=gpu:N asked for them"):
        await world.port.resize(job_id, 4)


async def test_refusals_carry_slurms_sentence(world: World) -> None:
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        await world.port.start(99_999_999, ["n1"])
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        await world.port.hold(99_999_999)
    job_id = await submit(world, "--gpus=1")
    with pytest.raises(SlurmRefused, match="Invalid node name"):
        await world.port.start(job_id, ["n77"])
    assert job(await world.port.snapshot(False), job_id).is_held


async def test_slurmctld_away(world: World) -> None:
    world.kill("slurmctld")
    try:
        assert not await world.port.ping()
        with pytest.raises(SlurmUnreachable):
            await world.port.snapshot(False)
        with pytest.raises(SlurmUnreachable):
            await world.port.hold(1)
    finally:
        world.mend("slurmctld")
    assert (await world.until(lambda s: bool(s.nodes))).nodes


async def test_slurmdbd_away(world: World) -> None:
    world.kill("slurmdbd")
    try:
        snapshot = await world.port.snapshot(True)
        assert snapshot.associations is None
        assert snapshot.nodes
    finally:
        world.mend("slurmdbd")
