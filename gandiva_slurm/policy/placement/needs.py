"""What a job asks of a place."""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.policy.shares.associations import Leaf
from gandiva_slurm.slicing.groups import group_of


@dataclass(frozen=True)
class Need:
    """What a job asks of a place. `types` empty = any.

    `gpus`, `cpus` and `memory_mib` are those on each of its `nodes`.
    """

    job_id: int
    leaf: Leaf
    gpus: int
    weight: int
    types: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int = 1
    memory_mib: int = 0
    nodes: int = 1
    #: what its GPUs must share (port.CELLS); "any": as near as can be
    cell: str = "any"
    #: nodes it may not be placed on now (reserved for others), whatever else is right
    closed: frozenset[str] = frozenset()
    #: it has what guaranteed jobs leave
    is_opportunistic: bool = False
    #: the virtual cluster whose GPUs it has, unless it is opportunistic
    vc: str = ""

    @property
    def group(self) -> str:
        """With whom it takes turns: those of its virtual cluster, or SPARE."""
        return group_of(self.vc, self.is_opportunistic)

    @property
    def size(self) -> int:
        """Its GPUs in all."""
        return self.gpus * self.nodes

    @property
    def shape(self) -> tuple[object, ...]:
        """All that decides whether it has a place: equal shapes fit or fail together."""
        room = (self.nodes, self.gpus, self.cpus, self.memory_mib)
        where = (self.types, self.partitions, self.closed, self.cell)
        return (self.group, self.leaf.user, *where, *room)
