"""Two real trainings on one GPU at a time, and by turns again, as the plan says: measured and charged."""

from __future__ import annotations

import dataclasses
import random
import time

import pytest

from gandiva_slurm.engine import invariants
from tests.node.gangs import check_losses, gang
from tests.node.harness import HERE, a_planned_job
from tests.records import share_of_turns
from tests.slow import slow

LOOP = [str(HERE / "scripts" / "loop.py"), "20"]
#: How often it is measured at most what a pack costs its jobs.
ROUNDS = 3


def pack(node, one, two):
    """Plan that two jobs may hold their GPUs together; 0 for one of them: that the other has them alone."""
    jobs = {job.job_id: job for job in node._planned.values()}
    pairs = ((one, two), (two, one))
    return node.plan(*[dataclasses.replace(jobs[job], mate=mate) for job, mate in pairs if job])


def two_jobs(node, script=LOOP):
    """Two jobs that have registered and take turns on GPU 0."""
    node.plan(*[a_planned_job(n, f"user{n}", (0,)) for n in (1, 2)])
    for job_id in (1, 2):
        node.start_job(job_id, script)
    node.wait(lambda: all(node.resident(job_id).suspends for job_id in (1, 2)))


def are_packed(node):
    return [node.resident(job_id).reason for job_id in (1, 2)] == ["Packed", "Packed"]


def are_as_fast_together(node):
    """True when each of a pack is measured, and as fast as alone: they sleep, none is in the way."""
    seen = [node.resident(n) for n in (1, 2)]
    rates = [(job.rate_packed, job.rate_alone) for job in seen]
    return all(packed and packed == pytest.approx(alone, rel=0.5) for packed, alone in rates) and all(
        job.rate_noise < 0.5 for job in seen
    )


def holds(node):
    """All holds so far, none acknowledged."""
    return list(node.report().holds)


def check_books(node):
    """By the holds: nobody else shares a GPU, and both of a pack say so for as long."""
    found = holds(node)
    assert invariants.no_gpu_held_twice(found) == []
    done = [hold for hold in found if hold.seq]
    if all(hold.seq for hold in found if hold.shared_with):
        assert invariants.packs_are_of_two(done) == []
    return found


def test_a_pack_trains_together_is_measured_and_comes_apart_in_mid_quantum(make_node):
    node = make_node(gpus=1, quantum_s=0.6)
    two_jobs(node)
    assert node.wait(lambda: all(node.resident(n).rate_alone for n in (1, 2)))
    for rounds_left in reversed(range(ROUNDS)):
        pack(node, 1, 2)
        node.wait(lambda: are_packed(node))
        try:
            node.wait(lambda: are_as_fast_together(node), 100 if rounds_left == 0 else 10)
            break
        except TimeoutError:
            # What was measured in a stall of the machine is not what they do: it is measured anew.
            assert rounds_left, [node.resident(n) for n in (1, 2)]
            pack(node, 1, 0)
            pack(node, 2, 0)
            node.wait(lambda: not are_packed(node))
    node.quantum_ns = 60_000_000_000
    node.plan()
    parks = len(node.events("park"))
    pack(node, 1, 0)
    pack(node, 2, 0)
    node.wait(lambda: sorted(node.states().values()) == ["RUNNING", "SUSPENDED"])
    # By the log: the quantum that was under way ends as it was to, and its end is the next turn.
    assert node.events("park")[parks]["job"] == 2, "the younger leaves"
    check_books(node)
    shared = [hold for hold in holds(node) if hold.shared_with]
    assert {hold.job_id for hold in shared} == {1, 2}
    assert invariants.packs_are_of_two(shared) == []


def test_an_opportunistic_mate_is_slowed_down_and_let_go_as_the_other_is_not_harmed(make_node):
    node = make_node(gpus=1, quantum_s=0.6)
    two_jobs(node)
    assert node.wait(lambda: all(node.resident(n).rate_alone for n in (1, 2)))
    node.wait(lambda: all(node.resident(n).peak_bytes for n in (1, 2)))
    pack(node, 1, 2)
    (two,) = [job for job in node._planned.values() if job.job_id == 2]
    node.plan(dataclasses.replace(two, is_opportunistic=True))
    node.wait(lambda: are_packed(node))
    began = node.resident(2)
    assert began.duty < 50
    assert node.resident(1).duty == 100
    duties = len(node.events("duty", 2))
    steps = [node.resident(n).steps for n in (1, 2)]
    node.wait(lambda: len(node.events("duty", 2)) > duties and node.resident(1).steps >= steps[0] + 20)
    done = [node.resident(n).steps - was for n, was in zip((1, 2), steps, strict=True)]
    assert done[1] < done[0] / 2, "both take 20 ms a step alone"
    # In the log: on a busy machine the next measurement may take it back at once.
    node.wait(lambda: any(event["duty"] > event["was"] for event in node.events("duty", 2)))
    pack(node, 2, 0)
    node.wait(lambda: not are_packed(node) and node.resident(2).duty == 100)
    check_books(node)


def test_a_mate_that_ends_leaves_the_gpu_to_the_other(make_node):
    node = make_node(gpus=1, quantum_s=0.4)
    two_jobs(node)
    pack(node, 1, 2)
    node.wait(lambda: are_packed(node))
    (node.out / "stop.1").touch()
    node.wait(lambda: 1 not in node.states())
    node.wait(lambda: node.resident(2).reason == "Running")
    assert [hold.shared_with for hold in check_books(node) if not hold.seq] == [0]
    shared = [hold for hold in holds(node) if hold.shared_with]
    assert invariants.packs_are_of_two(shared) == []


def test_a_third_takes_turns_with_the_pack(make_node):
    node = make_node(gpus=1, quantum_s=0.3)
    two_jobs(node)
    pack(node, 1, 2)
    node.plan(a_planned_job(3, "user3", (0,)))
    node.start_job(3, LOOP)
    # Each of the pack pays for half of what both hold.
    node.wait(lambda: abs(share_of_turns(node.events(), 3, (1, 2)) - 1 / 3) < 0.05)
    check_books(node)


def test_a_pack_survives_a_kill_of_gandivad(make_node):
    node = make_node(gpus=1, quantum_s=0.5)
    two_jobs(node)
    pack(node, 1, 2)
    node.wait(lambda: are_packed(node))
    node.kill9()
    node.start()
    node.wait(lambda: are_packed(node))
    assert {(hold.job_id, hold.shared_with) for hold in holds(node) if not hold.seq} == {(1, 2), (2, 1)}
    (node.out / "stop.2").touch()
    node.wait(lambda: node.resident(1).reason == "Running")
    check_books(node)


@slow("27 s, torch in each rank; cluster/test_packing packs on Slurm, bits are compared here alone")
def test_packed_and_unpacked_trainings_lose_no_bit(make_node):
    node = make_node(gpus=1, quantum_s=0.2)
    node.plan(*[a_planned_job(n, f"user{n}", (0,)) for n in (1, 2)])
    for job_id in (1, 2):
        node.start_job(job_id, gang(1))
    node.wait(lambda: all(node.resident(job_id).suspends for job_id in (1, 2)))
    for _ in range(4):
        packs = len(node.events("packed"))
        pack(node, 1, 2)
        node.wait(lambda before=packs: len(node.events("packed")) > before)
        parks = len(node.events("parked"))
        pack(node, 1, 0)
        pack(node, 2, 0)
        node.wait(lambda before=parks: len(node.events("parked")) > before)
    check_losses(node, 1, 1, 2)


@slow("33 s; kills amid packs in virtual time are in tests/property, a restart with a pack in test_restart")
def test_kills_of_gandivad_while_packs_come_and_go_lose_no_gpu_time(make_node):
    """Killed at any moment: nobody else shares a GPU, each hold of a pack has its like, both train on."""
    node = make_node(gpus=1, quantum_s=0.3)
    two_jobs(node)
    node.plan(a_planned_job(3, "user3", (0,)))
    node.start_job(3, LOOP)
    node.wait(lambda: node.resident(3).steps)  # a task that binds while its node is killed runs unbound
    chance = random.Random(5)
    for number in range(8):
        if number % 2:
            pack(node, 1, 0)
            pack(node, 2, 0)
        else:
            pack(node, 1, 2)
        if number == 2:
            node.wait(lambda: node.events("packed"))
        time.sleep(chance.uniform(0.0, 0.5))  # the moment of the kill, not a wait for anything
        node.kill9()
        node.start()
    assert node.events("packed")
    pack(node, 1, 0)
    pack(node, 2, 0)
    steps = {job: node.resident(job).steps for job in (1, 2, 3)}
    node.wait(lambda: all(node.resident(job).steps > steps[job] + 20 for job in steps))
    found = holds(node)
    assert invariants.no_gpu_held_twice(found) == []
    assert invariants.packs_are_of_two(found) == []
