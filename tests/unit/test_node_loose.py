"""A frozen job stays frozen, whoever continues which of its processes."""

import asyncio
import subprocess
import sys

import pytest

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import procs
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.watch import LOOSE_BEATS
from tests.node_bench import Bench


class OneProcess(JobProcesses):
    """One process of our own."""

    pid = 0

    def members(self, table=None):
        return [procs.read_proc(self.pid)]


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield procs.read_proc(process.pid).id
        process.communicate(b"\n", timeout=10)


async def test_a_rank_whose_end_is_seen_after_its_jobs(tmp_path, child):
    """It dies while it says hello, and its job is over before the daemon comes to look at that."""
    bench, faults = Bench(tmp_path, 1), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    job = bench.add(1, "user1", (0,))
    gone = procs.ProcId(child.pid, child.start - 1)
    job.join(Rank(gone, 0, Page.make(job.key, 0, 1, 0), None), 1, "")
    bench.watcher.watch(job, gone)
    bench.watcher.dismiss(job)
    await asyncio.sleep(0)
    assert not faults and not bench.node.residents


async def test_what_was_stopped_before_a_freeze_does_not_run_during_it(tmp_path, child):
    """Its owner stops it before the quantum ends, and continues it when others have its GPU."""
    bench = Bench(tmp_path, 1)
    job = bench.add(1, "user1", (0,))
    job.processes = OneProcess(job.key, 0, "n1", set(), set())
    job.processes.pid = child.pid
    job.state, job.is_frozen, job.left_stopped = SUSPENDED, True, {child}
    for _ in range(LOOSE_BEATS):
        assert job.stopped == set()
        bench.watcher.beat()
    assert job.stopped == {child}
    bench.slicer.switcher.thaw(job)
