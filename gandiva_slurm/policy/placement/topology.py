"""Near GPUs and shared links: lowest common ancestor, and who uses which link (BytePS, OSDI 2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

Item = TypeVar("Item")
#: What a GPU is part of, nearest first: PCIe switch, socket, node, rack, …; all GPUs have equally many.
Line = Sequence[Hashable]
#: A subtree's way up: its level in the line, and which subtree.
Link = tuple[int, Hashable]


def closest(
    items: Sequence[Item], count: int, line: Callable[[Item], Line], is_tightest: bool = False
) -> tuple[Item, ...] | None:
    """Pick `count` items with the lowest common ancestor; None when no ancestor has as many.

    Among several such ancestors the one whose first item comes first, or with `is_tightest` the one with the
    fewest items (larger holes stay whole). Inside it the first items, in order.
    """
    if not 0 < count <= len(items):
        return None
    if count == 1 and not is_tightest:
        return (items[0],)
    for level in range(len(line(items[0]))):
        below: dict[Hashable, list[Item]] = {}
        for item in items:
            below.setdefault(line(item)[level], []).append(item)
        fitting = [group for group in below.values() if len(group) >= count]
        if fitting:
            chosen = min(fitting, key=len) if is_tightest else fitting[0]
            return tuple(chosen[:count])
    return None


def common_level(items: Iterable[Item], line: Callable[[Item], Line]) -> int | None:
    """Lowest level of the line that all items share; -1 for a single item; None: they share nothing."""
    lines = [line(item) for item in items]
    if len(lines) == 1:
        return -1
    return next((level for level in range(len(lines[0])) if len({one[level] for one in lines}) == 1), None)


def links_of(gpus: Iterable[int], lines: Mapping[int, Line]) -> frozenset[Link]:
    """Return the ways up that a gang's traffic takes: of each subtree with some, but not all of its GPUs."""
    held = list(gpus)
    links = set[Link]()
    for level in range(len(lines[held[0]]) if held else 0):
        inside = {lines[gpu][level] for gpu in held}
        if len(inside) == 1:
            break
        links.update((level, part) for part in inside)
    return frozenset(links)


def shared_links(gangs: Mapping[int, Iterable[int]], lines: Mapping[int, Line]) -> dict[Link, int]:
    """Links that more than one gang uses, with how many do: a NIC or a switch's way up is one link."""
    users = Counter(link for gpus in gangs.values() for link in links_of(gpus, lines))
    return {link: number for link, number in users.items() if number > 1}


def summing_shares(gpu_machines: int, cpu_machines: int) -> tuple[Fraction, Fraction]:
    """Part of the gradient that each GPU machine and each spare CPU machine sums, BytePS's way.

    With equal NICs these parts load all NICs equally: no spare machines is all-reduce, one for each GPU
    machine is a parameter server. Raises ValueError outside 2 <= n, 0 <= k <= n.
    """
    n, k = gpu_machines, cpu_machines
    if n < 2 or not 0 <= k <= n:
        raise ValueError(f"{n} GPU machines and {k} spare ones: at least 2, and at most as many spare ones")
    whole = n * n + k * n - 2 * k
    return Fraction(n - k, whole), Fraction(2 * (n - 1), whole)


def nic_bytes(gpu_machines: int, cpu_machines: int) -> Fraction:
    """Bytes each NIC sends (and receives) for one byte of gradient, with `summing_shares`."""
    n, k = gpu_machines, cpu_machines
    return Fraction(2 * n * (n - 1), n * n + k * n - 2 * k)
