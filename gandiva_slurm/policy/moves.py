"""What a move of a running job is, what it brings, and when that is worth it.

A move costs a job some of its time; it pays when the job is to gain that several times over while it may be
expected to run: as long again as it has run so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.placement import LOAD_SCALE, Board, Need, Place, Site
from gandiva_slurm.policy.shares import SCALE

#: A move must bring its job so many times what it costs.
WORTH = 3
#: And so small a part of a GPU's time, one over this, at the least.
LEAST_PART = 20
#: Nodes that are tried for a job: those of least load.
NODES_TRIED = 8
#: Jobs that are tried in one look, those with most to gain first.
JOBS_TRIED = 16

SECOND_NS = 10**9


@dataclass(frozen=True)
class Terms:
    """When a better place is better enough, in hundredths."""

    balance_percent: int = 25
    faster_percent: int = 25


@dataclass(frozen=True)
class Resident:
    """A job on its nodes, as moves see it. `bar` says why it must not be moved now; empty: it may."""

    need: Need
    place: Place
    gpu_type: str
    cost_ns: int = 0
    #: how long it is expected to run on
    horizon_ns: int = 0
    bar: str = ""
    #: mini-batches a second, by GPU type; a type that is missing was not measured
    rates: Mapping[str, float] = field(default_factory=dict)
    #: the same on types that it was not measured on, by what other jobs gain there
    guesses: Mapping[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """How many nodes it has, and GPUs on each."""
        return len(self.place.parts), len(self.place.parts[0].gpus)


class Proposal(NamedTuple):
    """A job, the better place for it, why (a sentence and what proves it), and the time it gains there."""

    resident: Resident
    place: Place
    why: tuple[str, ...]
    gain_ns: int = 0


class Spot(NamedTuple):
    """A place as a job would find it: the load of its GPUs with the job on them, the largest and in all."""

    place: Place
    worst: int
    total: int


class Loads:
    """The ticket load of every GPU, nodes of a type sorted by what they have for a gang of a size."""

    def __init__(self, board: Board) -> None:
        self.by_site = {name: board.loads(site) for name, site in board.sites.items() if site.is_open}
        self._sites = board.sites
        self._ranked: dict[tuple[str, int, str], list[tuple[int, Site]]] = {}

    def ranked(self, gpu_type: str, resident: Resident) -> list[Site]:
        """The nodes of a type with the GPUs for a part of a job: least loaded n-th one first."""
        return [site for _, site in self._rank(gpu_type, resident)]

    def least(self, gpu_type: str, resident: Resident) -> int | None:
        """The least load that the most loaded GPU of such a job can have on this type."""
        ranked, nodes = self._rank(gpu_type, resident), resident.shape[0]
        return ranked[nodes - 1][0] if len(ranked) >= nodes else None

    def _rank(self, gpu_type: str, resident: Resident) -> list[tuple[int, Site]]:
        size, group = resident.shape[1], resident.need.group
        key = (gpu_type, size, group)
        if key not in self._ranked:
            here = [site for site in self._sites.values() if site.gpu_type == gpu_type]
            able = [site for site in here if site.is_open and len(site.gpus_for(group)) >= size]
            found = [(self._nth(site, size, group), site) for site in able]
            self._ranked[key] = sorted(found, key=lambda pair: (pair[0], pair[1].name))
        return self._ranked[key]

    def best(self, gpu_type: str, resident: Resident) -> list[Site]:
        """The nodes of a type that are tried for a job."""
        return self.ranked(gpu_type, resident)[: NODES_TRIED * resident.shape[0]]

    def _nth(self, site: Site, size: int, group: str) -> int:
        loads = self.by_site[site.name]
        return sorted(loads[gpu] for gpu in site.gpus_for(group))[size - 1]

    def of(self, resident: Resident) -> list[int]:
        """The loads of a job's GPUs; empty where nothing is known of one of its nodes."""
        parts = resident.place.parts
        if not all(self.by_site.get(node) for node, _ in parts):
            return []
        return [self.by_site[node][gpu] for node, gpus in parts for gpu in gpus]


def find_spot(draft: Draft, resident: Resident, sites: Iterable[Site]) -> Spot | None:
    """The best of these nodes for a job that would leave its own ones; None when it would be where it is.

    Nothing stays tried.
    """
    need, board, mark = resident.need, draft.board, draft.mark()
    draft.lift(need.job_id, resident.place.nodes)
    place = board.best(need, [site for site in sites if site.may_take(need)])
    spot = None
    if place is not None and set(place.parts) != set(resident.place.parts):
        draft.put(need, place)
        loads = {node: board.loads(board.sites[node]) for node in place.nodes}
        held = [loads[node][gpu] for node, gpus in place.parts for gpu in gpus]
        spot = Spot(place, max(held), sum(held))
    draft.rollback(mark)
    return spot


def gain_of(resident: Resident, before: float, after: float) -> int:
    """Time gained until its expected end by one that gets `after` instead of `before` of full speed."""
    return round(resident.horizon_ns * (after - before))


def is_worth_it(resident: Resident, gain_ns: int) -> bool:
    """True when a move brings several times what it costs, and a part of a GPU that is felt."""
    return gain_ns > WORTH * resident.cost_ns and LEAST_PART * gain_ns >= resident.horizon_ns


def told_gain(resident: Resident, gain_ns: int) -> str:
    """A gain beside its cost, in words."""
    gain_s, horizon_s, cost_s = (
        round(time_ns / SECOND_NS) for time_ns in (gain_ns, resident.horizon_ns, resident.cost_ns)
    )
    return f"worth {gain_s} s to it within {horizon_s} s, costs {cost_s} s"


def told_place(place: Place) -> str:
    """GPUs of one node or more in words."""
    return " and ".join(f"GPU {','.join(map(str, gpus))} of {node}" for node, gpus in place.parts)


def tickets(load: int) -> str:
    """A load in tickets."""
    return f"{load / (LOAD_SCALE * SCALE):.4g}"
