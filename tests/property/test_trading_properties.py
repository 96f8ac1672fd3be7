"""Trades: nobody loses, nothing is made or lost, no price can be moved, lies and splits gain nothing."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.port import Cluster, JobView, View
from gandiva_slurm.policy.trading.market import worth
from gandiva_slurm.policy.trading.pools import Claimant, isolated, own_shares
from gandiva_slurm.policy.trading.trades import claimants_of, divide

TYPES = ("v100", "p100", "k80")
SLOW_COUNT = 10**6

#: ties and speed-ups below one are frequent, types on which one cannot run or was not measured appear
SPEEDS = st.sampled_from(
    [None, "0", "0.4", "0.9", "1", "1.2", "1.25", "1.9", "2", "3", "4.81", "6.33", "9.9"]
)
#: how much faster a fast GPU is; not whether: that goes by the majority
WORTHS = st.integers(11, 100).map(lambda tenths: Fraction(tenths, 10))


@st.composite
def claimants(draw: st.DrawFn) -> list[Claimant]:
    users = []
    for number in range(draw(st.integers(1, 7))):
        speeds = {gpu_type: draw(SPEEDS) for gpu_type in TYPES}
        known = {gpu_type: Fraction(speed) for gpu_type, speed in speeds.items() if speed is not None}
        users.append(Claimant(f"u{number}", draw(st.integers(1, 20)), known, draw(st.integers(1, 3))))
    return users


COUNTS = st.fixed_dictionaries({gpu_type: st.integers(0, 16) for gpu_type in TYPES})


@settings(max_examples=150)
@given(claimants(), COUNTS)
def test_nobody_is_below_his_isolated_share_and_trades_only_add(
    users: list[Claimant], counts: dict[str, int]
) -> None:
    before, after, alone = own_shares(users, counts), divide(users, counts).holdings, isolated(users, counts)
    for user in users:
        floor = sum(part * user.speeds.get(name, 0) for name, part in alone[user.name].items())
        is_measured = all(name in user.speeds for name in TYPES)
        assert before.speed(user.name) <= after.speed(user.name)
        assert not is_measured or floor <= before.speed(user.name)


@settings(max_examples=150)
@given(claimants(), COUNTS)
def test_gpus_are_conserved_and_nobody_holds_more_than_he_asked_for(
    users: list[Claimant], counts: dict[str, int]
) -> None:
    holdings = divide(users, counts).holdings
    for name, count in counts.items():
        assert sum(held[name] for held in holdings.held.values()) + holdings.idle[name] == count
        assert min(held[name] for held in holdings.held.values()) >= 0 <= holdings.idle[name]
    for user in users:
        assert holdings.used(user.name) <= user.demand
        assert not any(holdings.held[user.name][name] for name, speed in user.speeds.items() if speed == 0)


@settings(max_examples=150)
@given(claimants(), COUNTS)
def test_an_idle_gpu_is_of_no_use_to_anybody(users: list[Claimant], counts: dict[str, int]) -> None:
    holdings = divide(users, counts).holdings
    for user in users:
        usable = sum(holdings.idle[name] for name in TYPES if user.speeds.get(name) != 0)
        #: what the last of many rounds of handing on may leave
        assert min(usable, holdings.room(user.name)) < Fraction(1, 100)


@settings(max_examples=150)
@given(claimants(), COUNTS)
def test_every_sale_is_at_anothers_bid_between_the_two_worths(
    users: list[Claimant], counts: dict[str, int]
) -> None:
    by_name = {user.name: user for user in users}
    for sale in divide(users, counts).trades:
        worths = {
            name: value for name in by_name if (value := worth(by_name[name].speeds, sale.goods)) is not None
        }
        assert sale.setter not in (sale.seller, sale.buyer)
        assert sale.price == (worths[sale.setter] if sale.setter else 1)
        assert worths[sale.seller] == sale.seller_worth < sale.price
        assert sale.price <= sale.buyer_worth == worths[sale.buyer]
        assert sale.amount > 0


def gain_of(worths: list[Fraction], liar: int, claim: Fraction, counts: dict[str, int]) -> Fraction:
    """What a user of two types gets done at his true worth, when he claims another."""
    seen = [claim if number == liar else worth for number, worth in enumerate(worths)]
    users = [
        Claimant(f"u{number}", 10**9, {"v100": worth, "k80": Fraction(1)})
        for number, worth in enumerate(seen)
    ]
    held = divide(users, counts).holdings.held[f"u{liar}"]
    return held["v100"] * worths[liar] + held["k80"]


@settings(max_examples=300)
@given(st.lists(WORTHS, min_size=3, max_size=8), st.data())
def test_no_lie_gains_while_no_purse_runs_dry(worths: list[Fraction], data: st.DataObject) -> None:
    """At fixed bids of the others: over- and understating, as buyer, seller or setter of the price."""
    liar, claim = data.draw(st.integers(0, len(worths) - 1)), data.draw(WORTHS)
    counts = {"v100": 8, "k80": SLOW_COUNT}
    assert gain_of(worths, liar, claim, counts) <= gain_of(worths, liar, worths[liar], counts)


@settings(max_examples=300)
@given(st.lists(WORTHS, min_size=3, max_size=3), st.integers(1, 60), st.data())
def test_no_lie_gains_among_three_whatever_their_purses(
    worths: list[Fraction], slow: int, data: st.DataObject
) -> None:
    liar, claim = data.draw(st.integers(0, 2)), data.draw(WORTHS)
    counts = {"v100": 6, "k80": slow}
    assert gain_of(worths, liar, claim, counts) <= gain_of(worths, liar, worths[liar], counts)


class Measured:
    """One rate for each model and type, the same for each GPU of a gang."""

    def __init__(self, rates: dict[tuple[str, str], int]) -> None:
        self.rates = rates

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return float(size * self.rates[model, gpu_type])

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        return None


MODELS = ("a", "b", "c")
RATES = st.fixed_dictionaries({(model, kind): st.integers(1, 12) for model in MODELS for kind in TYPES}).map(
    Measured
)
SIZES = st.lists(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4), min_size=3, max_size=3)


def held_by(
    sizes: list[list[int]], rates: Measured, tickets: dict[int, int]
) -> dict[str, dict[str, Fraction]]:
    """Divide among users of one model each, with jobs of these sizes."""
    jobs: dict[int, JobView] = {}
    for model, mine in zip(MODELS, sizes, strict=True):
        for size in mine:
            number = len(jobs)
            jobs[number] = JobView(number, model, size, number, model=model, tickets=tickets.get(number, 100))
    cluster = Cluster([("v100", 4), ("p100", 4), ("k80", 8)])
    return divide(claimants_of(View(0, cluster, jobs, rates), {}), cluster.counts).holdings.held


@settings(max_examples=60)
@given(SIZES, RATES)
def test_splitting_into_more_jobs_gains_nothing(sizes: list[list[int]], rates: Measured) -> None:
    split = [[1] * sum(sizes[0]), *sizes[1:]]
    assert held_by(split, rates, {}) == held_by(sizes, rates, {})


@settings(max_examples=30)
@given(SIZES, RATES, st.integers(1, 1000))
def test_tickets_of_a_job_do_not_change_its_users_share(
    sizes: list[list[int]], rates: Measured, tickets: int
) -> None:
    assert held_by(sizes, rates, {0: tickets}) == held_by(sizes, rates, {})
