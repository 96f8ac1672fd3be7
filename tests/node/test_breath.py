"""Gangs that are frozen at a boundary for longer than their process groups wait: they go on."""

from __future__ import annotations

import pytest

from tests.node.gangs import GANG, check_losses, gang
from tests.node.harness import HERE, a_planned_job
from tests.ports import free_port
from tests.slow import slow, soaked

#: What their groups wait for, and how long a turn is: torchrun's agents are given up after 15 s.
GROUP_S, TURN_S = 6.0, 16.0
LOOP = [str(HERE / "scripts/loop.py"), "5"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", GANG, "2", str(10**9), "0"]


@slow("70 s: turns longer than what torchrun's agents wait for each other")
@pytest.mark.parametrize(
    "words",
    [soaked(gang(2), why="torchrun's are given up earlier"), TORCHRUN],
    ids=["alone", "torchrun"],
)
def test_a_gang_goes_on_that_was_frozen_for_longer_than_its_groups_wait(make_node, words):
    node = make_node(gpus=1, quantum_s=TURN_S)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, words, env={"GROUP_S": str(GROUP_S), "MASTER_PORT": str(free_port())})
    node.wait(lambda: node.resident(1).ranks == 2 and node.resident(1).steps > 10)
    node.start_job(2, LOOP)
    thaw = node.wait(lambda: node.events("thaw", 1), 150)[0]
    frozen_s = (thaw["mono_ns"] - node.events("parked", 1)[0]["mono_ns"]) / 1e9
    assert frozen_s > 0.6 * TURN_S > GROUP_S, "the other's turn, without the park"
    steps = node.resident(1).steps
    node.wait(lambda: node.resident(1).steps > steps + 20, 150)
    check_losses(node, 2, 1)
