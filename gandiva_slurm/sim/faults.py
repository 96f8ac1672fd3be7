"""Nodes that fail and come back: by a list, or by chance with a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.workloads.rows import read_table

_S = 10**9


class Fault(NamedTuple):
    """A node goes down or comes back."""

    at_ns: int
    #: index of the node in the cluster
    host: int
    is_down: bool


@dataclass(frozen=True, slots=True)
class Chance:
    """Failures by chance, the same each time they are gone through."""

    hosts: int
    mean_up_ns: int
    mean_down_ns: int
    seed: int

    def __iter__(self) -> Iterator[Fault]:
        return by_chance(self.hosts, self.mean_up_ns, self.mean_down_ns, self.seed)


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


def read_faults(path: Path, cluster: Cluster) -> list[Fault]:
    """Read a CSV `at_s,node,state`: nodes n1, n2, … of --cluster, states down and up, rows in any order."""
    index = {host.name: number for number, host in enumerate(cluster.hosts)}
    faults = []
    for row in read_table(path, ("at_s", "node", "state"), ()):
        node, state = row.text("node"), row.text("state")
        if node not in index:
            raise row.error(f"there is no node {node!r}; --cluster has n1 to n{len(index)}")
        if state not in ("down", "up"):
            raise row.error(f"state is {state!r}; it takes down or up")
        faults.append(Fault(row.ns("at_s", _S), index[node], state == "down"))
    return sorted(faults)
