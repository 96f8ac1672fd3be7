"""gandivad beside TCP connections that say nothing."""

from __future__ import annotations

import resource
import time

import pytest

from gandiva_slurm.wire.door import SPARE
from tests import crowd, patience
from tests.node.harness import HERE, a_planned_job

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
#: What a plan and its report may take beside a crowd, on a quiet machine.
SOON_S = 2.0


@pytest.fixture
def node(make_node):
    """A node with a job that trains."""
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    return node


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_crowd_that_says_nothing_keeps_no_plan_away(node, address):
    with crowd.silent(node.settings["port"], address=address) as links:
        begin_s = time.monotonic()
        node.plan(a_planned_job(2, "user2", (0,)))
        assert node.report().generation == 2
        assert time.monotonic() - begin_s < SOON_S * patience.slowness()
        node.start_job(2, LOOP)
        node.wait(lambda: node.resident(2).ranks == 1)
        node.wait(lambda: crowd.closed(links) == len(links), 20)
    assert "Traceback" not in node.log()


def test_without_descriptors_left_it_lives_on(node):
    pid = node.daemon.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = crowd.highest_descriptor(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + SPARE, before[1]))
    with crowd.silent(node.settings["port"], 2 * SPARE):
        node.wait(lambda: "no more connections" in node.log())
        # What it has to write and to look at needs descriptors, too.
        state = node.state_dir / "state.json"
        written_ns = state.stat().st_mtime_ns
        node.wait(lambda: state.stat().st_mtime_ns > written_ns)
        assert node.daemon.poll() is None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert node.report().residents
    assert node.daemon.poll() is None and "Traceback" not in node.log()
