"""Trades between GPU types: everybody's own share, what others leave, then sales (Gandiva_fair; ADR 0019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from gandiva_slurm.policy.hetero import Claimant, Holdings, hand_on, own_shares
from gandiva_slurm.policy.market import Goods, Market, Trade, worths
from gandiva_slurm.policy.port import JobView, View
from gandiva_slurm.policy.speedups import user_speeds

#: Times all markets are gone through: a sale in one can open another. Two to six do.
MOST_PASSES = 8


@dataclass(frozen=True, slots=True)
class Division:
    """How the cluster is divided: what each user holds after the trades, and the trades."""

    holdings: Holdings
    trades: tuple[Trade, ...]


def divide(claimants: Sequence[Claimant], counts: Mapping[str, int]) -> Division:
    """Give each user his own share, hand on what is left, and let them trade."""
    holdings = own_shares(claimants, counts)
    trades = tuple(trade(holdings))
    hand_on(holdings)
    return Division(holdings, trades)


class Desk:
    """Keeps a division while nobody comes or goes: users, their GPUs, or types newly measured."""

    def __init__(self) -> None:
        self._key: object = None
        self._division = Division(Holdings({}, {}), ())

    def division(self, claimants: Sequence[Claimant], counts: Mapping[str, int]) -> Division:
        """Return the division that holds now, made anew after an arrival or a departure."""
        who = tuple((one.name, one.demand, one.tickets, tuple(sorted(one.speeds))) for one in claimants)
        key = (who, tuple(counts.items()))
        if key != self._key:
            self._key, self._division = key, divide(claimants, counts)
        return self._division


def claimants_of(view: View, tickets: Mapping[str, int]) -> list[Claimant]:
    """Return the users of the live jobs in order of arrival: GPUs asked for, measured speeds."""
    jobs: dict[str, list[JobView]] = {}
    for job in view.jobs.values():
        jobs.setdefault(job.user, []).append(job)
    gpu_types = tuple(view.cluster.counts)
    return [
        Claimant(
            user,
            sum(job.size for job in mine),
            user_speeds(mine, view.rates, gpu_types),
            max(1, tickets.get(user, 1)),
        )
        for user, mine in jobs.items()
    ]


def trade(holdings: Holdings) -> list[Trade]:
    """Carry out all trades on these holdings, and return them in order. Nobody gets slower by any of them."""
    markets = [Market(holdings, goods) for goods in markets_widest_first(holdings)]
    trades: list[Trade] = []
    for _ in range(MOST_PASSES):
        before = len(trades)
        for market in markets:
            trades.extend(market.clear())
        if len(trades) == before:
            break
    return trades


def markets_widest_first(holdings: Holdings) -> list[Goods]:
    """Return what is traded: plain pairs of types before even sales, in each the widest gap of worths first.

    With fewer than three users who can compare there is nobody to set a price.
    """
    gaps: dict[Goods, Fraction] = {}
    types = holdings.gpu_types
    for one, other in combinations(types, 2):
        for goods in (Goods(one, other), *(Goods(one, other, third) for third in types)):
            values = list(worths(holdings, goods).values())
            if goods.filler in (one, other) or len(values) < 3:
                continue
            slower = sum(value < 1 for value in values)
            if slower > sum(value > 1 for value in values):
                goods, values = Goods(other, one, goods.filler), [1 / value for value in values]
            gaps[goods] = max(values) - min(values)
    return sorted(gaps, key=lambda goods: (bool(goods.filler), -gaps[goods]))
