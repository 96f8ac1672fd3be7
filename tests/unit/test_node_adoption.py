"""What a gandivad that is started finds of one that was killed at the worst moment."""

import os
import signal
import subprocess
import time

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import procs
from gandiva_slurm.node.adopt import Adoption
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.saved import state_of
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from tests import patience
from tests.node_bench import Bench

DEADLINE_S = 30


@pytest.fixture
def stepd():
    """A shell in the place of a slurmstepd, and the process below it."""
    with subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True) as shell:
        until(lambda: procs.descendants(procs.table(), [shell.pid]))
        (child,) = procs.descendants(procs.table(), [shell.pid])
        yield procs.read_proc(shell.pid).id, child.id
        procs.send(child.id, signal.SIGKILL)


def until(condition):
    end_s = patience.deadline(DEADLINE_S)
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def state(proc):
    return procs.read_proc(proc.pid).state


def job_of(bench, stepd):
    job = bench.add(1, "user1", (0,))
    job.processes = JobProcesses(JobKey(1, 0), os.getuid(), "n1", {stepd}, set())
    return job


def start_again(bench, **changed):
    """Leave everything as it is on disk, but for what is changed, and let another gandivad take it over."""
    bench.node.store.save(state_of(bench.node) | changed)
    node = Node(bench.node.settings)
    slicer = Slicer(node)
    watcher = Watcher(node, slicer)
    Adoption(node, slicer, watcher, Planning(node, slicer, watcher)).run()
    return node


@pytest.mark.parametrize("holds", [True, False])
async def test_what_was_stopped_before_it_was_written_down_goes_on(tmp_path, stepd, holds):
    """SIGKILL comes between the order to freeze and the list of those that it reached."""
    bench = Bench(tmp_path, 1)
    shell, child = stepd
    job = job_of(bench, shell)
    job.is_frozen = True
    if not holds:
        bench.slicer.switcher.release(job, bench.clock.mono())
    procs.send(child, signal.SIGSTOP)
    until(lambda: state(child) == "T")
    node = start_again(bench)
    resident = node.residents[job.key]
    # With its GPU free, it is given back at once in either case.
    assert resident.holds and not resident.is_frozen
    until(lambda: state(child) == "S")


async def test_plan_of_another_version_keeps_nobody_from_his_jobs(tmp_path, stepd, caplog):
    bench = Bench(tmp_path, 1)
    shell, _ = stepd
    job = job_of(bench, shell)
    node = start_again(bench, plan={"version": 0, "node": "n1"})
    assert node.residents[job.key].holds and node.plan is None
    assert "the plan of the last gandivad is not readable" in caplog.text
