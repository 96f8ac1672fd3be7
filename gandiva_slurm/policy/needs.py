"""What a job asks of a place, and its part on a node once it has one."""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.policy.groups import group_of
from gandiva_slurm.policy.shares import Leaf


@dataclass(frozen=True)
class Need:
    """What a job asks of a place. `types` empty = any; `order` is the one total order of jobs.

    `gpus`, `cpus` and `memory_mib` are those on each of its `nodes`.
    """

    job_id: int
    leaf: Leaf
    gpus: int
    weight: int
    order: tuple[int, ...]
    priority: int = 50
    types: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int = 1
    memory_mib: int = 0
    nodes: int = 1
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

    def stay(self, gpus: tuple[int, ...]) -> Stay:
        """Return its part on a node, with these GPUs."""
        return Stay(self.job_id, self.leaf, gpus, self.weight, self.memory_mib, self.size, self.group)

    @property
    def shape(self) -> tuple[object, ...]:
        """All that decides whether it has a place: equal shapes fit or fail together."""
        room = (self.nodes, self.gpus, self.cpus, self.memory_mib)
        return (self.group, self.leaf.user, self.types, self.partitions, self.closed, *room)


@dataclass(frozen=True)
class Stay:
    """A job that has its place. `gpus` empty = on the node, but which GPUs is not known.

    Of a job of several nodes this is the part on one of them; `weight` is the job's, `size` its GPUs in all
    (0: those here are all).
    """

    job_id: int
    leaf: Leaf
    gpus: tuple[int, ...]
    weight: int
    memory_mib: int = 0
    size: int = 0
    group: str = ""
    #: it is to go on elsewhere: its room is taken until then, its load is not counted any more
    is_leaving: bool = False
