"""Defragmentation: room on one node for a waiting gang, by moving away who stands in its way (Gandiva §3).

A gang lives on one node whole (locality comes first). When no node has the room, but one would if some of its
jobs went elsewhere at little loss, those go, and the room is kept for the gang: all of them or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.moves import Loads, Proposal, Resident, Terms, find_spot, told_place
from gandiva_slurm.policy.placement import Need, Place, Site

#: Nodes that are tried for a gang, and jobs that may be moved for it at most.
SITES_TRIED = 8
MOST_MOVES = 4


class Clearing(NamedTuple):
    """A gang, its place, and who moves for it."""

    need: Need
    place: Place
    moves: tuple[Proposal, ...]

    @property
    def bars(self) -> list[Resident]:
        """Those who would have to move, but must not now."""
        return [move.resident for move in self.moves if move.resident.bar]

    @property
    def cost(self) -> tuple[bool, int, int]:
        """How it compares with others: the least is the best."""
        return (bool(self.bars), len(self.moves), sum(move.resident.cost_ns for move in self.moves))


def clear_for(
    draft: Draft, loads: Loads, need: Need, residents: Mapping[str, Sequence[Resident]], terms: Terms
) -> Clearing | None:
    """Find the cheapest way to make room for a waiting gang; `residents` by node. Nothing stays tried."""
    if need.nodes > 1:
        return None
    sites = [
        site
        for site in draft.board.sites.values()
        if site.is_open
        and site.may_take(need)
        and site.is_large_enough(need)
        and site.name not in need.closed
    ]
    sites.sort(key=lambda site: (-len(site.free_gpus(need.leaf, need.group)), site.name))
    found = []
    for site in sites[:SITES_TRIED]:
        mark = draft.mark()
        clearing = _clear(draft, loads, need, site, list(residents.get(site.name, ())), terms)
        draft.rollback(mark)
        if clearing is not None:
            found.append(clearing)
    return min(found, key=lambda each: each.cost, default=None)


def _clear(
    draft: Draft, loads: Loads, need: Need, site: Site, here: list[Resident], terms: Terms
) -> Clearing | None:
    moves: list[Proposal] = []
    while len(moves) < MOST_MOVES:
        here.sort(key=lambda each: (bool(each.bar), _hindrance(draft, need, site, each), each.cost_ns))
        move = next(
            (move for move in (_away(draft, loads, each, site, terms) for each in here) if move), None
        )
        if move is None:
            return None
        moves.append(move)
        here.remove(move.resident)
        draft.lift(move.resident.need.job_id, move.resident.place.nodes)
        draft.put(move.resident.need, move.place)
        place = draft.board.best(need, [site])
        if place is not None:
            return Clearing(need, place, tuple(moves))
    return None


def _hindrance(draft: Draft, need: Need, site: Site, resident: Resident) -> tuple[int, int]:
    """Least for whom the gang gains most when he goes: GPUs with a free slot, then memory."""
    mark = draft.mark()
    draft.lift(resident.need.job_id, (site.name,))
    free = len(site.free_gpus(need.leaf, need.group))
    draft.rollback(mark)
    return (-free, -resident.need.memory_mib)


def _away(draft: Draft, loads: Loads, resident: Resident, site: Site, terms: Terms) -> Proposal | None:
    """Where a job could go at little loss; None: nowhere."""
    others = [each for each in loads.ranked(resident.gpu_type, resident) if each is not site]
    spot, held = find_spot(draft, resident, others), loads.of(resident)
    if spot is None or not held or 100 * spot.worst > (100 + terms.balance_percent) * max(held):
        return None
    text = f"room for another job is made on {site.name}; {told_place(spot.place)} is no worse a place"
    return Proposal(resident, spot.place, (text,))
