"""Which physical cells could stand behind virtual ones: a search that changes nothing.

A root that is not bound yet is found by buddy allocation: take a free cell of its level, else split the
lowest higher one. Bad cells and nodes that may not be used are searched around. When that fails, higher
cells are split as well, but only those that no VC is owed ("safe relaxed splitting", HiveD, OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.policy.virtual_clusters.cells import LEAF, OPPORTUNISTIC, PhysicalCell, VirtualCell
from gandiva_slurm.policy.virtual_clusters.stock import drop, spare_cells


class SafetyBroken(RuntimeError):
    """A VC's own cell has no physical cell left: cannot happen while all VCs fit the cluster."""


@dataclass(slots=True)
class Branch:
    """A virtual cell to be bound, with those of its children that must be."""

    cell: VirtualCell
    below: list[Branch] = field(default_factory=list)


@dataclass(slots=True)
class Wanted:
    """All that must be bound for a set of virtual GPUs."""

    #: whole trees, not bound at all
    roots: list[Branch] = field(default_factory=list)
    #: parts of bound trees; those with the same bound parent together
    parts: dict[VirtualCell, list[Branch]] = field(default_factory=dict)
    #: GPUs that are bound already
    known: dict[VirtualCell, PhysicalCell] = field(default_factory=dict)


def wanted_for(gpus: Iterable[VirtualCell]) -> Wanted:
    """Collect the unbound ancestors of these GPUs as trees."""
    wanted, seen = Wanted(), dict[VirtualCell, Branch]()
    for gpu in gpus:
        if gpu.physical is not None:
            wanted.known[gpu] = gpu.physical
            continue
        branch: Branch | None = None
        for cell in gpu.line():
            if cell in seen:
                seen[cell].below.append(_link(branch))
                break
            if cell.physical is not None:
                wanted.parts.setdefault(cell, []).append(_link(branch))
                break
            branch = seen[cell] = Branch(cell, [branch] if branch else [])
        else:
            wanted.roots.append(_link(branch))
    return wanted


def _link(branch: Branch | None) -> Branch:
    assert branch is not None, "the GPU itself is neither bound nor seen"
    return branch


class Binder:
    """One search; it owns `free`, and `owed`: cells by level that VCs may still claim."""

    def __init__(
        self,
        free: list[list[PhysicalCell]],
        owed: list[int],
        widths: Sequence[int],
        may_use: Callable[[PhysicalCell], bool],
    ) -> None:
        """Keep what is free; `widths`: children by level; `may_use`: is a cell good enough?"""
        self.free = free
        self.owed = owed
        self.widths = widths
        self.may_use = may_use
        self.found: dict[VirtualCell, PhysicalCell] = {}

    def bind(self, wanted: Wanted) -> dict[VirtualCell, PhysicalCell] | None:
        """Return the physical GPU of each virtual one, or None when it needs a cell that may not be used."""
        self.found.update(wanted.known)
        for root in wanted.roots:
            if not self._bind_root(root):
                return None
        for parent, branches in wanted.parts.items():
            assert parent.physical is not None
            if self._match(branches, parent.physical.children) is None:
                return None
        return self.found

    def _bind_root(self, root: Branch) -> bool:
        level = root.cell.level
        lowest = next((high for high in range(level, len(self.free)) if self.free[high]), 0)
        if not lowest:
            raise SafetyBroken(f"no free cell for level {level} of {root.cell.chain}")
        is_bound = self._split_and_match(root, lowest) or self._split_spare(root)
        self.owed[level] -= is_bound
        return is_bound

    def _split_and_match(self, root: Branch, level: int) -> bool:
        """Buddy allocation from a free cell of `level` down to the root's own level."""
        if level == root.cell.level:
            return self._take_match(root)
        for cell in self._usable(self.free[level]):
            self.free[level - 1] = list(cell.children)
            if self._split_and_match(root, level - 1):
                drop(self.free[level], cell)
                return True
            self.free[level - 1] = []
        return False

    def _split_spare(self, root: Branch) -> bool:
        """Split higher cells that nobody is owed, the lowest first."""
        level = root.cell.level
        spare = spare_cells(self.free, self.owed, self.widths)
        for top in range(level + 1, len(self.free)):
            if spare[top] < 1:
                # A cell from still higher up would cost one of this level as well.
                return False
            pieces = _first(self.free[top], spare[top])
            for _ in range(top - level):
                pieces = [child for piece in pieces for child in piece.children]
            picked = self._match([root], pieces)
            if picked is not None:
                self._take_out(picked[0], top)
                return True
        return False

    def _take_out(self, cell: PhysicalCell, top: int) -> None:
        """Take a cell out of a free one of level `top`; the pieces beside it become free."""
        for piece in cell.line():
            if piece.level == top or piece.parent is None:
                drop(self.free[top], piece)
                return
            self.free[piece.level].extend(buddy for buddy in piece.parent.children if buddy is not piece)

    def _take_match(self, root: Branch) -> bool:
        picked = self._match([root], self.free[root.cell.level])
        for cell in picked or ():
            drop(self.free[cell.level], cell)
        return picked is not None

    def _usable(self, cells: Sequence[PhysicalCell]) -> list[PhysicalCell]:
        """Unbound cells that are good enough; those with the fewest opportunistic GPUs first."""
        usable = [cell for cell in cells if cell.virtual is None and self.may_use(cell)]
        return sorted(usable, key=lambda cell: cell.used.get(OPPORTUNISTIC, 0))

    def _match(self, branches: list[Branch], cells: Sequence[PhysicalCell]) -> list[PhysicalCell] | None:
        """Give each branch a cell of its own, and so on for what is below; None when it cannot be done."""
        usable = self._usable(cells)
        return self._assign(branches, usable, []) if len(usable) >= len(branches) else None

    def _assign(
        self, branches: list[Branch], usable: list[PhysicalCell], taken: list[PhysicalCell]
    ) -> list[PhysicalCell] | None:
        if len(taken) == len(branches):
            return taken
        for cell in usable:
            if cell not in taken and self._fits(branches[len(taken)], cell):
                done = self._assign(branches, usable, [*taken, cell])
                if done is not None:
                    return done
        return None

    def _fits(self, branch: Branch, cell: PhysicalCell) -> bool:
        if cell.level == LEAF:
            self.found[branch.cell] = cell
            return True
        return self._match(branch.below, cell.children) is not None


def _first(cells: Sequence[PhysicalCell], count: int) -> list[PhysicalCell]:
    """Take so many from the front, each time putting the last one in the gap."""
    rest, first = list(cells), list[PhysicalCell]()
    while rest and len(first) < count:
        first.append(rest[0])
        drop(rest, rest[0])
    return first
