"""Gangs on cells: what is asked, what is answered, and in which state a gang is (HiveD, OSDI 2020).

PENDING (asked, waits; nothing is kept) → PREEMPTING (its GPUs are promised, others still leave them) →
ALLOCATED → BEING_PREEMPTED (some of its GPUs are promised to another) → deleted. Only ALLOCATED gangs
outlive a restart: each is built again from its `Deed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gandiva_slurm.policy.virtual_clusters.cells import (
    HIGHEST,
    LOWEST,
    OPPORTUNISTIC,
    PhysicalCell,
    VirtualCell,
)

PENDING, PREEMPTING, ALLOCATED, BEING_PREEMPTED = "Pending", "Preempting", "Allocated", "BeingPreempted"
BIND, WAIT, PREEMPT = "bind", "wait", "preempt"


class RequestError(ValueError):
    """A request that no cluster state could grant: its user has to change it."""


@dataclass(frozen=True, slots=True)
class CellRequest:
    """A gang: all of its members or none. Each member's GPUs are on one node."""

    gang: str
    vc: str
    #: GPUs of each member
    members: tuple[int, ...]
    priority: int = LOWEST
    #: "": any type
    gpu_type: str = ""
    #: name of a pinned cell; "": anywhere in the VC
    pin: str = ""
    #: when its own VC needs its cell, it stays where it is as an opportunistic gang, instead of being put out
    can_demote: bool = False
    #: each member is on a node of its own
    is_apart: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of each member, ascending: the order of all places."""
        return tuple(sorted(self.members))

    @property
    def is_guaranteed(self) -> bool:
        """True when it draws on its VC's cells."""
        return self.priority >= LOWEST

    def check(self) -> None:
        """Raise RequestError for numbers that mean nothing."""
        if not self.members or min(self.members) < 1:
            raise RequestError(f"gang {self.gang}: members need a GPU each at least, got {self.members}")
        if not OPPORTUNISTIC <= self.priority <= HIGHEST:
            bounds = f"{OPPORTUNISTIC}..{HIGHEST}"
            raise RequestError(f"gang {self.gang}: priority {self.priority} is not in {bounds}")
        if self.pin and not self.is_guaranteed:
            raise RequestError(f"gang {self.gang}: opportunistic gangs cannot use pinned cells ({self.pin})")


@dataclass(frozen=True, slots=True)
class MemberDeed:
    """Where one member runs, and of which kind of cell of its VC each of its GPUs is part."""

    node: str
    gpus: tuple[int, ...]
    #: () for a gang that runs by chance
    root_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deed:
    """All that must be kept of an allocated gang, besides its request, to build it again."""

    chain: str
    members: tuple[MemberDeed, ...]


@dataclass(slots=True)
class Answer:
    """BIND with a deed, PREEMPT with the gangs that must go first, or WAIT with the reason."""

    kind: str
    deed: Deed | None = None
    victims: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True, eq=False)
class Gang:
    """A gang that has GPUs, or to which GPUs are promised."""

    request: CellRequest
    state: str
    #: GPU cells of each member; None: that GPU no longer exists
    physical: list[list[PhysicalCell | None]] = field(default_factory=list)
    #: the VC's GPUs in the same places; None: it runs by chance
    virtual: list[list[VirtualCell | None]] | None = None
    deed: Deed | None = None
    #: who took its VC's cell, when it was demoted
    demoted_by: str = ""

    @property
    def name(self) -> str:
        """Its name in the request."""
        return self.request.gang

    def gpus(self) -> list[PhysicalCell]:
        """Physical GPUs of all members that still exist."""
        return [gpu for member in self.physical for gpu in member if gpu is not None]

    def pairs(self) -> list[tuple[PhysicalCell, VirtualCell | None]]:
        """Each physical GPU with the VC's GPU it stands for."""
        if self.virtual is None:
            return [(gpu, None) for gpu in self.gpus()]
        return [
            (gpu, own)
            for gpus, owned in zip(self.physical, self.virtual, strict=True)
            for gpu, own in zip(gpus, owned, strict=True)
            if gpu is not None
        ]


def deed_of(
    places: list[list[PhysicalCell]], owned: list[list[VirtualCell]] | None, kinds: tuple[str, ...]
) -> Deed:
    """Write down a placement; `kinds` are the chain's kinds of cells by level."""
    members = []
    for index, gpus in enumerate(places):
        roots = tuple(kinds[gpu.root.level] for gpu in owned[index]) if owned else ()
        members.append(MemberDeed(gpus[0].nodes[0], tuple(gpu.index for gpu in gpus), roots))
    return Deed(places[0][0].chain, tuple(members))
