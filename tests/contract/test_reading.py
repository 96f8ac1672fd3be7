"""What the picture of Slurm must show, whichever back end took it."""

import time

import pytest

from gandiva_slurm.config import Config
from gandiva_slurm.model.snapshot import Association, JobOptions
from gandiva_slurm.slurm.arrays import AHEAD
from gandiva_slurm.slurm.check import read_site
from gandiva_slurm.slurm.check_site import check
from tests import patience
from tests.contract.contract_world import DEADLINE_S, World, job, submit, tasks

HOSTILE = 'we"ird\nJobState=COMPLETED\\x {"jobs":[]} \u00e9'


async def test_a_held_gandiva_job(world: World) -> None:
    job_id = await submit(world, "--gres=gpu:v100:2", "-J", HOSTILE, "-t", "90", "-c", "3", gpus=2)
    seen = job(await world.port.snapshot(False), job_id)
    assert (seen.user, seen.uid, seen.account) == ("user1", 5001, "research")
    assert (seen.partition, seen.state, seen.restart) == ("gandiva", "PENDING", 0)
    assert seen.is_held and seen.reason == "JobHeldUser"
    assert seen.name == HOSTILE
    assert (seen.cpus, seen.memory_mib, seen.time_limit_s) == (3, 1500, 5400)
    assert (seen.nodes, seen.node_count, seen.batch, seen.requeue) == ((), 1, True, True)
    assert seen.submit_s > 1_700_000_000
    assert (seen.start_s, seen.end_s, seen.exit_code) == (0, 0, "0:0")
    assert (seen.array_job_id, seen.array_task_id, seen.dependency) == (0, None, "")
    assert seen.options == JobOptions(tickets=200, types=("v100", "p100"), gpus=2, gpu_type="v100")


async def test_jobs_that_are_not_gandivas(world: World) -> None:
    common = ("-H", "--parsable", "-o", "/dev/null", "--chdir=/home/user1", "--wrap", "true")
    elsewhere = int(await world.run("sbatch", "-p", "plain", *common))
    ours = int(await world.run("sbatch", "-p", "gandiva", "--gres=gpu:1", *common))
    await world.run("scontrol", "update", f"JobId={ours}", "AdminComment=other:{}", user="root")
    jobs = {job.job_id: job for job in (await world.port.snapshot(False)).jobs}
    assert elsewhere not in jobs
    assert jobs[ours].options is None


@pytest.mark.parametrize(
    ("argv", "memory_mib", "cpus"),
    [
        (["-n3", "-c2", "--mem-per-cpu=1500"], 9000, 6),
        (["-n1", "--mem=5G"], 5120, 1),
        (["-n1", "--mem=0"], 65536, 1),
        (["-n1", "--mem-per-gpu=300", "--gpus=2"], 600, 1),
    ],
    ids=["per-cpu", "per-node", "whole-node", "per-gpu"],
)
async def test_memory_and_cpus_of_a_waiting_job(
    world: World, argv: list[str], memory_mib: int, cpus: int
) -> None:
    job_id = await submit(world, "--gpus=2", *argv)
    seen = job(await world.port.snapshot(False), job_id)
    assert (seen.memory_mib, seen.cpus, seen.node_count) == (memory_mib, cpus, 1)


async def test_what_keeps_a_job_waiting(world: World) -> None:
    first = await submit(world, "--gpus=1")
    after = await submit(world, "--gpus=1", f"--dependency=afterok:{first}")
    later = await submit(world, "--gpus=1", "--begin=now+1hour", "--no-requeue")
    snapshot = await world.port.snapshot(False)
    assert job(snapshot, after).dependency.startswith(f"afterok:{first}")
    assert not job(snapshot, later).requeue
    assert job(snapshot, first).requeue
    assert job(snapshot, later).eligible_s == 0 or job(snapshot, later).is_held


async def test_a_small_array_is_split_into_tasks(world: World) -> None:
    array = await submit(world, "--array=1-3", "--gpus=1")
    snapshot = await world.until(lambda s: len(tasks(s, array)) == 3)
    found = tasks(snapshot, array)
    assert sorted(found) == [1, 2, 3]
    assert len({task.job_id for task in found.values()}) == 3
    assert all(task.options and task.is_held and task.state == "PENDING" for task in found.values())


async def test_an_array_of_one(world: World) -> None:
    array = await submit(world, "--array=7", "--gpus=1")
    task = tasks(await world.until(lambda s: bool(tasks(s, array))), array)[7]
    assert task.options is not None and task.job_id == array
    await world.port.start(array, ["n1"])
    await world.until(lambda s: job(s, array).state == "RUNNING")


async def test_a_large_array_is_split_ahead(world: World) -> None:
    array = await submit(world, "--array=0-499:5", "--gpus=1")
    snapshot = await world.until(lambda s: bool(tasks(s, array)))
    assert sorted(tasks(snapshot, array)) == list(range(0, 5 * AHEAD, 5))
    rest = job(snapshot, array)
    assert rest.array_task_id is None and rest.options is None


async def test_a_throttled_array_is_split_no_further(world: World) -> None:
    array = await submit(world, "--array=1-10%2", "--gpus=1")
    snapshot = await world.until(lambda s: bool(tasks(s, array)))
    assert sorted(tasks(snapshot, array)) == [1, 2]
    assert sorted(tasks(await world.port.snapshot(False), array)) == [1, 2]


async def test_nodes(world: World) -> None:
    # A node is idle a moment before Slurm counts the slots of its last job as free.
    idle = (frozenset({"IDLE"}), 0)
    snapshot = await world.until(lambda s: all((node.state, node.slots_used) == idle for node in s.nodes))
    nodes = {node.name: node for node in snapshot.nodes}
    assert sorted(nodes) == ["n1", "n2"]
    assert (nodes["n1"].gpu_type, nodes["n1"].slots, nodes["n1"].slots_used) == ("v100", 16, 0)
    assert (nodes["n1"].cpus, nodes["n1"].memory_mib) == (32, 65536)
    assert (nodes["n1"].partitions, nodes["n1"].address) == (("gandiva",), world.address)


async def test_a_drained_node_and_its_reason(world: World) -> None:
    reason = 'bad "disk"\nState=IDLE'
    await world.run("scontrol", "update", "NodeName=n2", "State=DRAIN", f"Reason={reason}", user="root")
    try:
        node = {node.name: node for node in (await world.port.snapshot(False)).nodes}["n2"]
        assert "DRAIN" in node.state
        assert node.reason == reason
    finally:
        # Refused when the node has registered meanwhile and Slurm took it back by itself.
        await world.run("scontrol", "update", "NodeName=n2", "State=RESUME", user="root", check=False)
    await world.until(lambda s: all("DRAIN" not in node.state for node in s.nodes))


async def test_a_node_that_is_down(world: World) -> None:
    world.kill("slurmd:n2")  # else it registers again, and Slurm takes it back by itself
    end_s = patience.deadline(DEADLINE_S)
    try:
        while True:  # what slurmd said just before it died takes the node back, too: then Slurm is told again
            await world.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test", user="root")
            node = {node.name: node for node in (await world.port.snapshot(False)).nodes}["n2"]
            if "DOWN" in node.state:
                break
            assert time.monotonic() < end_s, f"n2 is not down in {DEADLINE_S:g} s: {node}"
        assert node.reason == "test"
    finally:
        world.mend("slurmd:n2")
    await world.until(lambda s: all("DOWN" not in node.state for node in s.nodes))


async def test_associations_only_when_asked(world: World) -> None:
    assert (await world.port.snapshot(False)).associations is None
    associations = (await world.port.snapshot(True)).associations
    assert associations is not None
    assert Association("research", "user1", "", 1) in associations
    assert Association("research", "", "root", 1) in associations


async def test_configuration_version_and_partitions(world: World) -> None:
    config = await world.port.slurm_config()
    assert config["ClusterName"] == "mini"
    assert config["SlurmUser"].startswith("slurm(")
    assert config["SLURM_VERSION"] == await world.port.version()
    assert config["CliFilterPlugins"] == ""
    assert (await world.port.partitions())["gandiva"]["OverSubscribe"] == "FORCE:8"
    assert await world.port.ping()


async def test_what_gandiva_check_finds(world: World) -> None:
    config = {"cluster": "mini", "partitions": ["gandiva"], "controller": {"host": "mini"}}
    site = await read_site(Config.model_validate(config), world.commands)
    found = list(check(site, Config.model_validate(config)))
    assert [finding.where for finding in found] == ["slurm.conf: ProctrackType"]
    wrong = {"cluster": "mini", "partitions": ["gpu"], "slots_per_gpu": 3, "controller": {"host": "mini"}}
    found = list(check(site, Config.model_validate(wrong)))
    assert found[0].what == "Slurm has no partition gpu (it has gandiva, plain)"
