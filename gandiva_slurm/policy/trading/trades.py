"""Trades between GPU types: everybody's own share, what others leave, then sales (Gandiva_fair; ADR 0019)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from gandiva_slurm.policy.port import JobView, View
from gandiva_slurm.policy.trading.market import Goods, Market, Trade, worths
from gandiva_slurm.policy.trading.pools import Claimant, Holdings, hand_on, own_shares
from gandiva_slurm.policy.trading.speedups import PARTS, user_speeds

#: Times all markets are gone through: a sale in one can open another. Two to six do.
MOST_PASSES = 8


@dataclass(frozen=True, slots=True)
class Division:
    """How the cluster is divided: what each user holds after the trades, and the trades."""

    holdings: Holdings
    trades: tuple[Trade, ...]

    def flows(self) -> dict[str, dict[str, Fraction]]:
        """Return by user and type what the trades brought him; negative: what they took."""
        result: dict[str, dict[str, Fraction]] = {}
        for sale in self.trades:
            for gpu_type, part in sale.flows:
                for name, sign in ((sale.buyer, 1), (sale.seller, -1)):
                    mine = result.setdefault(name, {})
                    mine[gpu_type] = mine.get(gpu_type, Fraction(0)) + sign * part
        return result


def divide(claimants: Sequence[Claimant], counts: Mapping[str, int], is_trading: bool = True) -> Division:
    """Give each user his own share, hand on what is left, and let them trade."""
    holdings = own_shares(claimants, counts)
    trades = tuple(trade(holdings)) if is_trading else ()
    hand_on(holdings)
    return Division(holdings, trades)


class Desk:
    """Keeps a division while nobody comes or goes: users, their GPUs, or types newly measured."""

    def __init__(self, is_trading: bool = True) -> None:
        self._is_trading = is_trading
        self._key: object = None
        self._division = Division(Holdings({}, {}), ())

    def division(self, claimants: Sequence[Claimant], counts: Mapping[str, int]) -> Division:
        """Return the division that holds now, made anew after an arrival or a departure."""
        who = tuple((one.name, one.demand, one.tickets, tuple(sorted(one.speeds))) for one in claimants)
        key = (who, tuple(counts.items()))
        if key != self._key:
            self._key, self._division = key, divide(claimants, counts, self._is_trading)
        return self._division


def claimants_of(
    view: View, tickets: Mapping[str, int], guess: Callable[[JobView], Mapping[str, float]] | None = None
) -> list[Claimant]:
    """Return the users of the live jobs in order of arrival: GPUs asked for, measured speeds.

    `guess`: a job's rates by type, forecast where there are none: what a user may hope for.
    """
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
            _hopes(mine, guess) if guess else {},
        )
        for user, mine in jobs.items()
    ]


def _hopes(jobs: Sequence[JobView], guess: Callable[[JobView], Mapping[str, float]]) -> dict[str, Fraction]:
    """The sum of what each of his GPUs might do on a type, of its best."""
    result: dict[str, Fraction] = {}
    for job in jobs:
        rates = guess(job)
        best = max(rates.values(), default=0.0)
        for gpu_type, rate in rates.items() if best > 0 else ():
            part = Fraction(rate / best).limit_denominator(PARTS)
            result[gpu_type] = result.get(gpu_type, Fraction(0)) + job.size * part
    whole = sum(job.size for job in jobs)
    return {gpu_type: part / whole for gpu_type, part in result.items()}


def trade(holdings: Holdings) -> list[Trade]:
    """Carry out all trades on these holdings, and return them in order. Nobody gets slower by any of them.

    When nobody sells at others' bids any more, GPUs change hands one for one, too.
    """
    markets = [Market(holdings, goods) for goods in markets_widest_first(holdings)]
    trades = [*_all_trades(markets)]
    for market in markets:
        market.one_for_one = True
    return [*trades, *_all_trades(markets)]


def _all_trades(markets: Sequence[Market]) -> Iterator[Trade]:
    """Go through all markets until nobody sells."""
    for _ in range(MOST_PASSES):
        sales = [sale for market in markets for sale in market.clear()]
        if not sales:
            return
        yield from sales


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
