"""Cells: GPUs that hang together, as trees (HiveD, OSDI 2020).

A physical cell is a GPU, or what its children share: a PCIe switch, a socket, a node, a rack; the levels are
the site's. A virtual cell is a tree of the same shape that a virtual cluster (VC) owns without knowing which
physical cell stands behind it. The two are bound while they are in use, from a GPU up to the root of the
virtual tree, and a bound cell's children are bound to the bound cell's children.

A cell is bad as soon as one of its children is. Level 1 is a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gandiva_slurm.policy.virtual_clusters.gangs import Gang

#: Priorities. A free cell's is below all; opportunistic gangs may be put out by any guaranteed one.
FREE, OPPORTUNISTIC, LOWEST, HIGHEST = -2, -1, 0, 1000
LEAF = 1
#: What a physical GPU is: unused; used by a gang; still used, but promised to a gang that put its user out;
#: promised and already empty.
IS_FREE, IS_USED, IS_RESERVING, IS_RESERVED = "free", "used", "reserving", "reserved"


class Cell:
    """What physical and virtual cells have in common."""

    def __init__(self, chain: str, level: int, size: int, holds_node: bool) -> None:
        """Make a cell of `size` GPUs; `holds_node`: it is a node, or more than one."""
        self.chain = chain
        self.level = level
        self.size = size
        self.holds_node = holds_node
        self.parent: Self | None = None
        self.children: list[Self] = []
        #: GPUs in use by priority; nothing else says which priority a cell has
        self.used: dict[int, int] = {}

    @property
    def priority(self) -> int:
        """Highest priority in it, FREE when nothing is."""
        return max(self.used, default=FREE)

    def line(self) -> Iterator[Self]:
        """Itself and all above it, upwards."""
        cell: Self | None = self
        while cell is not None:
            yield cell
            cell = cell.parent

    def leaves(self) -> Iterator[Self]:
        """GPUs below it, in order."""
        if self.level == LEAF:
            yield self
        for child in self.children:
            yield from child.leaves()

    def occupy(self, priority: int) -> None:
        """Count this GPU as used, up to the root."""
        for cell in self.line():
            cell.used[priority] = cell.used.get(priority, 0) + 1

    def vacate(self) -> None:
        """Count this GPU as free again."""
        priority = self.priority
        for cell in self.line():
            cell.used[priority] -= 1
            if not cell.used[priority]:
                del cell.used[priority]


class PhysicalCell(Cell):
    """A cell that exists."""

    def __init__(self, chain: str, level: int, size: int, holds_node: bool) -> None:
        """Make it healthy, whole, unbound and unused."""
        super().__init__(chain, level, size, holds_node)
        #: names of the nodes it spans; GPUs and switches have their node's
        self.nodes: tuple[str, ...] = ()
        #: number of the GPU in its node, -1 above GPUs
        self.index = -1
        #: name under which it is nailed to one VC for good
        self.pin = ""
        self.is_healthy = True
        #: its children are handed out one by one
        self.is_split = False
        self.virtual: VirtualCell | None = None
        #: of a GPU: the gang that runs there, and the gang that will when the former is gone
        self.gang: Gang | None = None
        self.heir: Gang | None = None

    @property
    def state(self) -> str:
        """Of a GPU: one of IS_FREE, IS_USED, IS_RESERVING, IS_RESERVED."""
        if self.gang is None:
            return IS_RESERVED if self.heir else IS_FREE
        return IS_RESERVING if self.heir else IS_USED

    @property
    def is_loose(self) -> bool:
        """True when it, or the free cell it is part of, can still be given to any VC."""
        for cell in self.line():
            if cell.virtual is not None or cell.is_split:
                return False
            if cell.parent is None or cell.parent.is_split:
                return True
        return True

    def __repr__(self) -> str:
        """Where it is, for messages."""
        where = ",".join(self.nodes)
        what = f"GPU {self.index}" if self.level == LEAF else f"level {self.level}"
        return f"{self.chain} {where} {what}"


class VirtualCell(Cell):
    """A cell that a VC owns."""

    def __init__(self, chain: str, level: int, size: int, holds_node: bool) -> None:
        """Make it free and unbound; who builds the tree sets `vc` and `root`."""
        super().__init__(chain, level, size, holds_node)
        self.vc = ""
        #: the whole tree's top: what the VC was promised as one piece
        self.root: VirtualCell = self
        self.physical: PhysicalCell | None = None

    @property
    def is_healthy(self) -> bool:
        """False only when the cell behind it is known and bad."""
        return self.physical is None or self.physical.is_healthy


def join(physical: PhysicalCell, virtual: VirtualCell) -> None:
    """Bind one pair; what is above and below stays as it is."""
    physical.virtual = virtual
    virtual.physical = physical


def part(physical: PhysicalCell) -> None:
    """Undo one binding."""
    if physical.virtual is not None:
        physical.virtual.physical = None
    physical.virtual = None


def bind(physical: PhysicalCell, virtual: VirtualCell) -> None:
    """Bind a GPU and all above it that is not bound yet."""
    for real, promised in zip(physical.line(), virtual.line(), strict=False):
        if promised.physical is not None:
            return
        join(real, promised)


def unbind(physical: PhysicalCell) -> None:
    """Undo the binding of a GPU, and of what is above it as far as no other child is bound; pins stay."""
    for cell in physical.line():
        virtual = cell.virtual
        if virtual is None or cell.pin:
            return
        part(cell)
        above = virtual.parent
        if above is None or any(child.physical is not None for child in above.children):
            return


def bind_to_spare(physical: PhysicalCell) -> None:
    """Bind a bad cell below a bound one to any unbound sibling place, so that the VC sees what is broken."""
    above = physical.parent.virtual if physical.parent else None
    spare = first_unbound(above.children) if above else None
    if spare is not None:
        join(physical, spare)


def first_unbound(cells: list[VirtualCell]) -> VirtualCell | None:
    """First of these that no physical cell stands behind."""
    return next((cell for cell in cells if cell.physical is None), None)
