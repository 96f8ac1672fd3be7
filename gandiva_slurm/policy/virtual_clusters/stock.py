"""The free cells of a chain: buddy allocation with merge (HiveD, OSDI 2020).

A cell is taken out of the lists by splitting what it is part of; when it comes back and all its buddies are
free, they become the cell above again. The order of a list is part of the result: what comes in goes to the
end, and the last one takes the place of what goes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.policy.virtual_clusters.cells import PhysicalCell
from gandiva_slurm.policy.virtual_clusters.site import Chain


def drop(cells: list[PhysicalCell], cell: PhysicalCell) -> None:
    """Take a cell out of a list; the last one takes its place."""
    place = cells.index(cell)
    cells[place] = cells[-1]
    cells.pop()


def spare_cells(
    free: Sequence[Sequence[PhysicalCell]], owed: Sequence[int], widths: Sequence[int]
) -> list[int]:
    """By level: cells that are left when every VC has taken all that it may still claim.

    Those split from higher cells that are left are counted too. All promises can be kept as long as no
    number is negative. Taking a promised cell costs one at each level that is split for it, above its own: a
    split is safe if there is one to spare at each of them. That of the lowest free cell always is, for with
    none free at the levels below, what is owed there is counted on it.
    """
    spare = [0] * (len(free) + 1)
    for level in range(len(free) - 1, 0, -1):
        width = widths[level + 1] if level + 1 < len(widths) else 0
        spare[level] = len(free[level]) - owed[level] + spare[level + 1] * width
    return spare


class Stock:
    """Free cells by level; each GPU that is free for all VCs is in exactly one of them."""

    def __init__(self, chain: Chain) -> None:
        """Begin with all trees whole."""
        self.free: list[list[PhysicalCell]] = [[] for _ in range(chain.top + 1)]
        self.free[chain.top] = list(chain.cells[chain.top])

    def copy(self) -> list[list[PhysicalCell]]:
        """Return the lists, to be changed by a search that may fail."""
        return [list(cells) for cells in self.free]

    def take(self, cell: PhysicalCell) -> int:
        """Take a cell out, splitting as far up as needed; return the highest level that lost a cell."""
        while True:
            above = cell.parent
            is_last = above is None or above.is_split
            if above is not None and not above.is_split:
                self.free[cell.level].extend(above.children)
                above.is_split = True
            drop(self.free[cell.level], cell)
            if is_last or above is None:
                return cell.level
            cell = above

    def give(self, cell: PhysicalCell) -> int:
        """Take a cell back, merging as far up as possible; return the level at which it ends."""
        while True:
            above, free = cell.parent, self.free[cell.level]
            if above is None or any(buddy is not cell and buddy not in free for buddy in above.children):
                free.append(cell)
                return cell.level
            for buddy in above.children:
                if buddy is not cell:
                    drop(free, buddy)
            above.is_split = False
            cell = above
