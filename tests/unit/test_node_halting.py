"""Halting on a node without processes: whatever a job or its part is about, it has no GPU until it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.node.halting import go_on, halt
from tests.node_bench import Bench
from tests.node_floor import Floor


def test_a_halted_job_has_no_turns_and_is_not_charged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1)
    one, two = bench.add(1, "user1", (0,)), bench.add(2, "user2", (0,))
    assert bench.holders() == {1}
    for resident in (one, two):
        halt(bench.node, bench.slicer, resident, "for a test")
    bench.settle()
    assert bench.holders() == set()
    held_s = bench.held_s("user1")
    bench.quantum(400)  # past the bound of a park, and of a freeze
    assert bench.holders() == set() and bench.held_s("user1") == held_s and not bench.held_s("user2")
    go_on(bench.node, bench.slicer, two)
    bench.settle()
    assert bench.holders() == {2}
    bench.quantum(5)
    assert bench.holders() == {2}
    go_on(bench.node, bench.slicer, one)
    bench.quantum(4)
    assert one.counts.suspends and two.counts.suspends


@pytest.mark.parametrize("moment", ["on", "aiming", "released"])
def test_a_halted_part_has_no_gpu_whatever_is_ordered(tmp_path: Path, moment: str) -> None:
    floor = Floor(tmp_path)
    floor.begin(0, 1)
    floor.come_in()
    if moment != "on":
        floor.order(words.AIM, at=200, wait_ms=0)
        assert floor.phase() == words.AIMING
    if moment == "released":
        floor.order(words.FREEZE)
        assert floor.phase() == words.RELEASED
    halt(floor.node, floor.slicer, floor.resident(), "for a test")
    floor.settle()
    assert floor.phase() == words.OFF and not floor.node.holders()
    floor.round((50, words.IN))
    floor.order(words.RESERVE)
    assert not floor.order(words.GO).ok
    floor.clock.now_ns += 10**13
    floor.spans.look()
    floor.slicer.quantum()
    floor.settle()
    assert not floor.node.holders()
    go_on(floor.node, floor.slicer, floor.resident())
    floor.come_in()
