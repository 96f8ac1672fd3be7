"""Both back ends on the same live Slurm: what they show of every kind of job, field by field."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.snapshot import Snapshot
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.run import Commands
from tests import patience
from tests.contract.contract_world import PARTITIONS, RECORD, pyslurm_port, worker_argv

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
#: How long a call may take while slurmctld hangs.
HUNG_S = 3.0
ODD_NAME = b'we"ird\n\xff=\\ None'


class Zoo:
    """Jobs of all kinds on one cluster, and the two ports that look at them."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        commands = Commands(cluster.command(["placeholder"], "slurm", "cd / && ")[:-1])
        self.commands = CommandsPort(PARTITIONS, Timeouts(30, 30, 30), commands)
        self.pyslurm = pyslurm_port(commands, Timeouts(30, 30, 30), worker_argv(cluster))

    def run(self, *argv: str, user: str = "root") -> str:
        return self.cluster.exec(argv, user=user).stdout

    def submit(self, *argv: str, script: str = "sleep 600", gpus: int = 1, held: bool = True) -> int:
        common = ["-p", "gandiva", "-o", "/dev/null", "--chdir=/home/user1"] + ["-H"] * held
        said = self.run("sbatch", "--parsable", *common, *argv, "--wrap", script, user="user1")
        self.run("scontrol", "update", f"JobId={int(said)}", f"AdminComment=other:text {RECORD % gpus}")
        return int(said)

    async def both(self) -> tuple[Snapshot, Snapshot]:
        """Return what commands and pyslurm show, at a moment when nothing moved between the two looks."""
        end_s = patience.deadline(DEADLINE_S)
        before = await self.commands.snapshot(True)
        while True:
            through = await self.pyslurm.snapshot(True)
            after = await self.commands.snapshot(True)
            if _plain(before) == _plain(after):
                return after, through
            assert time.monotonic() < end_s, "Slurm does not come to rest"
            before = after

    async def until(self, job_id: int, *states: str) -> None:
        end_s = patience.deadline(DEADLINE_S)
        while True:
            found = {job.job_id: job.state for job in (await self.commands.snapshot(False)).jobs}
            if found.get(job_id) in states:
                return
            assert time.monotonic() < end_s, f"job {job_id} is {found.get(job_id)}, not {states}"
            await asyncio.sleep(0.1)


@pytest.fixture
async def zoo(cluster: MiniCluster) -> AsyncIterator[Zoo]:
    made = Zoo(cluster)
    yield made
    await made.pyslurm.close()
    made.run("scancel", "--user=user1")


def _plain(snapshot: Snapshot) -> list[Any]:
    """Everything but the time, in an order of its own."""
    associations = sorted(snapshot.associations or (), key=lambda row: (row.account, row.user))
    jobs = sorted(snapshot.jobs, key=lambda job: job.job_id)
    return [jobs, sorted(snapshot.nodes, key=lambda node: node.name), associations]


def differences(ours: Sequence[Any], theirs: Sequence[Any], key: str) -> list[str]:
    """Name each field in which two lists of the same things differ."""
    others = {getattr(item, key): item for item in theirs}
    assert {getattr(item, key) for item in ours} == set(others)
    return [
        f"{getattr(item, key)}.{field.name}: {getattr(item, field.name)!r} and {getattr(other, field.name)!r}"
        for item in ours
        for other in [others[getattr(item, key)]]
        for field in fields(item)
        if getattr(item, field.name) != getattr(other, field.name)
    ]


async def test_the_two_back_ends_show_the_same_of_every_kind_of_job(zoo: Zoo) -> None:
    held = zoo.submit("--gpus=2", "-c", "3", "-t", "90", gpus=2)
    zoo.submit("--gres=gpu:v100:1", "-t", "UNLIMITED", "-J", os.fsdecode(ODD_NAME))
    zoo.submit("--gpus=1", "-J", "None", "--no-requeue", "--mem=0")
    zoo.submit("--gpus=2", "-n3", "-c2", "--mem-per-cpu=1500")
    zoo.submit("--gpus=2", "--mem-per-gpu=1300")
    zoo.submit("--gpus=1", "--begin=now+1hour")
    zoo.submit("--gpus=1", f"--dependency=afterok:{held}")
    zoo.submit("--gpus=1", "-J", "one", f"--dependency=after:{held}+5?afternotok:{held}")
    zoo.submit("--gpus=1", "-J", "one", "--dependency=singleton")
    zoo.submit("--gpus=1", "-J", "one", f"--dependency=afterany:{held},singleton")
    tasks = zoo.submit("--gpus=1", "--array=0-6:2%3")
    zoo.submit("--gpus=1", "--array=5")
    zoo.submit("--gpus=1", "--array=0-70")
    wide = zoo.submit("-N2", "--gpus-per-node=1", "-n2", gpus=2)
    running, requeued, cancelled = (zoo.submit("--gpus=1") for _ in range(3))
    ended = {code: zoo.submit("--gpus=1", script=f"exit {code}") for code in (0, 3, 128, 200)}
    killed = zoo.submit("--gpus=1", script="kill -9 $$")
    stubborn = zoo.submit("--gpus=1", script="trap '' TERM; while :; do sleep 1; done")
    zoo.run("sbatch", "-p", "gandiva", "--gres=gpu:1", "-H", "--wrap", "true", user="user1")
    await zoo.pyslurm.snapshot(False)  # splits the arrays
    for job_id, nodes in {wide: ["n1", "n2"], running: ["n1"], requeued: ["n2"], stubborn: ["n2"]}.items():
        await zoo.pyslurm.start(job_id, nodes)
        await zoo.until(job_id, "RUNNING")
    refused = await zoo.pyslurm.start_many({job_id: ["n1"] for job_id in (*ended.values(), killed, tasks)})
    assert not refused
    for job_id in (*ended.values(), killed):
        await zoo.until(job_id, "COMPLETED", "FAILED")
    await zoo.pyslurm.hold(running)
    await zoo.pyslurm.hold(requeued)
    zoo.run("scontrol", "requeue", str(requeued))
    await zoo.until(requeued, "PENDING")
    zoo.run("scancel", str(cancelled))
    zoo.run("scancel", str(stubborn))
    await zoo.until(stubborn, "CANCELLED")

    commands, pyslurm = await zoo.both()
    assert len(commands.jobs) > 50
    assert differences(commands.jobs, pyslurm.jobs, "job_id") == []
    assert differences(commands.nodes, pyslurm.nodes, "name") == []
    assert _plain(commands)[2] == _plain(pyslurm)[2]
    codes = {job.job_id: job.exit_code for job in pyslurm.jobs}
    assert [codes[job_id] for job_id in ended.values()] == ["0:0", "3:0", "128:0", "200:0"]
    assert re.fullmatch("0:9|137:0", codes[killed])


async def test_a_hung_slurmctld_is_not_reachable_and_stops_nothing_else(zoo: Zoo) -> None:
    commands = Commands(zoo.cluster.command(["placeholder"], "slurm", "cd / && ")[:-1])
    limit_s = HUNG_S * patience.slowness()
    port = pyslurm_port(commands, Timeouts(limit_s, limit_s, limit_s), worker_argv(zoo.cluster))
    await reachable(port)
    zoo.cluster.kill("slurmctld", signal.SIGSTOP)
    ticks = 0
    try:
        reading = asyncio.create_task(port.snapshot(False))
        while not reading.done():
            await asyncio.sleep(0.05)
            ticks += 1
        with pytest.raises(SlurmUnreachable, match="pyslurm picture: no answer within"):
            await reading
        assert ticks > 10, "the loop stood still"
    finally:
        zoo.cluster.kill("slurmctld", signal.SIGCONT)
    await reachable(port)
    await port.close()


async def reachable(port: Any) -> None:
    """Wait until it shows nodes: its worker may take longer to begin than it has here."""
    end_s = patience.deadline(DEADLINE_S)
    while True:
        try:
            assert (await port.snapshot(False)).nodes
            return
        except SlurmUnreachable:
            assert time.monotonic() < end_s, "not reachable"


async def test_the_two_back_ends_show_the_same_of_a_node_in_trouble(zoo: Zoo) -> None:
    running = zoo.submit("--gpus=1")
    await zoo.pyslurm.start(running, ["n2"])
    await zoo.until(running, "RUNNING")
    zoo.run("scontrol", "update", "NodeName=n2", "State=DRAIN", 'Reason=bad "disk"\nState=IDLE')
    zoo.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    try:
        commands, pyslurm = await zoo.both()
        assert differences(commands.nodes, pyslurm.nodes, "name") == []
        states = {node.name: node.state for node in pyslurm.nodes}
        assert "DRAIN" in states["n2"] and states["n1"] & {"DOWN", "IDLE"}
    finally:
        zoo.cluster.exec(["scontrol", "update", "NodeName=n[1-2]", "State=RESUME"], check=False)
