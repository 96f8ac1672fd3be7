"""Nodes that fail and come back: by a list, or by chance with a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    """A node goes down or comes back."""

    at_ns: int
    #: index of the node in the cluster
    host: int
    is_down: bool


def by_chance(hosts: int, mean_up_ns: int, mean_down_ns: int, seed: int) -> Iterator[Fault]:
    """Yield failures without end, in order of time: times up and down are exponential, by node."""
    draw = random.Random(seed)

    def after(at_ns: int, mean_ns: int) -> int:
        return at_ns + max(1, round(draw.expovariate(1 / mean_ns)))

    queue = [Fault(after(0, mean_up_ns), host, True) for host in range(hosts)]
    heapq.heapify(queue)
    while queue:
        fault = heapq.heappop(queue)
        yield fault
        mean_ns = mean_down_ns if fault.is_down else mean_up_ns
        heapq.heappush(queue, Fault(after(fault.at_ns, mean_ns), fault.host, not fault.is_down))
