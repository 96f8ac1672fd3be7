"""Balance: equal ticket load on the GPUs of a type (Gandiva_fair, load balancing; papers' §2).

Slicing is fair on each GPU; it is fair over the cluster only while every GPU carries as many tickets. Jobs
end, and leave some GPUs idle beside crowded ones. So a job moves to GPUs of its type, on whatever node, that
would carry clearly less with it than its own do now, its tickets included both times.

No job goes to and fro: each move lowers the sum of the squares of all loads by its margin, and nothing else
here raises it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.moves import (
    JOBS_TRIED,
    Loads,
    Proposal,
    Resident,
    Terms,
    find_spot,
    gain_of,
    tickets,
    told_gain,
    told_place,
)


def even_out(draft: Draft, loads: Loads, residents: Sequence[Resident], terms: Terms) -> list[Proposal]:
    """Propose moves from crowded GPUs to others of their type, the largest gain first."""
    crowded = []
    for resident in residents:
        hope = _hope(draft, loads, resident, terms)
        if hope > 0:
            crowded.append((hope, resident))
    crowded.sort(key=lambda pair: (-pair[0], pair[1].need.order))
    found = [_propose(draft, loads, resident, terms) for _, resident in crowded[:JOBS_TRIED]]
    proposals = [proposal for proposal in found if proposal is not None]
    return sorted(proposals, key=lambda each: (-each.gain_ns, each.resident.need.order))


def _hope(draft: Draft, loads: Loads, resident: Resident, terms: Terms) -> float:
    """The most a job could gain on its type, were there room; nothing when that is too little."""
    held = loads.of(resident)
    least = loads.least(resident.gpu_type, resident)
    if not held or least is None:
        return 0.0
    worst, own = max(held), draft.board.load_of(resident.need)
    if not _is_clearly_less(own + min(least, worst - own), worst, terms):
        return 0.0
    return gain_of(resident, own / worst, own / (own + least))


def _propose(draft: Draft, loads: Loads, resident: Resident, terms: Terms) -> Proposal | None:
    best = loads.best(resident.gpu_type, resident)
    homes = [draft.board.sites[node] for node in resident.place.nodes]
    spot = find_spot(draft, resident, [*best, *(home for home in homes if home not in best)])
    held = loads.of(resident)
    if spot is None or not _is_clearly_less(spot.worst, max(held), terms):
        return None
    if not _is_clearly_less(spot.total, sum(held), terms):
        return None
    own = draft.board.load_of(resident.need)
    gain_ns = gain_of(resident, own / max(held), own / spot.worst)
    here, there = told_place(resident.place), told_place(spot.place)
    text = f"{here} carries {tickets(max(held))} tickets, {there} would carry {tickets(spot.worst)} with it"
    return Proposal(resident, spot.place, (text, told_gain(resident, gain_ns)), gain_ns)


def _is_clearly_less(load: int, than: int, terms: Terms) -> bool:
    return 100 * load <= (100 - terms.balance_percent) * than
