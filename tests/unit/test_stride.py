"""policy.stride: the published tables, exactness, and who keeps which pass."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from gandiva_slurm.sim.paper.result import published
from gandiva_slurm.slicing.stride import STRIDE1, Account, Entrant, PassBook, Pool, UserPass, run_round

TABLES = published("stride")


def play(table: dict, rounds: int) -> list[dict]:
    """Run a table's jobs, each as a user of its own, and write down what the table does."""
    gpus, jobs, order = table["numGPUs"], table["jobs"], table["order"]
    accounts = {name: Account(0, jobs[name]["tickets"]) for name in order}
    played = []
    for t in range(rounds):
        entrants = [
            Entrant(name, name, jobs[name]["gpus"], jobs[name]["tickets"], (place,))
            for place, name in enumerate(order)
        ]
        users = {name: UserPass(account.value, account.tickets) for name, account in accounts.items()}
        run = run_round(entrants, users, Pool(gpus), 1)
        passes = [Fraction(accounts[name].value, STRIDE1) for name in order]
        played.append({"t": t, "pass": passes, "run": sorted(run)})
        for name in run:
            accounts[name].charge(jobs[name]["gpus"], 0)
    return played


@pytest.mark.parametrize("name", ["plain", "gang", "skip_over_added_by_us"])
def test_stride_reproduces_the_table(name: str) -> None:
    table = TABLES[name]
    want = [{**row, "pass": [Fraction(value) for value in row["pass"]]} for row in table["rounds"]]
    assert play(table, len(want)) == want


def test_stride_gang_table_repeats_every_five_rounds_without_idle_gpus() -> None:
    table = TABLES["gang"]
    played = play(table, 500)
    got = dict.fromkeys(table["order"], 0)
    for row in played:
        for name in row["run"]:
            got[name] += table["jobs"][name]["gpus"]
    assert got == dict.fromkeys(table["order"], 400)
    assert [row["run"] for row in played[:5]] * 99 == [row["run"] for row in played[5:500]]


def test_round_skips_a_gang_that_does_not_fit_and_does_not_charge_it() -> None:
    """A user's skipped gang costs it nothing: its next one is asked at once, before higher passes."""
    entrants = [
        Entrant("big", "u", 4, 1, (1,), job_pass=0),
        Entrant("small", "u", 1, 1, (2,), job_pass=5),
        Entrant("other", "v", 1, 1, (3,)),
    ]
    users = {"u": UserPass(0, 1), "v": UserPass(1, 1)}
    pool = Pool(4)
    pool.force(1, 0)
    assert run_round(entrants, users, pool, 1) == ["small", "other"]


def test_round_gives_fixed_gpus_only_when_all_are_free() -> None:
    entrants = [
        Entrant("ab", "u", 2, 1, (1,), mask=0b0011),
        Entrant("bc", "v", 2, 1, (2,), mask=0b0110),
        Entrant("cd", "w", 2, 1, (3,), mask=0b1100),
    ]
    users = {name: UserPass(0, 1) for name in "uvw"}
    assert run_round(entrants, users, Pool(4), 1) == ["ab", "cd"]


def test_round_counts_what_was_charged_before_it() -> None:
    """Who holds a pinned GPU comes after those who hold none."""
    entrants = [Entrant("a", "u", 1, 1, (1,)), Entrant("b", "v", 1, 1, (2,))]
    users = {"u": UserPass(0, 1), "v": UserPass(0, 1)}
    assert run_round(entrants, users, Pool(1), 1) == ["a"]
    assert run_round(entrants, users, Pool(1), 1, {"u": 1}) == ["b"]


def test_a_gang_costs_its_user_as_many_gpus_of_the_round_as_it_has() -> None:
    """After three GPUs of one user the other has its second before the first has its fourth."""
    entrants = [
        Entrant("wide", "u", 3, 1, (1,)),
        Entrant("more", "u", 1, 1, (2,)),
        Entrant("a", "v", 1, 1, (3,)),
        Entrant("b", "v", 1, 1, (4,)),
    ]
    users = {"u": UserPass(0, 1), "v": UserPass(0, 1)}
    assert run_round(entrants, users, Pool(5), 1) == ["wide", "a", "b"]


def test_round_splits_by_user_then_by_job() -> None:
    """Four jobs of one user get no more than one job of another."""
    entrants = [Entrant(f"u{n}", "u", 1, 1, (n,)) for n in range(4)]
    entrants += [Entrant(f"v{n}", "v", 1, 4, (9 + n,)) for n in range(2)]
    users = {"u": UserPass(0, 4), "v": UserPass(0, 4)}
    run = run_round(entrants, users, Pool(4), 1)
    assert sorted(run) == ["u0", "u1", "v0", "v1"]


@pytest.mark.parametrize("tickets", [1, 3, 7, 100_000_003])
def test_account_loses_nothing_to_rounding(tickets: int) -> None:
    """A thousand odd charges come to what one charge of their sum comes to."""
    rng = random.Random(tickets)
    charges = [rng.randrange(1, 10**12) for _ in range(1000)]
    piecemeal, at_once = Account(0, tickets), Account(0, tickets)
    for work in charges:
        piecemeal.charge(work, 0)
    at_once.charge(sum(charges), 0)
    assert (piecemeal.value, piecemeal.carry) == (at_once.value, at_once.carry)


def book_of(**passes: int) -> PassBook[str]:
    book: PassBook[str] = PassBook()
    book.set_members(dict.fromkeys(passes, 1))
    for name, rounds in passes.items():
        book.accounts[name].charge(rounds, 0)
    return book


def levels(book: PassBook[str]) -> dict[str, Fraction]:
    return {name: Fraction(account.value, STRIDE1) for name, account in book.accounts.items()}


def test_newcomer_joins_at_the_lowest_pass_present() -> None:
    book = book_of(a=7, b=4)
    book.set_members({"a": 1, "b": 1, "new": 1})
    assert levels(book)["new"] == 4


def test_returning_member_is_never_below_his_old_pass() -> None:
    book = book_of(a=7, b=4)
    book.set_members({"b": 1})
    book.set_members({"a": 1, "b": 1})
    assert levels(book) == {"a": 7, "b": 4}


def test_absent_member_gains_nothing_by_staying_away() -> None:
    book = book_of(a=7, b=4)
    book.set_members({"b": 1})
    book.accounts["b"].charge(10, 0)
    book.set_members({"a": 1, "b": 1})
    assert levels(book) == {"a": 14, "b": 14}


def test_member_alone_who_returns_to_an_empty_pool_keeps_his_pass() -> None:
    book = book_of(a=9)
    book.set_members({})
    book.set_members({"new": 1})
    assert levels(book)["new"] == 9


def test_absent_members_are_forgotten_once_others_caught_up() -> None:
    book = book_of(a=7, b=4)
    book.set_members({"b": 1})
    assert "a" in book.accounts
    book.accounts["b"].charge(3, 0)
    book.settle(1)
    assert "a" not in book.accounts


def test_settle_closes_gaps_from_below_and_keeps_the_order_above() -> None:
    book = book_of(far=100, near=97, last=0)
    book.settle(4)
    assert levels(book) == {"far": 100, "near": 97, "last": 93}


def test_settle_does_not_touch_gaps_of_less_than_a_round() -> None:
    book = book_of(a=4, b=0)
    before = levels(book)
    book.settle(4)
    assert levels(book) == before


def test_settle_allows_a_member_of_few_tickets_his_own_wide_gap() -> None:
    """One quantum costs a member of 1 ticket as much pass as a hundred cost one of 100: that lead is fair."""
    book: PassBook[str] = PassBook()
    book.set_members({"rich": 100, "poor": 1})
    book.accounts["poor"].charge(4, 0)
    book.settle(4)
    assert levels(book) == {"rich": 0, "poor": 4}


def test_settle_does_not_forgive_overrun() -> None:
    book = book_of(a=0, b=0)
    book.accounts["a"].charge(50, 45)
    book.settle(4)
    assert levels(book) == {"a": 50, "b": 1}, "five of the fifty were in time: only those are levelled"


def test_what_others_waited_for_is_owed_up_to_a_bound_beside_overruns() -> None:
    account = Account(0, 2)
    for work in (3, 3, 3):
        account.charge(work, 0)
        account.owe(work, 5)
    assert (account.value, account.debt) == (9 * STRIDE1 // 2, 5 * STRIDE1 // 2)
    account.charge(4, 4)
    account.owe(1, 5)
    assert account.debt == 9 * STRIDE1 // 2, "an overrun is owed whole"


def test_debt_shrinks_as_others_catch_up() -> None:
    book = book_of(a=0, b=0)
    book.accounts["a"].charge(50, 50)
    book.accounts["b"].charge(30, 0)
    book.settle(4)
    assert book.accounts["a"].debt == 20 * STRIDE1
    book.accounts["b"].charge(30, 0)
    book.settle(4)
    assert book.accounts["a"].debt == 0


def test_reweigh_changes_only_the_future() -> None:
    book = book_of(a=10, b=10)
    book.set_members({"a": 2, "b": 1})
    assert levels(book) == {"a": 10, "b": 10}
    book.accounts["a"].charge(10, 0)
    assert levels(book)["a"] == 15


def test_pass_book_survives_json() -> None:
    book = book_of(a=7, b=4, gone=9)
    book.accounts["a"].charge(3, 2)
    book.set_members({"a": 3, "b": 5})
    data = json.loads(json.dumps(book.to_json()))
    again = PassBook.from_json(data, str)
    assert again.accounts == book.accounts
    assert again.floor == book.floor


def test_leads_are_what_was_held_beyond_the_lowest() -> None:
    book: PassBook[str] = PassBook()
    book.set_members({"a": 3, "b": 1, "c": 2})
    for name, work in {"a": 600, "b": 100, "c": 900}.items():
        book.accounts[name].charge(work, 0)
    assert book.leads() == {"a": 300, "b": 0, "c": 700}, "b is lowest: 100 to a ticket"


def test_members_stand_as_far_apart_as_they_are_told_and_none_falls() -> None:
    book: PassBook[str] = PassBook()
    book.set_members({"a": 1, "b": 1, "c": 1})
    book.accounts["a"].value, book.accounts["b"].value, book.accounts["c"].value = 500, 40, 7
    before = {name: account.value for name, account in book.accounts.items()}
    book.adopt({"a": 100, "b": 350})
    after = {name: account.value for name, account in book.accounts.items()}
    assert after["b"] - after["a"] == 250
    assert all(after[name] >= before[name] for name in before)
    assert after["c"] == min(after["a"] - 100, after["b"] - 350), "of c nothing is known: it is behind"


def test_what_was_told_is_owed_whatever_a_round_is() -> None:
    book: PassBook[str] = PassBook()
    book.set_members({"a": 1, "b": 1})
    book.adopt({"a": 0, "b": 50 * STRIDE1})
    for _ in range(3):
        book.settle(1)
    assert book.leads() == {"a": 0, "b": 50}
    book.accounts["a"].charge(50, 0)
    book.settle(1)
    assert book.leads() == {"a": 0, "b": 0}
