"""Gavel's max-min fairness as a linear programme, with packing (OSDI 2020).

Jobs that are alike share their rows: the greatest minimum is the same, for an allocation may be averaged over
jobs that are alike, and the programme has hundreds of columns instead of tens of thousands. A column is a
group, one job or two packed ones, on one GPU type; its value is how many such groups run at once, on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import linprog
from scipy.sparse import coo_array

#: Least value of the second programme, as a part of the first's greatest minimum: solvers round.
_KEEP = 1 - 1e-9

#: The logarithm in straight pieces: how wide each is, in parts of the minimum, and its slope.
_STEPS = ((0.25, 1.0), (0.25, 0.8), (0.5, 0.65), (1.0, 0.45), (2.0, 0.25), (4.0, 0.14), (100.0, 0.05))

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that are alike. `rates`: steps a second of one of them, by GPU type; 0 or missing: cannot run."""

    jobs: int
    size: int
    rates: Mapping[str, float]
    weight: float = 1.0


class Group(NamedTuple):
    """What runs together on the same GPUs: one kind, or two (which may be the same)."""

    kinds: tuple[int, ...]
    gpu_type: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many of each group run at once, on average, and the least of all jobs' fair rates."""

    groups: Mapping[Group, float]
    value: float


class _Columns(NamedTuple):
    """The programme's columns: groups, and for each the rates of its kinds."""

    groups: list[Group]
    rates: list[tuple[float, ...]]


def fair_rate(kind: Kind, counts: Mapping[str, int]) -> float:
    """Return the rate at which a job counts as served once: that of an equal share of all types, by size."""
    whole = sum(kind.rates.get(name, 0.0) * count for name, count in counts.items())
    return whole / max(1, sum(counts.values())) * kind.weight / kind.size


def allocate(
    kinds: Sequence[Kind],
    counts: Mapping[str, int],
    packed: Mapping[Pair, Mapping[str, tuple[float, float]]] | None = None,
) -> Allocation:
    """Return the allocation of the greatest minimum of fair rates; of these, one of the greatest sum.

    `packed`: both rates of two kinds on one GPU, by type; for kinds of one GPU each.
    """
    columns = _columns(kinds, counts, packed or {})
    able = sorted({index for group in columns.groups for index in group.kinds})
    if not able:
        return Allocation({}, 0.0)
    values, least = _solve(kinds, counts, columns, able)
    groups = {group: part for group, part in zip(columns.groups, values, strict=True) if part > 1e-9}
    return Allocation(groups, least)


def _columns(
    kinds: Sequence[Kind], counts: Mapping[str, int], packed: Mapping[Pair, Mapping[str, tuple[float, float]]]
) -> _Columns:
    """All groups that can help. A pair whose parts do not sum to more than one is worse than taking turns."""
    groups: list[Group] = []
    rates: list[tuple[float, ...]] = []
    for index, kind in enumerate(kinds):
        for name in counts:
            if kind.rates.get(name, 0.0) > 0 and kind.size <= counts[name]:
                groups.append(Group((index,), name))
                rates.append((kind.rates[name],))
    for pair, by_type in packed.items():
        for name, both in by_type.items():
            alone = [kinds[index].rates.get(name, 0.0) for index in pair]
            is_there = name in counts and min(alone) > 0
            is_two = pair[0] != pair[1] or kinds[pair[0]].jobs > 1
            if is_there and is_two and both[0] / alone[0] + both[1] / alone[1] > 1:
                groups.append(Group(pair, name))
                rates.append(both)
    return _Columns(groups, rates)


def _solve(
    kinds: Sequence[Kind], counts: Mapping[str, int], columns: _Columns, able: Sequence[int]
) -> tuple[list[float], float]:
    """The greatest minimum, then what is left by proportional fairness.

    Columns: groups; then, in the first programme, the minimum, in the second, each kind's steps above it.
    """
    entries = [*_limits(kinds, counts, columns)]
    limits = [float(kind.jobs) for kind in kinds] + [float(count) for count in counts.values()]
    row_of = {index: len(limits) + place for place, index in enumerate(able)}
    for column, (group, rates) in enumerate(zip(columns.groups, columns.rates, strict=True)):
        for index, rate in zip(group.kinds, rates, strict=True):
            if index in row_of:
                share = fair_rate(kinds[index], counts) * kinds[index].jobs
                entries.append((row_of[index], column, -rate / share))
    size = len(columns.groups)
    minimum = [(row, size, 1.0) for row in row_of.values()]
    first = _programme([0.0] * size + [-1.0], entries + minimum, limits + [0.0] * len(able))
    least = first[size] * _KEEP
    steps = [(index, width, slope) for index in able for width, slope in _STEPS]
    above = [(row_of[index], size + place, 1.0) for place, (index, _, _) in enumerate(steps)]
    costs = [0.0] * size + [-slope * kinds[index].jobs for index, _, slope in steps]
    most = [None] * size + [width * least for _, width, _ in steps]
    second = _programme(costs, entries + above, limits + [-least] * len(able), most)
    return second[:size], first[size]


def _limits(
    kinds: Sequence[Kind], counts: Mapping[str, int], columns: _Columns
) -> Iterator[tuple[int, int, float]]:
    """No job runs more than all the time; no more GPUs of a type than there are."""
    types = {name: len(kinds) + place for place, name in enumerate(counts)}
    for column, group in enumerate(columns.groups):
        for index in group.kinds:
            yield index, column, 1.0
        yield types[group.gpu_type], column, float(kinds[group.kinds[0]].size)


def _programme(
    costs: Sequence[float],
    entries: Sequence[tuple[int, int, float]],
    bounds: Sequence[float],
    most: Sequence[float | None] | None = None,
) -> list[float]:
    """Minimise `costs` with rows of `entries` (row, column, factor; doubles are summed) at most `bounds`.

    Columns are from 0 to `most`.
    """
    rows, columns, factors = zip(*entries, strict=True)
    matrix = coo_array((factors, (rows, columns)), shape=(len(bounds), len(costs))).tocsr()
    answer = linprog(
        costs,
        A_ub=matrix,
        b_ub=bounds,
        bounds=[(0, top) for top in most or [None] * len(costs)],
        method="highs",
    )
    if not answer.success:
        raise ArithmeticError(f"linear programme: {answer.message}")
    return [max(0.0, float(value)) for value in answer.x]
