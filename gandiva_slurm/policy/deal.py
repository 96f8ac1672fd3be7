"""Which GPUs each virtual cluster owns: the cluster dealt out in cells (HiveD, ADR 0020, 0035).

A cell is a node, or a half, a quarter of one, down to a GPU. Of each type the largest cells are dealt first,
to the virtual clusters in their order: so each owns whole nodes as far as its number goes, then one half, and
so on. A cell is taken by splitting as little as possible. What nobody owns is left to those who name none.

Every cell stays where it was dealt while its node is up. Cells on nodes that are down are dealt again, from
what is left on the others: nobody else's cells change for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gandiva_slurm.policy.cells_deal import UNTYPED, Wanted, halves
from gandiva_slurm.policy.placement import node_order


class Bay(NamedTuple):
    """A node's GPUs; nothing that is down is dealt out a second time."""

    node: str
    gpu_type: str
    gpus: int
    is_down: bool = False


class Cell(NamedTuple):
    """GPUs of a node that hang together: `size` of them, from the first."""

    bay: Bay
    first: int
    size: int


def deal(wanted: Wanted, bays: Iterable[Bay]) -> dict[str, tuple[str, ...]]:
    """Return the owner of each GPU of each node, "" where no virtual cluster owns it."""
    by_type: dict[str, list[Bay]] = {}
    for bay in sorted(bays, key=lambda bay: node_order(bay.node)):
        by_type.setdefault(bay.gpu_type or UNTYPED, []).append(bay)
    owners = {bay.node: [""] * bay.gpus for here in by_type.values() for bay in here}
    for gpu_type, here in by_type.items():
        for vc, cell in _deal_type({vc: types.get(gpu_type, 0) for vc, types in wanted.items()}, here):
            owners[cell.bay.node][cell.first : cell.first + cell.size] = [vc] * cell.size
    return {node: tuple(names) for node, names in owners.items()}


def shortages(wanted: Wanted, bays: Iterable[Bay]) -> list[str]:
    """Say which types no node has, and of which more are promised than there are."""
    there: dict[str, int] = {}
    for bay in bays:
        there[bay.gpu_type or UNTYPED] = there.get(bay.gpu_type or UNTYPED, 0) + bay.gpus
    known = ", ".join(sorted(there)) or "none"
    found = []
    for gpu_type in dict.fromkeys(name for types in wanted.values() for name in types):
        promised = {vc: types[gpu_type] for vc, types in wanted.items() if gpu_type in types}
        sum_text = " + ".join(f"{vc} {count}" for vc, count in promised.items())
        if gpu_type not in there:
            found.append(f"no node has GPUs of type {gpu_type} ({sum_text}); known types: {known}")
        elif sum(promised.values()) > there[gpu_type]:
            found.append(f"{sum_text} GPUs of type {gpu_type} are promised, the nodes have {there[gpu_type]}")
    return found


def _deal_type(left: dict[str, int], bays: Sequence[Bay]) -> Iterator[tuple[str, Cell]]:
    stock, lost = _Stock(bays), dict.fromkeys(left, 0)
    dealt = [*stock.hand_out(left)]
    stock.lose_those_down()
    for vc, cell in dealt:
        if cell.bay.is_down:
            lost[vc] += cell.size
        else:
            yield vc, cell
    yield from stock.hand_out(lost)


class _Stock:
    """Free cells of one type, by their own size and that of their node; the last of each list goes first."""

    def __init__(self, bays: Sequence[Bay]) -> None:
        self._levels = {bay.gpus: _levels(bay.gpus) for bay in bays if bay.gpus}
        self._free: dict[tuple[int, int], list[Cell]] = {}
        for bay in reversed(bays):
            if bay.gpus:
                self._free.setdefault((bay.gpus, bay.gpus), []).append(Cell(bay, 0, bay.gpus))

    def hand_out(self, left: dict[str, int]) -> Iterator[tuple[str, Cell]]:
        """Deal to each virtual cluster what it is `left` to get, as far as there is any; count it off."""
        for size in sorted({size for levels in self._levels.values() for size in levels}, reverse=True):
            for vc in left:
                for cell in self._take(size, left[vc] // size):
                    left[vc] -= size
                    yield vc, cell

    def lose_those_down(self) -> None:
        """Nothing of nodes that are down is dealt out any more."""
        for key, cells in self._free.items():
            self._free[key] = [cell for cell in cells if not cell.bay.is_down]

    def _take(self, size: int, count: int) -> Iterator[Cell]:
        """Take so many cells of this size, as far as there are any."""
        for _ in range(count):
            cell = self._split(size)
            if cell is None:
                return
            yield cell

    def _split(self, size: int) -> Cell | None:
        """Take a cell of this size, of the smallest free one that can be split into such."""
        able = [key for key, cells in self._free.items() if cells and size in self._levels[key[1]]]
        key = min((key for key in able if key[0] >= size), default=None)
        if key is None:
            return None
        cell = self._free[key].pop()
        for level in reversed([level for level in self._levels[key[1]] if size <= level < cell.size]):
            pieces = [Cell(cell.bay, cell.first + n, level) for n in range(0, cell.size, level)]
            self._free.setdefault((level, key[1]), []).extend(reversed(pieces[1:]))
            cell = pieces[0]
        return cell


def _levels(gpus: int) -> list[int]:
    """Sizes of the cells of a node of so many GPUs, from a GPU up to the node."""
    return sorted({*halves(gpus), gpus})
