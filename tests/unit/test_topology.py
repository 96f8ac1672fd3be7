"""The lowest common ancestor, shared links, and BytePS's shares of the summing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest

from gandiva_slurm.policy.placement.topology import (
    closest,
    common_level,
    links_of,
    nic_bytes,
    shared_links,
    summing_shares,
)

#: two racks of two nodes of two sockets of two switches of two GPUs
LINES = {gpu: tuple((gpu >> level, level) for level in range(1, 6)) for gpu in range(32)}
ROOT = 4


def test_the_lowest_common_ancestor_is_found_whenever_there_is_one():
    choose = random.Random(1)
    found = 0
    for _ in range(400):
        free = [gpu for gpu in range(16) if choose.random() < 0.6]
        for count in (1, 2, 4, 8):
            picked = closest(free, count, LINES.__getitem__)
            if len(free) < count:
                assert picked is None
                continue
            best = min(level_of(group) for group in itertools.combinations(free, count))
            assert picked is not None and set(picked) <= set(free) and len(set(picked)) == count
            assert level_of(picked) == best
            found += 1
    assert found > 1000


def level_of(gpus: tuple[int, ...]) -> int:
    level = common_level(gpus, LINES.__getitem__)
    assert level is not None
    return level


def test_gpus_without_a_common_ancestor_are_not_picked():
    assert closest([0, 16], 2, lambda gpu: LINES[gpu][:4]) is None
    assert common_level([0, 16], lambda gpu: LINES[gpu][:4]) is None


def test_the_tightest_hole_is_taken_first_if_asked():
    free = [0, 1, 2, 3, 5, 6, 7]
    assert closest(free, 1, LINES.__getitem__) == (0,)
    assert closest(free, 1, LINES.__getitem__, is_tightest=True) == (5,)
    assert closest([0, 1, 2, 3, 4, 5, 8, 9, 10], 3, LINES.__getitem__, is_tightest=True) == (8, 9, 10)


def test_a_gang_uses_the_ways_up_of_what_it_does_not_fill_alone():
    assert links_of([0, 1], LINES) == frozenset()
    assert links_of([0, 2], LINES) == {(0, (0, 1)), (0, (1, 1))}
    assert links_of([], LINES) == frozenset()
    across = links_of([0, 8], LINES)
    assert {level for level, _ in across} == {0, 1, 2} and len(across) == 6


def test_gangs_across_nodes_share_a_nic_and_gangs_inside_share_nothing():
    gangs = {1: (0, 8), 2: (2, 10), 3: (4, 5)}
    shared = shared_links(gangs, LINES)
    assert {level for level, _ in shared} == {1, 2}, "sockets' and nodes' ways up, not the switches'"
    assert set(shared.values()) == {2}


def count_links(gpu_machines: int, cpu_machines: int) -> Counter[tuple[str, int]]:
    """Send every part of one gradient, message by message, and count what each NIC sends."""
    own, spare = summing_shares(gpu_machines, cpu_machines)
    servers = [(number, own) for number in range(gpu_machines)]
    servers += [(gpu_machines + number, spare) for number in range(cpu_machines)]
    assert sum(part for _, part in servers) == 1
    sent: Counter[tuple[str, int]] = Counter()
    for worker, (server, part) in itertools.product(range(gpu_machines), servers):
        if worker != server:
            for sender, receiver in ((worker, server), (server, worker)):
                sent["sends", sender] += part
                sent["receives", receiver] += part
    return sent


@pytest.mark.parametrize("gpu_machines", range(2, 9))
def test_counting_bytes_on_every_link_gives_the_formula(gpu_machines):
    for cpu_machines in range(gpu_machines + 1):
        loads = {load for load in count_links(gpu_machines, cpu_machines).values() if load}
        assert loads == {nic_bytes(gpu_machines, cpu_machines)}, "all links are equally loaded"


def test_no_spare_machine_is_all_reduce_and_one_each_is_a_parameter_server():
    assert nic_bytes(8, 0) == Fraction(14, 8)
    assert nic_bytes(8, 8) == 1
    assert summing_shares(8, 8)[0] == 0


@pytest.mark.parametrize(("gpu_machines", "cpu_machines"), [(1, 0), (4, 5), (4, -1)])
def test_shares_outside_their_range_are_refused(gpu_machines, cpu_machines):
    with pytest.raises(ValueError, match="GPU machines"):
        summing_shares(gpu_machines, cpu_machines)
