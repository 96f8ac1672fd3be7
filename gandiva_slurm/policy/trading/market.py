"""One market of two GPU types: who buys from whom, how much, at whose bid (Gandiva_fair; ADR 0019).

A user bids for a fast GPU what it is worth to him in slow ones: his measured speed-up. The highest bidder who
has slow GPUs in use buys from the holder of fast ones to whom they are worth least. The price is the best bid
of the other users that is above the seller's worth and not above the buyer's; at a tie it is the buyer's own
worth: he is indifferent, and the seller gains. Who has no slow GPUs left bids no more.

Who is full can take no more GPUs than he gives. Where that bounds a sale, the price is the other bid at which
most fast GPUs can change hands. Where nobody's bid is a price, and each of the two is faster on what the
other gives, they change one for one in the end.

Who set the price of a sale below the buyer's worth does not buy from that seller afterwards: else it would be
good to bid the buyer's purse empty, and then to buy below one's own bid.

For users that are full there are even sales, too: the difference in number is made up by GPUs of a third
type, the slowest for both, and worths are what the GPUs add to its speed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from gandiva_slurm.policy.trading.pools import NONE, Holdings
from gandiva_slurm.policy.trading.speedups import Speeds

#: Smaller sales are not worth a move.
LEAST_SALE = Fraction(1, 10**3)
#: What users have room for is sold in whole multiples of this: exact, numbers would grow with each sale.
SMALL = Fraction(1, 10**9)
#: Sets the price of GPUs that change hands one for one.
NOBODY = ""


class Goods(NamedTuple):
    """The GPU types of a market: `fast` is sold for `slow`, and `filler`, if any, makes the numbers even."""

    fast: str
    slow: str
    filler: str = ""


def worth(speeds: Speeds, goods: Goods) -> Fraction | None:
    """Return how many slow GPUs a fast one is worth to a user, above what the filler gives.

    None where a type was not measured or cannot be used, or is not faster than the filler.
    """
    base = speeds.get(goods.filler, NONE) if goods.filler else NONE
    fast, slow = (speeds.get(name, NONE) for name in (goods.fast, goods.slow))
    is_known = not goods.filler or base > 0
    return (fast - base) / (slow - base) if is_known and fast > base and slow > base else None


@dataclass(frozen=True, slots=True)
class Trade:
    """A sale, and why: `amount` fast GPUs for `amount` x `price` slow ones, over time."""

    seller: str
    buyer: str
    goods: Goods
    amount: Fraction
    #: slow GPUs for a fast one
    price: Fraction
    #: of the fast type to each; `seller_worth` < `price` <= `buyer_worth`
    seller_worth: Fraction
    buyer_worth: Fraction
    #: whose bid was the price; "": nobody's, one for one
    setter: str

    @property
    def paid(self) -> Fraction:
        """Slow GPUs that go from the buyer to the seller."""
        return self.amount * self.price

    @property
    def filled(self) -> Fraction:
        """GPUs of the filler that go from the seller to the buyer; negative: the other way."""
        return self.paid - self.amount if self.goods.filler else NONE

    @property
    def flows(self) -> tuple[tuple[str, Fraction], ...]:
        """What goes from the seller to the buyer by type; negative: the other way."""
        fast, slow, filler = self.goods
        plain = ((fast, self.amount), (slow, -self.paid))
        return (*plain, (filler, self.filled)) if filler else plain

    @property
    def evidence(self) -> str:
        """The sale in one sentence, for `gandiva why` and `gandiva share`."""
        fast, slow, filler = self.goods
        return (
            f"{self.seller} gives {self.buyer} {float(self.amount):.3g} {fast} "
            f"for {float(self.paid):.3g} {slow}"
            + (f", made even by {float(abs(self.filled)):.3g} {filler}" if filler else "")
            + f": a {fast} is worth {float(self.seller_worth):.3g} {slow} to {self.seller}, "
            f"{float(self.buyer_worth):.3g} to {self.buyer}; price {float(self.price):.3g}, "
            + (f"bid by {self.setter}" if self.setter else "one for one")
        )


class Market:
    """The sales of one kind of goods."""

    def __init__(self, holdings: Holdings, goods: Goods) -> None:
        self._holdings = holdings
        self._goods = goods
        self._worth = worths(holdings, goods)
        self._prices = sorted(set(self._worth.values()))
        steps = {worth: step for step, worth in enumerate(self._prices)}
        #: bids as whole numbers in their order: compared far oftener than computed with
        self._step = {name: steps[worth] for name, worth in self._worth.items()}
        #: by buyer: sellers that had nothing for that one, and nothing has changed since
        self._idle: dict[str, set[str]] = {}
        self._bidders: set[str] = set()
        #: (seller, user): the user has set the price of a sale of that seller
        self._setters: set[tuple[str, str]] = set()
        #: where nobody's bid is a price GPUs change hands one for one
        self.one_for_one = False

    def clear(self) -> Iterator[Trade]:
        """Sell until nobody can buy any more."""
        self._idle = {name: set() for name in self._step}
        while sale := self._next():
            self._settle(sale)
            yield sale

    def _next(self) -> Trade | None:
        """The sale of the highest bidder to whom somebody sells."""
        fast, slow, _ = self._goods
        held, step = self._holdings.held, self._step
        bidders = sorted((name for name in step if held[name][slow] > 0), key=lambda name: -step[name])
        sellers = sorted((name for name in step if held[name][fast] > 0), key=step.__getitem__)
        self._note_bidders({*bidders})
        for buyer in bidders:
            for seller in sellers:
                if step[seller] >= step[buyer]:
                    break
                sale = None if seller in self._idle[buyer] else self._sale(buyer, seller, bidders)
                if sale:
                    return sale
                self._idle[buyer].add(seller)
        return None

    def _note_bidders(self, bidders: set[str]) -> None:
        """Who has slow GPUs now and had none may set the price of others' sales."""
        step = self._step
        for name in sorted(bidders - self._bidders):
            for buyer, sellers in self._idle.items():
                if step[buyer] >= step[name]:
                    sellers.difference_update([other for other in sellers if step[other] < step[name]])
        self._bidders = bidders

    def _sale(self, buyer: str, seller: str, bidders: Sequence[str]) -> Trade | None:
        """The sale between these two; None: no price or room, or the buyer has set a price of this seller."""
        if (seller, buyer) in self._setters:
            return None
        setter = self._price_setter(buyer, seller, bidders)
        worths = self._worth
        if setter is not None:
            price = worths[setter]
        elif self.one_for_one and worths[seller] < 1 < worths[buyer]:
            setter, price = NOBODY, Fraction(1)
        else:
            return None
        held, (fast, slow, _) = self._holdings.held, self._goods
        amount = min(held[seller][fast], held[buyer][slow] / price, self._usable(buyer, seller, price))
        if amount < LEAST_SALE:
            return None
        return Trade(seller, buyer, self._goods, amount, price, worths[seller], worths[buyer], setter)

    def _price_setter(self, buyer: str, seller: str, bidders: Sequence[str]) -> str | None:
        """The other user whose bid is best, above the seller's worth and not above the buyer's.

        It is one at which the two can use all that the seller has; else that of the largest sale, nearest to
        one from above or from below.
        """
        step, low, high = self._step, self._step[seller], self._step[buyer]
        bids = [name for name in bidders if low < step[name] <= high and name not in (buyer, seller)]
        if not bids:
            return None
        limit = 1 + self._slack(seller) / self._holdings.held[seller][self._goods.fast]
        within, even = bisect_right(self._prices, limit), bisect_left(self._prices, 1)
        dear = [name for name in bids if step[name] >= even]
        best = next((name for name in dear if step[name] < within), None)
        if best is not None:
            return best
        nearest = [*dear[-1:], *bids[len(dear) : len(dear) + 1]]
        usable = {name: self._usable(buyer, seller, self._worth[name]) for name in nearest}
        largest = max(nearest, key=usable.__getitem__)
        return largest if usable[largest] > LEAST_SALE else None

    def _usable(self, buyer: str, seller: str, price: Fraction) -> Fraction:
        """Fast GPUs that can change hands at a price, by what each of the two can use of what it gets."""
        if price == 1:
            return self._holdings.held[seller][self._goods.fast]
        usable = self._slack(seller) / (price - 1) if price > 1 else self._slack(buyer) / (1 - price)
        return Fraction(int(usable / SMALL)) * SMALL

    def _slack(self, name: str) -> Fraction:
        """By how much a user can get more GPUs than he gives: into his room, or in place of the filler."""
        filler = self._goods.filler
        return self._holdings.held[name][filler] if filler else self._holdings.room(name)

    def _settle(self, sale: Trade) -> None:
        """Move the GPUs; those whose bid was a price below the buyer's may not buy from this seller."""
        giver, taker = self._holdings.held[sale.seller], self._holdings.held[sale.buyer]
        for name, part in sale.flows:
            giver[name] -= part
            taker[name] += part
        self._idle[sale.buyer], self._idle[sale.seller] = set(), set()
        for sellers in self._idle.values():
            sellers -= {sale.buyer, sale.seller}
        if sale.setter and sale.price < sale.buyer_worth:
            same = (name for name, step in self._step.items() if step == self._step[sale.setter])
            self._setters.update((sale.seller, name) for name in same)


def worths(holdings: Holdings, goods: Goods) -> Mapping[str, Fraction]:
    """Return what the fast type is worth to each user who can compare these goods."""
    found = {name: worth(claimant.speeds, goods) for name, claimant in holdings.claimants.items()}
    return {name: value for name, value in found.items() if value is not None}
