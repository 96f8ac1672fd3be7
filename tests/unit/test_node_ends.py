"""What a node tells of jobs that have ended there, and until when."""

import asyncio

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.context import Final
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.saved import read_job, state_of
from tests.node_bench import Bench
from tests.unit.test_node_slicer import a_plan, report_of


@pytest.fixture
def bench(tmp_path):
    return lambda gpus, **more: Bench(tmp_path, gpus, **more)


def test_the_end_of_a_job_is_told_until_a_plan_without_it_comes(bench):
    node = bench(2)
    node.planning.take(a_plan())
    node.node.ended[JobKey(1, 0)] = 0
    assert report_of(node).ended == ((1, 0),)
    node.planning.take(a_plan(generation=2, gpus=1))
    assert report_of(node).ended == ((1, 0),)
    node.planning.take(a_plan(generation=3, jobs=()))
    assert report_of(node).ended == ()


def test_the_end_of_a_job_is_told_again_until_the_controller_has_it(bench):
    """Slurm showed it, so that no plan has the job; the answer that told how far it was may be lost."""
    node = bench(2)
    node.node.ended[JobKey(1, 0)] = 0
    node.node.finals[JobKey(1, 0)] = Final(7, 37, 5)
    first_ns = report_of(node).mono_ns
    told = []
    for generation, echo_ns in enumerate((0, first_ns - 1, first_ns - 1, first_ns), 1):
        node.clock.now_ns += 1000
        node.planning.take(a_plan(generation=generation, jobs=(), echo_ns=echo_ns))
        told.append(report_of(node))
    assert [report.ended for report in told] == [((1, 0),)] * 3 + [()]
    assert [report.finals for report in told] == [((1, 0, 7, 37, 5),)] * 3 + [()]


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_step_that_ends_leaves_its_neighbours_and_a_fence_what_is_newer(
    bench, monkeypatch, is_fenced
):
    """Its slurmstepd is gone by then: when that began is known all the same, to the next gandivad, too."""
    node, asked = bench(1), []
    job = node.add(1, "user1", (0,))
    stepds = [ProcId(4194302, 7), ProcId(4194303, 9)]
    job.processes.stepds.update(stepds)
    monkeypatch.setattr(
        JobProcesses, "kill", lambda mine, is_over=False: asked.append((is_over, mine.newest)) or 0
    )
    job.is_fenced = is_fenced
    for stepd in reversed(stepds):
        node.watcher._gone(job, stepd)
    (row,) = state_of(node.node)["jobs"]
    assert read_job(row, "n1")[0].processes.newest == 9 and not job.processes.stepds
    while job.key in node.node.residents:
        await asyncio.sleep(0)
    assert asked == [(is_fenced, 9)]
