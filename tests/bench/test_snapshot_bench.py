"""How long one picture takes with many jobs waiting, and how fast many jobs start, on a mini cluster.

Slurm's daemons, its commands and we share this machine's cores, so the best of some rounds is judged, and
against the bare command in the same rounds. Trials with 22.05.8 on 2 cores, both busy three times over:
bare squeue --json 0.66 s, picture 1.11 s; on half idle cores 0.29 and 0.43 s, 0.13 s of it our own.
"""

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini import layout, probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.reader import jobs_command, release
from gandiva_slurm.slurm.run import Commands
from tests.contract.contract_world import pyslurm_port, worker_argv

pytestmark = pytest.mark.cluster

JOBS = 2000
ROUNDS = 7
#: Seconds for the picture of 2,000 held jobs: the targets of both back ends.
SNAPSHOT_LIMIT_S, PYSLURM_LIMIT_S = 1.5, 0.3
#: How much longer a picture (jobs, nodes, associations, all parsed) may take than the bare squeue --json.
SNAPSHOT_LIMIT_RATIO = 3.0
STARTS = 32
#: Seconds from the order to start 32 jobs to the last one running.
STARTS_LIMIT_S = 10.0
RECORD = 'gandiva:{"v":1,"tickets":100,"priority":50,"class":"guaranteed","gpus":1}'


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    """A mini cluster with 64 slots and none of our daemons."""
    if why := layout.missing():
        pytest.skip(why)
    made = MiniCluster.up(MiniSpec(f"bench-{os.getpid()}", parse_nodes("v100:2x8"), daemons=False))
    yield made
    made.down()


def make_commands(cluster: MiniCluster) -> Commands:
    """Return what runs commands inside, as gandivactld does."""
    return Commands(cluster.command(["placeholder"], "slurm", "cd / && ")[:-1])


def make_port(cluster: MiniCluster, back_end: str = "commands") -> CommandsPort:
    """Return the port as gandivactld has it; make it inside the loop that uses it."""
    if back_end == "pyslurm":
        return pyslurm_port(make_commands(cluster), Timeouts(), worker_argv(cluster))
    return CommandsPort(["gandiva"], commands=make_commands(cluster))


def submit(cluster: MiniCluster, *argv: str) -> str:
    """Submit held Gandiva jobs; return the job id."""
    common = ["sbatch", "-H", "--parsable", "-p", "gandiva", "--gres=gpu:1", "--mem=100", "-o", "/dev/null"]
    job_id = cluster.exec([*common, *argv, "--wrap", "sleep 300"], user="user1").stdout.strip()
    cluster.exec(["scontrol", "update", f"JobId={job_id}", f"AdminComment={RECORD}"])
    return job_id


def test_many_starts(cluster: MiniCluster) -> None:
    """32 held jobs are started by 32 updates and one release."""
    jobs = [int(submit(cluster)) for _ in range(STARTS)]

    async def start() -> tuple[float, float]:
        port = make_port(cluster)
        await port.snapshot(False)
        began = time.monotonic()
        assert await port.start_many({job: [f"n{1 + number % 2}"] for number, job in enumerate(jobs)}) == {}
        ordered = time.monotonic()
        while True:
            running = [job for job in (await port.snapshot(False)).jobs if job.state == "RUNNING"]
            if len(running) == STARTS:
                return ordered - began, time.monotonic() - began
            assert time.monotonic() - began < STARTS_LIMIT_S, f"{len(running)} of {STARTS} run"

    calls_s, running_s = asyncio.run(start())
    print(f"\n{STARTS} starts: calls {calls_s:.2f} s, all running after {running_s:.2f} s")
    cluster.exec(["scancel", "--user=user1"])
    probe.wait_until(lambda: not cluster.exec(["squeue", "-h"]).stdout.strip(), "the jobs to end", 30)


@pytest.fixture(scope="module")
def crowd(cluster: MiniCluster) -> MiniCluster:
    """The cluster with 2,000 held jobs."""
    for _ in range(JOBS // 1000):  # the quickest way to many records: array tasks, all split off
        array = submit(cluster, "--array=1-1000")
        cluster.exec(["scontrol", "hold", f"{array}_[1-999]"])
    return cluster


async def measure(port: CommandsPort, bare: Commands) -> list[tuple[float, float, float]]:
    """Return seconds of a picture, of the bare squeue --json and of our own process, for each round."""
    costs = []
    squeue = jobs_command(release(await port.version()))
    assert (await port.snapshot(True)).associations  # the worker's start, a new user's name
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await bare.output(squeue, 30)
        between, cpu = time.perf_counter(), time.process_time()
        snapshot = await port.snapshot(True)
        ended = time.perf_counter()
        costs.append((ended - between, between - began, time.process_time() - cpu))
        assert sum(job.options is not None and job.is_held for job in snapshot.jobs) == JOBS
    await port.close()
    return costs


@pytest.mark.parametrize(
    ("back_end", "limit_s"), [("commands", SNAPSHOT_LIMIT_S), ("pyslurm", PYSLURM_LIMIT_S)]
)
def test_snapshot_of_many_waiting_jobs(crowd: MiniCluster, back_end: str, limit_s: float) -> None:
    """One picture of 2,000 held jobs with the associations, and what it costs the daemon's own process."""

    async def run() -> list[tuple[float, float, float]]:
        return await measure(make_port(crowd, back_end), make_commands(crowd))

    costs = asyncio.run(run())
    (best_s, bare_s, own_s), middle_s = map(min, zip(*costs, strict=True)), sorted(costs)[ROUNDS // 2][0]
    slurm = crowd.exec(["scontrol", "--version"]).stdout.strip()
    print(f"\n{slurm}, {back_end}, {JOBS} held jobs: best {best_s:.2f} s, median {middle_s:.2f} s,")
    print(
        f"of it {own_s:.2f} s our own; the bare squeue --json {bare_s:.2f} s; load {os.getloadavg()[0]:.1f}"
    )
    assert best_s <= limit_s
    assert back_end == "pyslurm" or best_s <= SNAPSHOT_LIMIT_RATIO * bare_s
