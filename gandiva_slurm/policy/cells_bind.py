"""Which physical cells could stand behind virtual ones: a search that changes nothing.

A root that is not bound yet is found by buddy allocation: take a free cell of its level, else split the
lowest higher one. Bad cells and nodes that may not be used are searched around. When that fails, higher
cells are split as well, but only those that no VC is owed ("safe relaxed splitting", papers.md section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.policy.cells import LEAF, OPPORTUNISTIC, PhysicalCell, VirtualCell
from gandiva_slurm.policy.cells_stock import drop


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
        self, free: list[list[PhysicalCell]], owed: list[int], may_use: Callable[[PhysicalCell], bool]
    ) -> None:
        """Keep what is free; `may_use` says which nodes are good enough."""
        self.free = free
        self.owed = owed
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
        if self._split_and_match(root, lowest):
            self.owed[level] -= 1
            return True
        return self._split_spare(root)

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
        spare = self._spare(root.cell.chain)
        for level in range(root.cell.level + 1, len(self.free)):
            pieces = []
            for _ in range(min(len(self.free[level]), spare[level])):
                pieces.append(self.free[level][0])
                drop(self.free[level], pieces[-1])
            for _ in range(level - root.cell.level):
                pieces = [child for piece in pieces for child in piece.children]
            if pieces:
                self.free[root.cell.level][:0] = pieces
                if self._take_match(root):
                    return True
        return False

    def _spare(self, chain: str) -> list[int]:
        """By level: cells that stay when every VC has taken all that it owns, split from above included."""
        spare, width = [0] * (len(self.free) + 1), 0
        sample: PhysicalCell | None = None
        for level in range(len(self.free) - 1, 0, -1):
            spare[level] = len(self.free[level]) - self.owed[level] + spare[level + 1] * width
            if spare[level] < 0:
                raise SafetyBroken(f"{-spare[level]} cells too few at level {level} of {chain}")
            sample = sample.children[0] if sample else next(iter(self.free[level]), None)
            width = len(sample.children) if sample else 0
        return spare

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
