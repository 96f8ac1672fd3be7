"""Trades of GPUs of one type for GPUs of another, at a second price (Gandiva_fair, papers' §2; ADR 0019).

A user bids for a fast GPU what it is worth to him in slow ones: his measured speed-up. For each pair of
types, the widest gap of speed-ups first, the highest bidder who has slow GPUs in use buys from the holder of
fast ones to whom they are worth least. The price is the best bid of the other users that is above the
seller's worth and not above the buyer's; at a tie it is the buyer's own worth: he is indifferent, and the
seller gains. Who has no slow GPUs left bids no more.

Who set the price of a sale below the buyer's worth does not buy from that seller afterwards: else it would be
good to bid the buyer's purse empty, and then to buy below one's own bid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from gandiva_slurm.policy.hetero import Claimant, Holdings, hand_on, own_shares
from gandiva_slurm.policy.port import JobView, View
from gandiva_slurm.policy.speedups import speedup, user_speeds

#: Times all pairs of types are gone through: a sale in one can open another. Two to six do.
MOST_PASSES = 8
#: Smaller sales are not worth a move.
LEAST_SALE = Fraction(1, 10**6)


class Pair(NamedTuple):
    """Two GPU types; the first is faster for more users than the second."""

    fast: str
    slow: str


@dataclass(frozen=True, slots=True)
class Trade:
    """A sale, and why: `amount` fast GPUs for `amount` x `price` slow ones, over time."""

    seller: str
    buyer: str
    pair: Pair
    amount: Fraction
    #: slow GPUs for a fast one
    price: Fraction
    #: speed-up of the fast type for each; `seller_worth` < `price` <= `buyer_worth`
    seller_worth: Fraction
    buyer_worth: Fraction
    #: whose bid was the price
    setter: str

    @property
    def paid(self) -> Fraction:
        """Slow GPUs that go from the buyer to the seller."""
        return self.amount * self.price

    @property
    def evidence(self) -> str:
        """The sale in one sentence, for `gandiva why` and `gandiva share`."""
        fast, slow = self.pair
        return (
            f"{self.seller} gives {self.buyer} {float(self.amount):.3g} {fast} "
            f"for {float(self.paid):.3g} {slow}: a {fast} is worth "
            f"{float(self.seller_worth):.3g} {slow} to {self.seller}, "
            f"{float(self.buyer_worth):.3g} to {self.buyer}; price {float(self.price):.3g}, "
            f"bid by {self.setter}"
        )


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
    markets = [_Market(holdings, pair) for pair in pairs_widest_first(holdings)]
    trades: list[Trade] = []
    for _ in range(MOST_PASSES):
        before = len(trades)
        for market in markets:
            trades.extend(market.clear())
        if len(trades) == before:
            break
    return trades


def pairs_widest_first(holdings: Holdings) -> list[Pair]:
    """Return the pairs of types that at least three users can compare, widest gap of speed-ups first.

    With fewer there is nobody to set a price.
    """
    gaps: dict[Pair, Fraction] = {}
    for pair in combinations(holdings.gpu_types, 2):
        worths = _worths(holdings, Pair(*pair))
        if len(worths) < 3:
            continue
        slower = sum(worth < 1 for worth in worths)
        if slower > sum(worth > 1 for worth in worths):
            worths, pair = [1 / worth for worth in worths], pair[::-1]
        gaps[Pair(*pair)] = max(worths) - min(worths)
    return sorted(gaps, key=lambda pair: -gaps[pair])


def _worths(holdings: Holdings, pair: Pair) -> list[Fraction]:
    """The speed-ups that were measured in a pair."""
    found = (speedup(claimant.speeds, *pair) for claimant in holdings.claimants.values())
    return [worth for worth in found if worth is not None]


class _Market:
    """The sales of one pair of types."""

    def __init__(self, holdings: Holdings, pair: Pair) -> None:
        self._holdings = holdings
        self._pair = pair
        found = {name: speedup(one.speeds, *pair) for name, one in holdings.claimants.items()}
        self._worth = {name: worth for name, worth in found.items() if worth is not None}
        steps = {worth: step for step, worth in enumerate(sorted(set(self._worth.values())))}
        #: bids as whole numbers in their order: compared far oftener than computed with
        self._step = {name: steps[worth] for name, worth in self._worth.items()}
        #: (seller, user): the user has set the price of a sale of that seller
        self._setters: set[tuple[str, str]] = set()

    def clear(self) -> Iterator[Trade]:
        """Sell until nobody can buy any more."""
        while sale := self._next():
            self._settle(sale)
            yield sale

    def _next(self) -> Trade | None:
        """The sale of the highest bidder to whom somebody sells."""
        fast, slow = self._pair
        held, step = self._holdings.held, self._step
        bidders = sorted((name for name in step if held[name][slow] > 0), key=lambda name: -step[name])
        sellers = sorted((name for name in step if held[name][fast] > 0), key=step.__getitem__)
        for buyer in bidders:
            for seller in sellers:
                if step[seller] >= step[buyer]:
                    break
                sale = self._sale(buyer, seller, bidders)
                if sale:
                    return sale
        return None

    def _sale(self, buyer: str, seller: str, bidders: Sequence[str]) -> Trade | None:
        """The sale between these two; None: no price or room, or the buyer has set a price of this seller."""
        if (seller, buyer) in self._setters:
            return None
        setter = self._price_setter(buyer, seller, bidders)
        if setter is None:
            return None
        price = self._worth[setter]
        amount = self._amount(buyer, seller, price)
        if amount < LEAST_SALE:
            return None
        worth = self._worth
        return Trade(seller, buyer, self._pair, amount, price, worth[seller], worth[buyer], setter)

    def _price_setter(self, buyer: str, seller: str, bidders: Sequence[str]) -> str | None:
        """The other user whose bid is best, above the seller's worth and not above the buyer's."""
        for name in bidders:
            is_other = name not in (buyer, seller)
            if is_other and self._step[seller] < self._step[name] <= self._step[buyer]:
                return name
        return None

    def _amount(self, buyer: str, seller: str, price: Fraction) -> Fraction:
        """Fast GPUs that can change hands: what is there, and what each can use of what he gets."""
        held, (fast, slow) = self._holdings.held, self._pair
        amount = min(held[seller][fast], held[buyer][slow] / price)
        if price > 1:
            return min(amount, self._holdings.room(seller) / (price - 1))
        return min(amount, self._holdings.room(buyer) / (1 - price)) if price < 1 else amount

    def _settle(self, sale: Trade) -> None:
        """Move the GPUs; those whose bid was a price below the buyer's may not buy from this seller."""
        fast, slow = self._pair
        giver, taker = self._holdings.held[sale.seller], self._holdings.held[sale.buyer]
        giver[fast] -= sale.amount
        taker[fast] += sale.amount
        giver[slow] += sale.paid
        taker[slow] -= sale.paid
        if sale.price < sale.buyer_worth:
            same = (name for name, step in self._step.items() if step == self._step[sale.setter])
            self._setters.update((sale.seller, name) for name in same)
