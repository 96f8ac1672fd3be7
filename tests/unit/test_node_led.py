"""A node whose GPUs a policy gives out: jobs without processes, on a clock moved by hand."""

from pathlib import Path

from tests.node_bench import QUANTUM_NS, Bench


def test_what_starts_up_stays_though_it_is_planned_off(tmp_path: Path) -> None:
    """Until it is given up waiting for: a policy charges it for that, as this node's own stride would."""
    node = Bench(tmp_path, 1, client_wait_ns=10 * QUANTUM_NS)
    one, two = node.add(1, "user1", (0,)), node.add(2, "user2", (0,))
    one.is_on, two.is_on = False, True
    node.node.contact_ns = node.clock.now_ns + 10**15
    for _ in range(9):
        node.quantum()
        node.slicer.fill()
        node.settle()
        assert node.holders() == {1}
    node.quantum(2)
    assert node.holders() == {2}
