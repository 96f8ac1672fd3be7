"""Speed-ups, own shares and trades: the paper's slide and table, the cases worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from gandiva_slurm.policy.trading.market import Goods, Trade, worth
from gandiva_slurm.policy.trading.pools import Claimant, fill, isolated, own_shares
from gandiva_slurm.policy.trading.trades import Division, divide
from gandiva_slurm.sim.paper.trading import speed_ups
from tests import patience

TESTS = Path(__file__).parents[1]
THREE = ("v100", "p100", "k80")
CLUSTER = {"v100": 12, "p100": 24, "k80": 128}
#: speed-ups over a K80 on V100 and P100: the paper's models, and one between them
MODELS = {model.replace("Resolution", "Res"): (at["v100"], at["p100"]) for model, at in speed_ups().items()}
VK, PK = Goods("v100", "k80"), Goods("p100", "k80")


def a_claimant(name: str, *speeds: str | Fraction | None, demand: int = 200, tickets: int = 1) -> Claimant:
    """A user by his speeds on v100, p100, k80; None: not measured."""
    known = {kind: Fraction(speed) for kind, speed in zip(THREE, speeds, strict=True) if speed is not None}
    return Claimant(name, demand, known, tickets)


def users_of(*models: str, counts: Mapping[str, int] = CLUSTER) -> list[Claimant]:
    users = [a_claimant(f"user{n}", *MODELS[model], "1") for n, model in enumerate(models, 1)]
    return [
        Claimant(user.name, user.demand, {kind: user.speeds[kind] for kind in counts}, user.tickets)
        for user in users
    ]


def gains_of(users: Sequence[Claimant], division: Division) -> list[float]:
    """What each got faster by trading, in per cent, to a tenth."""
    before = own_shares(users, division.holdings.counts)
    gains = [100 * (division.holdings.speed(user.name) / before.speed(user.name) - 1) for user in users]
    return [round(float(gain), 1) for gain in gains]


def sales_of(division: Division) -> list[tuple[str, str, Goods, Fraction, Fraction]]:
    return [(sale.seller, sale.buyer, sale.goods, sale.amount, sale.price) for sale in division.trades]


def test_the_trading_run_leaves_two_users_in_the_middle_as_they_are() -> None:
    users = users_of("VAE", "MID", "MID", "ResNeXt50")
    division = divide(users, CLUSTER)
    assert sales_of(division) == [
        ("user1", "user4", VK, Fraction(3), Fraction(3)),
        ("user1", "user4", PK, Fraction(6), Fraction("2.5")),
    ]
    assert gains_of(users, division) == [30.6, 0, 0, 26.0]


def test_the_trading_run_with_four_models_of_the_paper() -> None:
    users = users_of("VAE", "SuperRes", "LSTM", "ResNeXt50")
    division = divide(users, CLUSTER)
    assert sales_of(division) == [
        ("user1", "user4", VK, Fraction(3), Fraction("4.81")),
        ("user2", "user4", VK, Fraction(3), Fraction("4.81")),
        ("user1", "user4", PK, Fraction("3.14") / Fraction("3.58"), Fraction("3.58")),
    ]
    assert gains_of(users, division) == [29.8, 18.4, 0, 12.7]
    assert division.holdings.held["user4"]["k80"] == 0


def test_the_trading_run_is_the_same_in_any_order_of_users() -> None:
    users = users_of("VAE", "SuperRes", "LSTM", "ResNeXt50")
    division = divide(users[::-1], CLUSTER)
    assert gains_of(users, division) == [29.8, 18.4, 0, 12.7]


def test_four_users_of_two_types() -> None:
    """Worked out by hand, by the rule of Gandiva_fair."""
    counts = {"v100": 12, "k80": 128}
    users = users_of("VAE", "SuperRes", "LSTM", "ResNeXt50", counts=counts)
    division = divide(users, counts)
    assert [(sale.seller, sale.amount, sale.price) for sale in division.trades] == [
        ("user1", 3, Fraction("4.81")),
        ("user2", 3, Fraction("4.81")),
    ]
    held = division.holdings.held
    assert [held[user.name]["v100"] for user in users] == [0, 0, 3, 9]
    assert [held[user.name]["k80"] for user in users] == list(map(Fraction, ("46.43", "46.43", "32", "3.14")))
    assert gains_of(users, division) == [29.9, 23.5, 0, 17.9]


def test_the_slide() -> None:
    """The example of the talk on Gandiva_fair (EuroSys 2020)."""
    users = [a_claimant("U1", "1.2", None, "1"), a_claimant("U2", "6", None, "1")]
    users.append(a_claimant("U3", "2", None, "1"))
    sale = divide(users, {"v100": 3, "k80": 30}).trades[0]
    assert (sale.seller, sale.buyer, sale.price, sale.setter) == ("U1", "U2", 2, "U3")


def test_a_tie_at_the_top_trades_at_the_buyers_own_worth() -> None:
    users = [a_claimant(name, worth, None, "1") for name, worth in (("a", "2"), ("b", "5"), ("c", "5"))]
    division = divide(users, {"v100": 3, "k80": 30})
    assert {sale.price for sale in division.trades} == {5}
    assert gains_of(users, division)[1:] == [0, 0] and gains_of(users, division)[0] > 0


def test_two_users_have_nobody_to_set_a_price() -> None:
    users = [a_claimant("a", "2", None, "1"), a_claimant("b", "6", None, "1")]
    assert divide(users, {"v100": 3, "k80": 30}).trades == ()


def test_equal_users_do_not_trade() -> None:
    users = [a_claimant(name, "4", "2", "1") for name in "abcd"]
    assert divide(users, CLUSTER).trades == ()


def test_nobody_trades_what_he_was_not_measured_on() -> None:
    users = [a_claimant("a", None, None, "1"), a_claimant("b", "5", None, "1")]
    users += [a_claimant("c", "3", None, "1"), a_claimant("d", "2", None, None)]
    assert divide(users, CLUSTER).trades == ()
    users[0] = a_claimant("a", "1.1", None, "1")
    assert {sale.seller for sale in divide(users, CLUSTER).trades} == {"a"}


def test_a_speed_up_below_one_makes_a_seller_who_gains_by_every_price() -> None:
    """Four of Gavel's models run slower on the newer card."""
    users = [a_claimant("slower", "0.66", None, "1"), a_claimant("b", "4", None, "1")]
    users.append(a_claimant("c", "2", None, "1"))
    division = divide(users, {"v100": 3, "k80": 30})
    assert division.holdings.held["slower"]["v100"] == 0
    assert min(gains_of(users, division)) >= 0


def test_who_set_a_price_does_not_buy_from_that_seller_below_it() -> None:
    """user3's bids emptied user4's purse; his own bid would then be the highest, at user2's price."""
    division = divide(users_of("VAE", "SuperRes", "LSTM", "ResNeXt50"), CLUSTER)
    assert division.holdings.held["user1"]["p100"] > 5
    assert not [sale for sale in division.trades if sale.buyer == "user3"]


def test_a_full_seller_takes_no_more_gpus_than_he_gives() -> None:
    """Prices above one would give him more GPUs than he can use; he sells to whoever bids less."""
    users = [a_claimant("full", "0.4", None, "1", demand=3)]
    others = (("b", "4"), ("c", "0.8"), ("d", "3"))
    users += [a_claimant(name, worth, None, "1", demand=9) for name, worth in others]
    division = divide(users, {"v100": 4, "k80": 8})
    assert all(division.holdings.room(user.name) >= 0 for user in users)
    assert {sale.price for sale in division.trades if sale.seller == "full"} == {Fraction("0.8")}


def test_a_trade_says_why() -> None:
    sale = divide(users_of("VAE", "MID", "MID", "ResNeXt50"), CLUSTER).trades[0]
    assert sale.evidence == (
        "user1 gives user4 3 v100 for 9 k80: a v100 is worth 1.25 k80 to user1, 6.33 to user4; "
        "price 3, bid by user2"
    )
    assert isinstance(sale, Trade) and sale.paid == 9


def test_own_share_is_used_best_type_first_and_not_above_demand() -> None:
    users = [a_claimant("a", "4", "2", "1", demand=5), a_claimant("b", "1", "3", "2", demand=100)]
    holdings = own_shares(users, {"v100": 4, "p100": 4, "k80": 4})
    assert holdings.held["a"] == {"v100": 2, "p100": 2, "k80": 1}
    assert holdings.held["b"] == {"v100": 2, "p100": 2, "k80": 3}


def test_idle_gpus_are_left_only_where_nobody_can_use_them() -> None:
    users = [a_claimant("a", "4", "2", "0", demand=100), a_claimant("b", "1", "0", "0", demand=1)]
    holdings = own_shares(users, {"v100": 4, "p100": 4, "k80": 4})
    assert holdings.idle == {"v100": 0, "p100": 0, "k80": 4}


def test_shares_go_by_tickets() -> None:
    users = [a_claimant("a", "4", "2", "1"), a_claimant("b", "4", "2", "1", tickets=3)]
    assert own_shares(users, CLUSTER).held["b"] == {"v100": 9, "p100": 18, "k80": 96}
    assert isolated(users, CLUSTER)["a"] == {"v100": 3, "p100": 6, "k80": 32}


def test_a_type_not_measured_yet_is_used_last() -> None:
    user = a_claimant("a", None, "2", "1")
    assert user.best_first(THREE) == ["p100", "k80", "v100"]


def test_isolated_is_scaled_to_demand() -> None:
    users = [a_claimant("a", "4", "2", "1", demand=1), a_claimant("b", "4", "2", "1")]
    assert sum(isolated(users, CLUSTER)["a"].values()) == 1


def test_fill_gives_what_one_does_not_want_to_the_others() -> None:
    wants = {"a": Fraction(1), "b": Fraction(9), "c": Fraction(9)}
    assert fill(Fraction(9), wants, {"a": 1, "b": 1, "c": 3}) == {"a": 1, "b": 2, "c": 6}
    assert fill(Fraction(99), wants, {"a": 1, "b": 1, "c": 3}) == wants


def test_the_oracle_agrees_on_gavels_ten_job_sets() -> None:
    pytest.importorskip("scipy", reason="needs the extra `sim`")
    answer = subprocess.run(
        [
            sys.executable,
            TESTS / "oracles/trading.py",
            TESTS / "data/gavel/gavel_alloc_snapshots_dev.json",
        ],
        capture_output=True,
        text=True,
        timeout=60 * patience.slowness(),
        check=False,
    )
    verdict = json.loads(answer.stdout)
    assert (answer.returncode, verdict["agree"], len(verdict["snapshots"])) == (0, True, 10)
    # 1.0157 is the least of the ten; 0.98 is asked for
    assert min(entry["of_perf"] for entry in verdict["snapshots"]) > 1


def test_the_fast_type_is_the_one_that_is_faster_for_most() -> None:
    users = [a_claimant(name, worth, None, "1") for name, worth in (("a", "0.5"), ("b", "0.6"), ("c", "4"))]
    assert {sale.goods for sale in divide(users, {"v100": 3, "k80": 6}).trades} == {Goods("k80", "v100")}


def full_users() -> list[Claimant]:
    """Three who hold as much as they asked for, with K80s to spare: V100s are scarce, then P100s."""
    speeds = {"little": ("2", "1.9"), "some": ("4", "2.5"), "much": ("8", "2.5")}
    return [a_claimant(name, *pair, "1", demand=4) for name, pair in speeds.items()]


def test_where_room_bounds_a_sale_most_gpus_change_hands() -> None:
    """a has room for half a GPU. At 6, d's bid, it could sell a tenth; at 2, b's, it sells its half."""
    worths = {"a": "1.5", "b": "2", "c": "7", "d": "6"}
    users = [a_claimant(name, worth, None, "1", demand=2) for name, worth in worths.items()]
    sales = divide(users, {"v100": 2, "k80": 4}).trades
    assert [(s.seller, s.buyer, s.setter, s.price, s.amount) for s in sales if s.seller == "a"] == [
        ("a", "c", "b", 2, Fraction(1, 2))
    ]


def test_full_users_change_one_for_one_where_nobody_bids_between() -> None:
    """a is slower on a V100, and full, as b and c are: no price but one is of use to any two."""
    worths = {"a": "0.5", "b": "3", "c": "4"}
    users = [a_claimant(name, worth, None, "1", demand=2) for name, worth in worths.items()]
    sales = divide(users, {"v100": 3, "k80": 3}).trades
    assert [(s.seller, s.buyer, s.setter, s.price, s.amount) for s in sales] == [("a", "c", "", 1, 1)]
    assert sales[0].evidence.endswith("price 1, one for one")


def test_full_users_trade_evenly_with_a_third_type() -> None:
    """little's V100 adds 1 to a K80, his P100 0.9; some's 3 and 1.5: price 2 P100s, less one K80."""
    users, counts = full_users(), {"v100": 3, "p100": 6, "k80": 30}
    sale, *_ = divide(users, counts).trades
    assert (sale.seller, sale.buyer, sale.goods) == ("little", "much", Goods("v100", "p100", "k80"))
    assert (sale.price, sale.seller_worth, sale.setter) == (2, Fraction(10, 9), "some")
    assert sale.paid - sale.amount == sale.filled > 0
    assert "made even by" in sale.evidence
    assert min(gains_of(users, divide(users, counts))) >= 0 < max(gains_of(users, divide(users, counts)))


def test_even_sales_leave_everybody_as_many_gpus_as_before() -> None:
    users, counts = full_users(), {"v100": 3, "p100": 6, "k80": 30}
    before, after = own_shares(users, counts), divide(users, counts).holdings
    assert [after.used(user.name) for user in users] == [before.used(user.name) for user in users]


def test_worth_above_a_filler_needs_types_faster_than_it() -> None:
    speeds = {"v100": Fraction(4), "p100": Fraction(2), "k80": Fraction(1)}
    assert worth(speeds, Goods("v100", "p100")) == 2
    assert worth(speeds, Goods("v100", "p100", "k80")) == 3
    assert worth(speeds, Goods("v100", "k80", "p100")) is None
    assert worth({**speeds, "k80": Fraction(0)}, Goods("v100", "p100", "k80")) is None
    assert worth({"v100": Fraction(4), "p100": Fraction(2)}, Goods("v100", "p100", "k80")) is None
    assert worth({"v100": Fraction(4)}, Goods("v100", "p100")) is None
