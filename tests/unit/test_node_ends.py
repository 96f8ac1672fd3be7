"""What a node tells of jobs that have ended there, and until when."""

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.context import Final
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
