"""A node obeys a policy's plan on who holds GPUs, and its own stride when no controller is heard of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gandiva_slurm.model.span import LEASE_NS
from tests.node.harness import HERE, NodeHarness, a_planned_job
from tests.node.test_leaving import SCRIPT, begin, quanta

MakeNode = Callable[..., NodeHarness]
LOOP = [str(HERE / "scripts" / "loop.py"), "4"]


def lead(node: NodeHarness, on: int, *off: int, leaving: int = 0) -> None:
    """Send the plan of a policy: one job is on, the others are not, one of them leaves."""
    plain = [a_planned_job(number, f"user{number}", (0,)) for number in (on, *off)]
    jobs = {job.job_id: replace(job, is_on=job.job_id == on) for job in plain}
    if leaving:
        jobs[leaving] = replace(jobs[leaving], is_leaving=True)
    node.plan(*jobs.values())


def settled(node: NodeHarness, running: int, parked: int) -> bool:
    """True when one holds the GPU and the other is parked."""
    return node.states() == {running: "RUNNING", parked: "SUSPENDED"}


def test_the_job_that_is_planned_on_holds_the_gpu_and_the_others_have_no_turn(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1, LOOP)
    begin(node, 2, LOOP)
    lead(node, 1, 2)
    node.wait(lambda: settled(node, 1, 2))
    lead(node, 1, 2)  # anew: the plan before it does not stand for ever, and a machine may stand still
    parks = node.resident(1).suspends
    quanta(node, 10)
    assert settled(node, 1, 2) and node.resident(1).suspends == parks, "its turn does not end by itself"
    lead(node, 2, 1)
    node.wait(lambda: settled(node, 2, 1))


def test_a_parked_job_that_is_to_leave_has_a_turn_to_save_itself(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1, SCRIPT)
    begin(node, 2, LOOP)
    node.set_quantum(40)
    lead(node, 1, 2)
    quanta(node, 1 / 6)  # it is ahead by so much that its own turn would come a quantum later
    lead(node, 2, 1)
    node.wait(lambda: settled(node, 2, 1))
    lead(node, 2, 1, leaving=1)
    node.wait(lambda: node.resident(1).has_left or node.events("unparkable"), 15)
    # The other's park may fail on a busy machine: it is not asked again before its quantum ends then.
    node.wait(lambda: node.resident(1).has_left, 60 if node.events("unparkable") else 15)
    node.wait(lambda: settled(node, 2, 1))


def test_without_a_controller_all_have_turns_again(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1, LOOP)
    begin(node, 2, LOOP)
    lead(node, 1, 2)
    node.wait(lambda: settled(node, 1, 2))
    node.wait(lambda: node.states()[2] == "RUNNING", LEASE_NS / 1e9 + 10)
    node.wait(lambda: node.states()[1] == "RUNNING")
    lead(node, 1, 2)
    node.wait(lambda: settled(node, 1, 2))
