"""Heterogeneity: a job goes to a GPU type on which it gets more done.

That is its rate there times its part of the GPUs: a faster type, or a slower one that is far less crowded.
By its own measured rates, or those of jobs like it; on a type where there are none, by a guess: moved once on
a guess, it is measured. Only where the GPUs carry no more tickets with it than its own do now: nobody pays
with share for speed. As each move clearly raises what the job gets done, and makes no GPU more crowded than
its own was, it comes to an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from statistics import median

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.moves import (
    JOBS_TRIED,
    Loads,
    Proposal,
    Resident,
    Terms,
    find_spot,
    gain_of,
    told_gain,
    told_place,
)

#: A type that nobody was measured on is taken for so many times as fast as the job's own, until it is tried.
HOPE = 1.5


def speed_up(draft: Draft, loads: Loads, residents: Sequence[Resident], terms: Terms) -> list[Proposal]:
    """Propose moves to types on which more gets done, the largest gain first."""
    hopes = [
        (_hope(draft, loads, each, kind), kind, each) for each in residents for kind in other_types(each)
    ]
    hopes = [hope for hope in hopes if hope[0] > 0]
    hopes.sort(key=lambda hope: (-hope[0], hope[2].need.order, hope[1]))
    found = [_propose(draft, loads, resident, kind, terms) for _, kind, resident in hopes[:JOBS_TRIED]]
    proposals = [proposal for proposal in found if proposal is not None]
    return sorted(proposals, key=lambda each: (-each.gain_ns, each.resident.need.order))


def other_types(resident: Resident) -> dict[str, float]:
    """How many times as fast as on its own type it is on each other one, measured or guessed."""
    here = resident.rates.get(resident.gpu_type, 0.0)
    rates = {**resident.guesses, **resident.rates} if here else {}
    return {kind: rate / here for kind, rate in sorted(rates.items()) if rate and kind != resident.gpu_type}


def _hope(draft: Draft, loads: Loads, resident: Resident, kind: str) -> float:
    """The most a job could gain on a type, were there room; nothing where it would be more crowded."""
    held, least = loads.of(resident), loads.least(kind, resident)
    if not held or least is None:
        return 0.0
    worst, own = max(held), draft.board.load_of(resident.need)
    if own + least > worst:
        return 0.0
    return gain_of(resident, own / worst, own / (own + least) * other_types(resident)[kind])


def _propose(draft: Draft, loads: Loads, resident: Resident, kind: str, terms: Terms) -> Proposal | None:
    held = loads.of(resident)
    spot = find_spot(draft, resident, loads.best(kind, resident))
    if spot is None or not held or spot.worst > max(held):
        return None
    own = draft.board.load_of(resident.need)
    is_known, here = kind in resident.rates, resident.rates[resident.gpu_type]
    there = resident.rates[kind] if is_known else resident.guesses[kind]
    before, after = own / max(held), own / spot.worst * there / here
    if 100 * after < (100 + terms.faster_percent) * before:
        return None
    gain_ns = gain_of(resident, before, after)
    text = (
        f"{there:.3g} mini-batches a second on {kind}{'' if is_known else ', as is guessed of others'}, "
        f"{here:.3g} on {resident.gpu_type}; {told_place(spot.place)} carries no more tickets"
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
    rates: Mapping[str, float],
    here: str,
    kinds: Iterable[str],
    gains: Mapping[tuple[str, str], float],
    namesakes: Mapping[str, float],
) -> dict[str, float]:
    """Return what a job may come to on the types it was not measured on; nothing before it was here.

    `namesakes`: what jobs of its name and size, of whatever user, were measured at. Where they were not, by
    what others gain between two types. Where nobody was on both, a little more than what it has: each type is
    tried by one, and then it is known.
    """
    if not rates.get(here):
        return {}
    found = {}
    for kind in kinds:
        likely = [rate * gains[known, kind] for known, rate in rates.items() if (known, kind) in gains]
        if kind not in rates:
            found[kind] = namesakes.get(kind) or max(likely, default=HOPE * rates[here])
    return found
