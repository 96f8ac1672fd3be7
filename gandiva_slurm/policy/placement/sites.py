"""Nodes and places: what a node is to a job that asks for GPUs, and where a job is put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.port import GPU, SOCKET, SWITCH


@dataclass(frozen=True)
class Site:
    """A node, empty; `is_open` is False where nothing new may go (down, no daemon)."""

    name: str
    gpu_type: str
    gpus: int
    cpus: int = 0
    memory_mib: int = 0
    partitions: tuple[str, ...] = ()
    is_open: bool = True
    #: GPUs of a switch and of a socket
    parts: tuple[int, int] = (0, 0)

    def may_take(self, need: Need) -> bool:
        """True when partition and type are right, however small it is."""
        right_partition = (
            not self.partitions or not need.partitions or set(need.partitions) & set(self.partitions)
        )
        return bool(right_partition) and self.gpus > 0 and (not need.types or self.gpu_type in need.types)

    def widest(self, cell: str) -> int:
        """Return the GPUs of the largest such cell."""
        return {GPU: 1, SWITCH: self.parts[0], SOCKET: self.parts[1]}.get(cell, 0) or self.gpus

    def is_large_enough(self, need: Need) -> bool:
        """True when the job fits were the node empty; what Slurm does not tell (0) bounds nothing."""
        return (
            need.gpus <= self.widest(need.cell)
            and (not self.cpus or need.cpus <= self.cpus)
            and (not self.memory_mib or need.memory_mib <= self.memory_mib)
        )


class NodeGpus(NamedTuple):
    """A node and the GPUs on it."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a job goes: each of its nodes with the GPUs there, in the nodes' order."""

    parts: tuple[NodeGpus, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes."""
        return tuple(part.node for part in self.parts)
