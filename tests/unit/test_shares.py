"""policy.shares: tickets out of the association tree, splits, entitlements."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.shares.associations import (
    SCALE,
    Leaf,
    entitled_shares,
    job_weight,
    leaf_tickets,
    norm_shares,
    split,
)
from tests.builders import ACCOUNT, an_association_tree

TWO_ACCOUNTS = (
    Association("root", "", "", 1),
    Association("physics", "", "root", 1),
    Association("biology", "", "root", 1),
    Association("physics", "ann", "", 1),
    Association("physics", "ben", "", 1),
    Association("biology", "cat", "", 1),
)
ANN, BEN, CAT = Leaf("physics", "ann"), Leaf("physics", "ben"), Leaf("biology", "cat")


def tickets_of(rows: tuple[Association, ...], *leaves: Leaf) -> dict[str, float]:
    return {leaf.user: parts / SCALE for leaf, parts in leaf_tickets(rows, leaves).items()}


def test_flat_tree_gives_a_hundred_tickets_a_share_whoever_is_present() -> None:
    rows = an_association_tree(ann=1, ben=3)
    ann, ben = Leaf(ACCOUNT, "ann"), Leaf(ACCOUNT, "ben")
    assert tickets_of(rows, ann, ben) == {"ann": 100, "ben": 300}
    assert tickets_of(rows, ann) == {"ann": 100}


def test_accounts_share_first_their_users_then() -> None:
    assert tickets_of(TWO_ACCOUNTS, ANN, BEN, CAT) == {"ann": 75, "ben": 75, "cat": 150}


def test_what_an_absent_user_leaves_goes_to_his_account() -> None:
    assert tickets_of(TWO_ACCOUNTS, ANN, CAT) == {"ann": 100, "cat": 100}


def test_nested_accounts_share_level_by_level() -> None:
    rows = (*TWO_ACCOUNTS, Association("optics", "", "physics", 2), Association("optics", "dan", "", 1))
    got = tickets_of(rows, ANN, BEN, CAT, Leaf("optics", "dan"))
    assert got == {"ann": 50, "ben": 50, "dan": 100, "cat": 200}


def test_user_without_association_has_one_share() -> None:
    assert tickets_of((), Leaf("", "ann"), Leaf("", "ben")) == {"ann": 100, "ben": 100}
    rows = an_association_tree(ann=1)
    assert tickets_of(rows, Leaf(ACCOUNT, "ann"), Leaf(ACCOUNT, "new")) == {"ann": 100, "new": 100}


def test_user_without_a_share_runs_on_what_is_left() -> None:
    rows = an_association_tree(ann=0, ben=1)
    got = leaf_tickets(rows, [Leaf(ACCOUNT, "ann"), Leaf(ACCOUNT, "ben")])
    assert got == {Leaf(ACCOUNT, "ann"): 1, Leaf(ACCOUNT, "ben"): 100 * SCALE}


def test_users_who_all_have_no_share_share_evenly() -> None:
    rows = an_association_tree(ann=0, ben=0)
    got = tickets_of(rows, Leaf(ACCOUNT, "ann"), Leaf(ACCOUNT, "ben"))
    assert got == {"ann": 50, "ben": 50}


def test_accounts_in_a_circle_still_get_tickets() -> None:
    rows = (
        Association("a", "", "b", 1),
        Association("b", "", "a", 1),
        Association("a", "ann", "", 1),
        Association("b", "ben", "", 1),
    )
    got = tickets_of(rows, Leaf("a", "ann"), Leaf("b", "ben"))
    assert all(tickets > 0 for tickets in got.values())


def test_norm_shares_are_sshares_whoever_is_present() -> None:
    assert norm_shares(TWO_ACCOUNTS) == {ANN: Fraction(1, 4), BEN: Fraction(1, 4), CAT: Fraction(1, 2)}


@given(
    st.integers(0, 10**9), st.dictionaries(st.integers(0, 99), st.integers(0, 10**5), min_size=1, max_size=20)
)
def test_split_conserves_tickets(parts: int, weights: dict[int, int]) -> None:
    got = split(parts, weights)
    assert got.keys() == weights.keys()
    assert min(got.values()) >= 1
    if sum(weights.values()):
        assert sum(got.values()) == max(parts, len(weights))


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 1000), min_size=2, max_size=20))
def test_split_follows_weights_to_one_part(weights: dict[int, int]) -> None:
    got = split(100 * SCALE, weights)
    for name, weight in weights.items():
        exact = Fraction(100 * SCALE * weight, sum(weights.values()))
        assert abs(got[name] - exact) <= len(weights)


def test_weight_rises_with_tickets_and_priority() -> None:
    assert job_weight(100, 50) == 5100
    assert job_weight(200, 50) == 2 * job_weight(100, 50)
    assert job_weight(100, 100) > job_weight(100, 50) > job_weight(100, 0) > 0


@pytest.mark.parametrize(
    "tickets, demand, capacity, want",
    [
        ({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 99, "c": 99}, 8, {"a": 2, "b": 3, "c": 3}),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, 8, {"a": 1, "b": 2}),
        ({"a": 2, "b": 1}, {"a": 9, "b": 9}, 6, {"a": 4, "b": 2}),
        ({"a": 1, "b": 1}, {"a": 9}, 4, {"a": 4, "b": 0}),
        ({"a": 3, "b": 1, "c": 1}, {"a": 1, "b": 4, "c": 1}, 4, {"a": 1, "b": 2, "c": 1}),
        ({"a": 1, "b": 1, "c": 1}, {"a": 9, "b": 9, "c": 9}, 4, dict.fromkeys("abc", Fraction(4, 3))),
    ],
)
def test_entitled_shares_fill_like_water(
    tickets: dict[str, int], demand: dict[str, int], capacity: int, want: dict[str, Fraction]
) -> None:
    assert entitled_shares(tickets, demand, capacity) == want


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30)),
    st.integers(1, 40),
)
def test_entitled_shares_waste_nothing(
    tickets: dict[str, int], demand: dict[str, int], capacity: int
) -> None:
    got = entitled_shares(tickets, demand, capacity)
    asked = {user: demand.get(user, 0) for user in tickets}
    assert sum(got.values()) == min(capacity, sum(asked.values()))
    assert all(got[user] <= asked[user] for user in tickets)
    unmet = [user for user in tickets if got[user] < asked[user]]
    levels = {got[user] / tickets[user] for user in unmet}
    assert len(levels) <= 1, "all who want more have the same per ticket"
    assert all(got[user] / tickets[user] <= level for user in tickets for level in levels)
