"""A node and the turns of a policy: obeyed while they are on time, made up by its own stride while not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gandiva_slurm.node.leading import LATE_NS
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, decode_plan, encode
from tests.node_bench import QUANTUM_NS, TICKET, Bench

MS = 1_000_000
QUANTUM_MS = QUANTUM_NS // MS
Ahead = tuple[tuple[int, int, int], ...]


class Led(Bench):
    """One GPU, two users with a job each, and a policy's plans."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 1)
        self.turns = itertools.count(1)
        self.turn_ns = 0
        self.add(1, "user1", (0,))
        self.add(2, "user2", (0,))

    def tell(self, on: int, left_ms: int | None = QUANTUM_MS, again: bool = False, ahead: Ahead = ()) -> None:
        """A plan comes: one job is on for so long; `again`: it is that of the turn that was told last."""
        self.turn_ns = self.turn_ns if again else next(self.turns)
        jobs = tuple(
            PlannedJob(job, 0, f"user{job}", 0, (0,), 100 * TICKET, job, is_on=job == on) for job in (1, 2)
        )
        plan = NodePlan("n1", 1, self.turn_ns, QUANTUM_NS, 1, jobs, (), "", 0, self.turn_ns, left_ms, ahead)
        self.planning.take(decode_plan(encode(plan)))
        self.settle()

    def pass_time(self, ns: int) -> None:
        """Time goes by; the node looks when it said it would."""
        end_ns = self.clock.now_ns + ns
        for _ in range(100):
            if self.slicer._next_ns() > end_ns:
                self.clock.now_ns = end_ns
                return
            self.clock.now_ns = max(self.clock.now_ns, self.slicer._next_ns())
            self.slicer.quantum()
            self.settle()
        raise AssertionError("it looks again and again")


@pytest.fixture
def node(tmp_path: Path) -> Led:
    return Led(tmp_path)


def test_turns_on_time_are_obeyed_whatever_the_nodes_own_stride_would_say(node: Led) -> None:
    for _ in range(10):
        node.tell(on=1)
        node.pass_time(QUANTUM_NS)
        assert node.holders() == {1}


def test_a_turn_that_is_a_little_late_changes_nothing(node: Led) -> None:
    node.tell(on=1)
    node.pass_time(QUANTUM_NS + LATE_NS - MS)
    assert node.holders() == {1}
    node.tell(on=1)
    node.pass_time(QUANTUM_NS + LATE_NS - MS)
    assert node.holders() == {1}


def test_without_the_next_turn_the_node_goes_by_its_own_stride(node: Led) -> None:
    node.tell(on=1)
    node.pass_time(QUANTUM_NS + LATE_NS + MS)
    assert node.holders() == {2}
    for job in (1, 2, 1):
        node.pass_time(QUANTUM_NS)
        assert node.holders() == {job}, "turns go on for as long as nothing is heard"


def test_a_late_turn_counts_when_the_quantum_of_the_nodes_own_is_over(node: Led) -> None:
    node.tell(on=1)
    node.pass_time(QUANTUM_NS + LATE_NS + MS)
    node.tell(on=1, left_ms=3 * QUANTUM_MS)
    node.slicer.fill()
    node.settle()
    assert node.holders() == {2}, "hands do not change twice for it"
    node.pass_time(QUANTUM_NS)
    assert node.holders() == {1}
    node.pass_time(QUANTUM_NS)
    assert node.holders() == {1}


def test_a_turn_told_again_is_no_other_turn(node: Led) -> None:
    """A plan is sent once a cycle; that it is heard of does not make its turn longer."""
    node.tell(on=1)
    node.pass_time(QUANTUM_NS + LATE_NS // 2)
    node.tell(on=1, left_ms=-LATE_NS // 2 // MS, again=True)
    node.pass_time(LATE_NS // 2 + MS)
    assert node.holders() == {2}
    node.tell(on=1, left_ms=-LATE_NS // MS, again=True)
    node.pass_time(MS)
    assert node.holders() == {2}


def test_a_plan_without_an_end_is_obeyed_for_its_lease(node: Led) -> None:
    node.tell(on=1, left_ms=None)
    node.pass_time(5 * QUANTUM_NS)
    assert node.holders() == {1}
    node.pass_time(20 * QUANTUM_NS)
    assert node.held_s("user2") > 1, "its lease is over"


@pytest.mark.parametrize(("ahead", "behind"), [(1, 2), (2, 1)])
def test_the_nodes_own_stride_begins_where_the_policy_stood(node: Led, ahead: int, behind: int) -> None:
    """One user has had three quanta more elsewhere: the other has four here before their turns alternate."""
    lead = 3 * QUANTUM_NS * 720_720 * 10**6 // (100 * TICKET)
    node.tell(on=ahead, ahead=((ahead, lead, 0), (behind, 0, 0)))
    before_s = node.held_s(f"user{ahead}")
    node.pass_time(QUANTUM_NS + LATE_NS + MS)
    held = []
    for _ in range(8):
        held += node.holders()
        node.pass_time(QUANTUM_NS)
    assert held[:4] == [behind] * 4 and {*held[4:]} == {ahead, behind}, (held, before_s)
