"""Exchange: two jobs of one size change places between two GPU types (Gandiva_fair, trading).

A faster place that is free, or carries no more tickets, is seldom there on a busy cluster. But a job that
gains much by a fast type may be on a slow one while another, that gains little by it, has the fast one. They
change places when the product of both speeds rises by `faster_percent`, and neither has clearly less of its
GPUs than before: speed is exchanged, not GPU time.

It ends: what is multiplied are the speeds of all jobs, parts of GPUs included; an exchange raises that
product, as every move to a faster or a less crowded place does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from itertools import permutations, product
from typing import NamedTuple

from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.moves import (
    JOBS_TRIED,
    LEAST_PART,
    SECOND_NS,
    WORTH,
    Loads,
    Proposal,
    Resident,
    Terms,
    tickets,
)
from gandiva_slurm.policy.placement import Place


class Swap(NamedTuple):
    """Who goes up to the faster type, and who makes way for him."""

    up: Proposal
    down: Proposal


def exchange(draft: Draft, loads: Loads, residents: Iterable[Resident], terms: Terms) -> Swap | None:
    """Find the exchange that gains most time, of those who may move now; None where there is none."""
    there: dict[tuple[tuple[int, int], str], list[Resident]] = {}
    for each in residents:
        if not each.bar and each.rates.get(each.gpu_type) and loads.of(each):
            there.setdefault((each.shape, each.gpu_type), []).append(each)
    swaps = [swap for up, down in _candidates(there) if (swap := _swap(draft, loads, up, down, terms))]
    return max(swaps, key=lambda swap: swap.up.gain_ns, default=None)


def _candidates(
    there: Mapping[tuple[tuple[int, int], str], Sequence[Resident]],
) -> Iterator[tuple[Resident, Resident]]:
    """Of each size and two types, those who gain most by the one with those who lose least by the other."""
    for (size, slow), (other, fast) in permutations(sorted(there), 2):
        if size == other:
            gain = partial(_speedup, slow=slow, fast=fast)
            ups = nlargest(JOBS_TRIED, there[size, slow], gain)
            yield from product(ups, nsmallest(JOBS_TRIED, there[size, fast], gain))


def _swap(draft: Draft, loads: Loads, up: Resident, down: Resident, terms: Terms) -> Swap | None:
    """The exchange of these two, if it is worth what it costs both."""
    if up.need.is_opportunistic and not down.need.is_opportunistic:
        return None
    gains, loses = (_speedup(each, up.gpu_type, down.gpu_type) for each in (up, down))
    to, back = down.place, up.place
    if gains <= 1 or not 0 < (100 + terms.faster_percent) * loses <= 100 * gains:
        return None
    mine, theirs = (draft.board.load_of(each.need) for each in (up, down))
    slow, fast = max(loads.of(up)), max(loads.of(down))
    then_slow, then_fast = slow - mine + theirs, fast - theirs + mine
    most = 100 + terms.balance_percent
    if 100 * then_fast > most * slow or 100 * then_slow > most * fast:
        return None
    if 100 * gains * slow * fast < (100 + terms.faster_percent) * loses * then_slow * then_fast:
        return None
    # both in time at the speed that each has on the faster type for it
    horizon_ns = min(up.horizon_ns, down.horizon_ns)
    won = mine / then_fast - mine / slow / gains
    lost = (theirs / fast - theirs / then_slow / loses) / max(1.0, 1 / loses)
    gain_ns = round(horizon_ns * (won - lost))
    if gain_ns <= WORTH * (up.cost_ns + down.cost_ns) or LEAST_PART * gain_ns < horizon_ns:
        return None
    if not _have_room(draft, up, to, down, back):
        return None
    why = (
        f"job {up.need.job_id} is {gains:.3g} times as fast on {down.gpu_type} as on {up.gpu_type}"
        f"{_told_guess(up, down.gpu_type)}, job {down.need.job_id} {loses:.3g} times"
        f"{_told_guess(down, up.gpu_type)}",
        f"worth {gain_ns // SECOND_NS} s to both within {horizon_ns // SECOND_NS} s, "
        f"costs {(up.cost_ns + down.cost_ns) // SECOND_NS} s",
        f"tickets on its GPUs, before and then: job {up.need.job_id} {tickets(slow)}, {tickets(then_fast)}; "
        f"job {down.need.job_id} {tickets(fast)}, {tickets(then_slow)}",
    )
    return Swap(Proposal(up, to, why, gain_ns), Proposal(down, back, why, gain_ns))


def _speedup(each: Resident, slow: str, fast: str) -> float:
    """How many times as fast it is on the fast type, as far as is known or guessed; 0: it is not."""
    here, there = (each.rates.get(kind) or each.guesses.get(kind, 0.0) for kind in (slow, fast))
    return there / here if here else 0.0


def _told_guess(each: Resident, kind: str) -> str:
    return "" if kind in each.rates else " (a guess)"


def _have_room(draft: Draft, up: Resident, to: Place, down: Resident, back: Place) -> bool:
    """True when each finds room beside the other: whoever comes first need not wait."""
    sites = draft.board.sites
    ways = [(sites[node], need) for need, place in ((up.need, to), (down.need, back)) for node in place.nodes]
    may = all(site.may_take(need) for site, need in ways)
    return may and draft.board.has_room(up.need, to) and draft.board.has_room(down.need, back)
