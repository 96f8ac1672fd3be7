"""Where a gang's members fit: nodes in an order of preference, then near GPUs inside each node.

The same for a VC's virtual cells and, for opportunistic gangs, for the physical ones. Order of the nodes:
healthy, suggested, most used alike, least used by higher priorities (HiveD, OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from gandiva_slurm.policy.placement.topology import closest
from gandiva_slurm.policy.virtual_clusters.cells import FREE, OPPORTUNISTIC, PhysicalCell, VirtualCell

C = TypeVar("C", PhysicalCell, VirtualCell)
#: Nodes that may be used; None: all
Suggested = Collection[str] | None
#: GPUs that a gang may not have, by node and index.
Closed = Collection[tuple[str, int]]
NO_ROOM = "not enough free cells"


class Unfit(Exception):
    """There is no place now; the text says why."""


def physical_of(cell: PhysicalCell | VirtualCell) -> PhysicalCell | None:
    """The cell itself, or what stands behind it."""
    return cell.physical if isinstance(cell, VirtualCell) else cell


def is_suggested(cell: PhysicalCell, suggested: Suggested) -> bool:
    """True when the first node of this cell may be used."""
    return suggested is None or cell.nodes[0] in suggested


class View(Generic[C]):
    """The nodes of one set of cells; a cell below a node that has no parent counts as a node.

    `packs_all`: prefer nodes with the most GPUs in use by anybody; else those with the most in use at the
    same priority and the fewest at higher ones, which keeps opportunistic gangs away from guaranteed ones.
    The order outlives a call: among equals the former order stays.
    """

    def __init__(self, levels: Sequence[Sequence[C]], packs_all: bool) -> None:
        """Collect the nodes of cells by level, from the node level down."""
        self.packs_all = packs_all
        holds_node = [n for n, cells in enumerate(levels) if cells and cells[0].holds_node]
        highest = min(holds_node) if holds_node else len(levels) - 1
        seen = dict.fromkeys(node_of(cell) for cells in reversed(levels[1 : highest + 1]) for cell in cells)
        self.nodes: list[C] = list(seen)

    def fit(
        self,
        sizes: Sequence[int],
        priority: int,
        suggested: Suggested,
        closed: Closed = (),
        is_apart: bool = False,
    ) -> list[tuple[C, ...]]:
        """Return GPUs for each member, sizes ascending; without putting anybody out if possible.

        None that is `closed`; each member on a node of its own where they are to be apart. Raises Unfit.
        """
        level = OPPORTUNISTIC
        try:
            picked = self._pick_nodes(sizes, level, suggested, closed, is_apart)
        except Unfit:
            if priority <= OPPORTUNISTIC:
                raise
            level = priority
            picked = self._pick_nodes(sizes, level, suggested, closed, is_apart)
        usable: dict[C, list[C]] = {}
        places = []
        for node, size in zip(picked, sizes, strict=True):
            if node not in usable:
                usable[node] = [gpu for gpu in _usable_gpus(node, level) if not _is_closed(gpu, closed)]
            gpus = usable[node]
            place = closest(gpus, size, lambda gpu: list(gpu.line())[1:])
            assert place is not None, "the node was picked because it has as many"
            places.append(place)
            usable[node] = [gpu for gpu in gpus if gpu not in place]
        return places

    def _pick_nodes(
        self, sizes: Sequence[int], priority: int, suggested: Suggested, closed: Closed, is_apart: bool
    ) -> list[C]:
        self.nodes.sort(key=self._order(priority, suggested))
        picked: list[C] = []
        taken = 0
        remaining = iter(self.nodes)
        node = next(remaining, None)
        while node is not None and len(picked) < len(sizes):
            size = sizes[len(picked)]
            if _room(node, priority, closed) - taken < size:
                node, taken = next(remaining, None), 0
                continue
            behind = physical_of(node)
            if behind is not None and not behind.is_healthy:
                raise Unfit(f"it would need the bad node {behind.nodes[0]}")
            if behind is not None and not is_suggested(behind, suggested):
                raise Unfit(f"it would need the node {behind.nodes[0]}, which is not suggested")
            picked.append(node)
            taken += size
            if is_apart:
                node, taken = next(remaining, None), 0
        return picked if len(picked) == len(sizes) else self._pick_tight(sizes, priority, suggested, closed)

    def _pick_tight(
        self, sizes: Sequence[int], priority: int, suggested: Suggested, closed: Closed
    ) -> list[C]:
        """Pick by room alone, for members of several sizes: small ones may have filled the large nodes."""
        nodes = [node for node in self.nodes if node.is_healthy]
        nodes = [
            node for node in nodes if (cell := physical_of(node)) is None or is_suggested(cell, suggested)
        ]
        rooms = [_room(node, priority, closed) for node in nodes]
        places = best_fit(sizes, rooms) if sizes[0] < sizes[-1] else None
        if places is None:
            raise Unfit(NO_ROOM)
        return [nodes[place] for place in places]

    def _order(self, priority: int, suggested: Suggested) -> Callable[[C], tuple[bool, bool, int, int]]:
        def key(node: C) -> tuple[bool, bool, int, int]:
            behind = physical_of(node)
            same = sum(node.used.values()) if self.packs_all else node.used.get(priority, 0)
            higher = 0 if self.packs_all else sum(n for p, n in node.used.items() if p > priority)
            is_fine = behind is None or is_suggested(behind, suggested)
            return (not node.is_healthy, not is_fine, -same, higher)

        return key


def best_fit(sizes: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """Find a place for each size, the largest first, each where it leaves least; None: one fits nowhere."""
    left = list(rooms)
    places = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        fitting = [place for place, room in enumerate(left) if room >= sizes[index]]
        if not fitting:
            return None
        places[index] = min(fitting, key=left.__getitem__)
        left[places[index]] -= sizes[index]
    return places


def node_of(cell: C) -> C:
    """The node this cell is in; the highest cell above it where there is none."""
    for above in cell.line():
        if above.holds_node or above.parent is None:
            return above
    return cell


def _room(node: C, priority: int, closed: Closed) -> int:
    """GPUs that are free or may be taken at this priority, and are not closed.

    Of those behind which nothing stands yet, as many count as the node can bind.
    """
    if not closed:
        return node.size - sum(number for used_at, number in node.used.items() if used_at >= priority)
    usable, behind = _usable_gpus(node, priority), physical_of(node)
    bound = [gpu for gpu in usable if physical_of(gpu) is not None]
    loose = len(usable) - len(bound)
    if behind is not None:
        loose = min(loose, sum(not _is_closed(gpu, closed) for gpu in behind.leaves() if gpu.virtual is None))
    return loose + sum(not _is_closed(gpu, closed) for gpu in bound)


def _is_closed(gpu: PhysicalCell | VirtualCell, closed: Closed) -> bool:
    behind = physical_of(gpu)
    return behind is not None and (behind.nodes[0], behind.index) in closed


def _usable_gpus(node: C, priority: int) -> list[C]:
    """Free GPUs, then those that may be taken from others."""
    gpus = list(node.leaves())
    free = [gpu for gpu in gpus if gpu.priority == FREE]
    return free + [gpu for gpu in gpus if FREE < gpu.priority < priority]
