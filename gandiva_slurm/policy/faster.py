"""Heterogeneity: a job goes to a faster GPU type.

By its own measured rates, or those of jobs like it; on a type where there are none, by what other jobs
typically gain there: moved once on a guess, it is measured. Only upwards, and only where the GPUs carry no
more tickets with it than its own do now: nobody pays with share for speed, and as no job goes back to a type
that was measured slower, it comes to an end. A type on which nobody was measured is not tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from statistics import median

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
    hopes = [(ratio, kind, each) for each in residents for kind, ratio in faster_types(each, terms)]
    hopes.sort(key=lambda hope: (-hope[0], hope[2].need.order, hope[1]))
    found = [_propose(draft, loads, resident, kind) for _, kind, resident in hopes[:JOBS_TRIED]]
    proposals = [proposal for proposal in found if proposal is not None]
    return sorted(proposals, key=lambda each: (-each.gain_ns, each.resident.need.order))


def faster_types(resident: Resident, terms: Terms) -> Iterator[tuple[str, float]]:
    """Types on which it was measured to be clearly faster than on its own."""
    here = resident.rates.get(resident.gpu_type, 0.0)
    for kind, rate in sorted({**resident.guesses, **resident.rates}.items()):
        if here > 0 and 100 * rate >= (100 + terms.faster_percent) * here:
            yield kind, rate / here


def _propose(draft: Draft, loads: Loads, resident: Resident, kind: str) -> Proposal | None:
    held = loads.of(resident)
    spot = find_spot(draft, resident, loads.ranked(kind, len(resident.gpus))[:NODES_TRIED])
    if spot is None or not held or spot.worst > max(held):
        return None
    own = draft.board.load_of(resident.need)
    is_known, here = kind in resident.rates, resident.rates[resident.gpu_type]
    there = resident.rates[kind] if is_known else resident.guesses[kind]
    gain_ns = gain_of(resident, own / max(held), own / spot.worst * there / here)
    ((node, gpus),) = spot.place.parts
    text = (
        f"{there:.3g} mini-batches a second on {kind}{'' if is_known else ' by what others gain there'}, "
        f"{here:.3g} on {resident.gpu_type}; {told_gpus(node, gpus)} carries no more tickets"
    )
    return Proposal(resident, spot.place, (text, told_gain(resident, gain_ns)), gain_ns)


def typical_gains(measured: Iterable[Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return what a job typically gains: (from type, to type) → the median of those measured on both."""
    found: dict[tuple[str, str], list[float]] = {}
    for rates in measured:
        for (here, slow), (there, fast) in permutations(rates.items(), 2):
            found.setdefault((here, there), []).append(fast / slow)
    return {pair: median(gains) for pair, gains in sorted(found.items())}


def guess_rates(
    rates: Mapping[str, float], here: str, gains: Mapping[tuple[str, str], float]
) -> dict[str, float]:
    """Return what a job may come to on the types it was not measured on; nothing before it was here."""
    if not rates.get(here):
        return {}
    unknown = {to: gain for (from_, to), gain in gains.items() if from_ == here and to not in rates}
    return {to: rates[here] * gain for to, gain in unknown.items()}
