"""Heterogeneity: a job goes to a faster GPU type where its own measured rate says that it gains.

Only upwards, and only where the GPUs carry no more tickets with it than its own do now: nobody pays with
share for speed, and as no job ever goes back to a slower type by this, it comes to an end. A type on which
neither the job nor one like it was measured is not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.moves import (
    JOBS_TRIED,
    NODES_TRIED,
    Loads,
    Proposal,
    Resident,
    Terms,
    find_spot,
    gain_of,
    told_gain,
    told_gpus,
)


def speed_up(draft: Draft, loads: Loads, residents: Sequence[Resident], terms: Terms) -> list[Proposal]:
    """Propose moves to faster types, the largest gain first."""
    hopes = [(ratio, kind, each) for each in residents for kind, ratio in _faster(each, terms)]
    hopes.sort(key=lambda hope: (-hope[0], hope[2].need.order, hope[1]))
    found = [_propose(draft, loads, resident, kind) for _, kind, resident in hopes[:JOBS_TRIED]]
    proposals = [proposal for proposal in found if proposal is not None]
    return sorted(proposals, key=lambda each: (-each.gain_ns, each.resident.need.order))


def _faster(resident: Resident, terms: Terms) -> Iterator[tuple[str, float]]:
    """Types on which it was measured to be clearly faster than on its own."""
    here = resident.rates.get(resident.gpu_type, 0.0)
    for kind, rate in sorted(resident.rates.items()):
        if here > 0 and 100 * rate >= (100 + terms.faster_percent) * here:
            yield kind, rate / here


def _propose(draft: Draft, loads: Loads, resident: Resident, kind: str) -> Proposal | None:
    held = loads.of(resident)
    spot = find_spot(draft, resident, loads.ranked(kind, len(resident.gpus))[:NODES_TRIED])
    if spot is None or not held or spot.worst > max(held):
        return None
    own = draft.board.load_of(resident.need)
    here, there = resident.rates[resident.gpu_type], resident.rates[kind]
    gain_ns = gain_of(resident, own / max(held), own / spot.worst * there / here)
    ((node, gpus),) = spot.place.parts
    text = (
        f"{there:.3g} mini-batches a second on {kind}, {here:.3g} on {resident.gpu_type}; "
        f"{told_gpus(node, gpus)} carries no more tickets"
    )
    return Proposal(resident, spot.place, (text, told_gain(resident, gain_ns)), gain_ns)
