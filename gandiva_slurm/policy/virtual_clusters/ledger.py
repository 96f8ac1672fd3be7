"""What each VC may still claim of a chain, what is left, and which cells are bad or doomed to be.

Promises are counted in whole cells by level, for healthy and bad cells alike: while the cells left at each
level cover what all VCs may still claim, every claim can be met (safety). Bad cells that are free are counted
apart. When the healthy ones no longer cover what a VC may claim, some of its cells are *doomed*: bound at
once to bad ones, so that the VC places nothing there (HiveD, OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.policy.virtual_clusters.cells import (
    LEAF,
    LOWEST,
    PhysicalCell,
    VirtualCell,
    bind,
    bind_to_spare,
    first_unbound,
    join,
    part,
    unbind,
)
from gandiva_slurm.policy.virtual_clusters.site import Chain
from gandiva_slurm.policy.virtual_clusters.stock import Stock, drop, spare_cells

#: Roots that a VC owns, by level
Roots = list[list[VirtualCell]]


class Ledger:
    """Counts and free cells of one chain."""

    def __init__(self, chain: Chain, roots: Mapping[str, Roots], pinned: Mapping[str, list[int]]) -> None:
        """Count what each VC owns: `roots` it may have anywhere, and `pinned` cells by level.

        Raises ConfigError when the chain cannot hold all of it.
        """
        self.chain = chain
        self.stock = Stock(chain)
        self.roots = roots
        levels = range(chain.top + 1)
        #: by VC and level: cells it owns and has not claimed
        self.unclaimed = {vc: [len(roots[vc][level]) + pinned[vc][level] for level in levels] for vc in roots}
        self.doomed: dict[str, list[list[PhysicalCell]]] = {vc: [[] for _ in levels] for vc in roots}
        #: cells that are free, or can be split from free ones, by level; and those of them that are bad
        self.left = [len(cells) for cells in chain.cells]
        self.bad: list[list[PhysicalCell]] = [[] for _ in levels]
        self._check_fit()

    def _check_fit(self) -> None:
        available = self.left[self.chain.top]
        for level in range(self.chain.top, 0, -1):
            needed = self.owed(level)
            if needed > available:
                raise ConfigError(
                    f"cells: VCs own {needed} {self.chain.kinds[level]} of {self.chain.name}, "
                    f"{available} are left at this level; next: promise fewer"
                )
            available = (available - needed) * self.chain.widths[level]

    def owed(self, level: int) -> int:
        """Cells of a level that VCs may still claim."""
        return sum(numbers[level] for numbers in self.unclaimed.values())

    def all_owed(self) -> list[int]:
        """Cells that VCs may still claim, by level."""
        return [self.owed(level) for level in range(self.chain.top + 1)]

    def claim(self, cell: PhysicalCell, vc: str, is_doomed: bool = False) -> bool:
        """Hand a free cell to a VC for a root of its; return False when this breaks a promise to another."""
        level = cell.level
        is_safe = self._keeps_promises(cell)
        self.unclaimed[vc][level] -= 1
        self.left[level] -= 1
        split_to = self.stock.take(cell)
        for above in _between(cell, split_to):
            self.left[above.level] -= 1
            if above.is_healthy:
                self._doom(above.level)
            else:
                drop(self.bad[above.level], above)
        if cell.is_healthy:
            self._doom(level)
        else:
            self._claim_bad(cell)
            if not is_doomed:
                self._redeem(level)
        for below, number in self._counts_below(level):
            self.left[below] -= number
            if not is_doomed:
                self._doom(below)
        return is_safe

    def release(self, cell: PhysicalCell, vc: str, is_doomed: bool = False) -> None:
        """Take a cell back from a VC."""
        level = cell.level
        self.unclaimed[vc][level] += 1
        self.left[level] += 1
        merged_to = self.stock.give(cell)
        for above in _between(cell, merged_to):
            self.left[above.level] += 1
            if above.is_healthy:
                self._redeem(above.level)
            else:
                self.bad[above.level].append(above)
        if cell.is_healthy:
            self._redeem(level)
        else:
            self._release_bad(cell)
            if not is_doomed:
                self._doom(level)
        for below, number in self._counts_below(level):
            self.left[below] += number
            if not is_doomed:
                self._redeem(below)

    def _counts_below(self, level: int) -> Iterator[tuple[int, int]]:
        number = 1
        for below in range(level - 1, 0, -1):
            number *= self.chain.widths[below + 1]
            yield below, number

    # Bad cells ------------------------------------------------------------------------------------------

    def fail(self, cell: PhysicalCell) -> None:
        """Mark a cell bad, and all above it."""
        if not cell.is_healthy:
            return
        cell.is_healthy = False
        if cell.parent is not None:
            self.fail(cell.parent)
        if cell.is_loose:
            self.bad[cell.level].append(cell)
            self._doom(cell.level)
        elif cell.virtual is None and not cell.is_split:
            bind_to_spare(cell)

    def heal(self, cell: PhysicalCell) -> None:
        """Mark a cell healthy, and those above it that have no other bad child."""
        if cell.is_healthy:
            return
        cell.is_healthy = True
        if cell.is_loose:
            drop(self.bad[cell.level], cell)
            self._redeem(cell.level)
        elif cell.virtual is not None and not cell.pin:
            self._heal_bound(cell, cell.virtual)
        above = cell.parent
        if above is not None and all(child.is_healthy for child in above.children):
            self.heal(above)

    def _heal_bound(self, cell: PhysicalCell, virtual: VirtualCell) -> None:
        doomed = self.doomed[virtual.vc][cell.level]
        is_idle = cell.priority < LOWEST
        if is_idle:
            # It was bound only to show that it was bad.
            part(cell)
        if virtual.parent is None and cell in doomed:
            drop(doomed, cell)
            if is_idle:
                self.release(cell, virtual.vc, is_doomed=True)

    def _healthy(self, level: int) -> int:
        return self.left[level] - len(self.bad[level])

    def _doom(self, level: int) -> None:
        """Bind bad cells to VCs that may claim more than there are healthy cells."""
        for vc, numbers in self.unclaimed.items():
            while numbers[level] > self._healthy(level):
                root = first_unbound(self.roots[vc][level])
                cell = next((bad for bad in self.bad[level] if self._keeps_promises(bad)), None)
                if root is None or cell is None:
                    break
                join(cell, root)
                self.doomed[vc][level].append(cell)
                self.claim(cell, vc, is_doomed=True)

    def _redeem(self, level: int) -> None:
        """Let VCs off bad cells as far as healthy ones cover their claims again."""
        for vc, numbers in self.unclaimed.items():
            doomed = self.doomed[vc][level]
            while numbers[level] < self._healthy(level):
                # Healthy GPUs of a doomed cell may be in use; such a cell is let off when they are not.
                cell = next((cell for cell in doomed if cell.priority < LOWEST), None)
                if cell is None:
                    break
                part(cell)
                drop(doomed, cell)
                self.release(cell, vc, is_doomed=True)

    def _keeps_promises(self, cell: PhysicalCell) -> bool:
        """True when this free cell can be claimed, as far as others are owed what is split for it."""
        spare = spare_cells(self.stock.free, self.all_owed(), self.chain.widths)
        for above in list(cell.line())[1:]:
            if above.is_split:
                return True
            if spare[above.level] < 1:
                return False
        return True

    def _claim_bad(self, cell: PhysicalCell) -> None:
        """Take a bad cell and its bad children off the free ones, and show the VC what it got."""
        if cell in self.bad[cell.level]:
            drop(self.bad[cell.level], cell)
        if cell.virtual is None:
            bind_to_spare(cell)
        for child in cell.children:
            if not child.is_healthy:
                self._claim_bad(child)

    def _release_bad(self, cell: PhysicalCell) -> None:
        self.bad[cell.level].append(cell)
        part(cell)
        for child in cell.children:
            if not child.is_healthy:
                self._release_bad(child)

    # GPUs -----------------------------------------------------------------------------------------------

    def hold(self, gpu: PhysicalCell, virtual: VirtualCell | None, priority: int) -> bool:
        """Use a GPU: for a VC's own, or by chance (`virtual` None, priority opportunistic).

        Returns False when claiming the cell it is in broke a promise to another VC.
        """
        if virtual is None:
            gpu.occupy(priority)
            return True
        virtual.occupy(priority)
        gpu.occupy(priority)
        root = virtual.root
        was_claimed = root.physical is not None
        if gpu.virtual is None:
            # A bad GPU may be bound already.
            bind(gpu, virtual)
        if was_claimed or root.physical is None:
            return True
        return self.claim(root.physical, virtual.vc)

    def let_go(self, gpu: PhysicalCell) -> None:
        """Stop using a GPU; its cell goes back when nothing else of it is used."""
        virtual = gpu.virtual
        if virtual is not None and virtual.used:
            self._let_go_of(gpu, virtual)
        gpu.vacate()

    def _let_go_of(self, gpu: PhysicalCell, virtual: VirtualCell) -> None:
        virtual.vacate()
        root, cell = virtual.root, virtual.root.physical
        assert gpu.level == LEAF and cell is not None
        if gpu.is_healthy:
            # A bad GPU stays bound, so that the VC goes on seeing it.
            unbind(gpu)
        if cell.pin or root.priority >= LOWEST:
            return
        if cell in self.doomed[virtual.vc][cell.level]:
            self._redeem(cell.level)
        else:
            self.release(cell, virtual.vc)


def _between(cell: PhysicalCell, top: int) -> Iterator[PhysicalCell]:
    """Cells above this one, up to a level."""
    for above in cell.line():
        if cell.level < above.level <= top:
            yield above
