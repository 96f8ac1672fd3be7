"""Tickets by name, by the account tree, and by what was used before; entitlement in the simulator's books."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.port import JobView, PolicySettings
from gandiva_slurm.policy.shares.associations import SCALE
from gandiva_slurm.policy.shares.tickets import TicketBook

S = 10**9
HOUR = 3600 * S
#: physics has two shares of three, ann two of three of it
TREE = (
    Association("physics", "", "root", 2),
    Association("biology", "", "root", 1),
    Association("physics", "ann", "", 2),
    Association("physics", "ben", "", 1),
    Association("biology", "cat", "", 1),
)


def job(number: int, user: str, account: str = "") -> JobView:
    return JobView(number, user, 1, number, account=account)


def parts(book: TicketBook, *jobs: JobView) -> dict[str, Fraction]:
    """Each user's part of the whole."""
    tickets = book.of(jobs)
    return {user: Fraction(own, sum(tickets.values())) for user, own in tickets.items()}


def test_tickets_by_name_are_one_where_nothing_is_said() -> None:
    book = TicketBook(PolicySettings(1, tickets={"ann": 3}))
    assert book.of([job(1, "ann"), job(2, "bob"), job(3, "ann")]) == {"ann": 3, "bob": 1}


def test_accounts_share_first_then_their_users() -> None:
    book = TicketBook(PolicySettings(1, associations=TREE))
    jobs = [job(1, "ann", "physics"), job(2, "ben", "physics"), job(3, "cat", "biology")]
    assert parts(book, *jobs) == pytest.approx({"ann": 4 / 9, "ben": 2 / 9, "cat": 3 / 9})


def test_what_an_absent_user_leaves_is_his_accounts_and_then_everybodys() -> None:
    book = TicketBook(PolicySettings(1, associations=TREE))
    ben, cat = job(2, "ben", "physics"), job(3, "cat", "biology")
    assert parts(book, ben, cat) == pytest.approx({"ben": 2 / 3, "cat": 1 / 3})
    assert parts(book, ben) == {"ben": 1}


def test_a_user_of_two_accounts_has_what_he_has_in_each() -> None:
    book = TicketBook(PolicySettings(1, associations=(*TREE, Association("biology", "ann", "", 1))))
    jobs = [job(1, "ann", "physics"), job(2, "ann", "biology"), job(3, "cat", "biology")]
    assert parts(book, *jobs) == pytest.approx({"ann": 5 / 6, "cat": 1 / 6})


def test_past_use_fades_by_the_half_life() -> None:
    """ann had all for an hour: half of what counts, one whole share of two, so half of her tickets."""
    book = TicketBook(PolicySettings(1, half_life_ns=HOUR))
    jobs = (job(1, "ann"), job(2, "bob"))
    assert book.of(jobs) == {"ann": SCALE, "bob": SCALE}
    book.note(HOUR, {"ann": 8}, 8)
    assert book.of(jobs) == {"ann": SCALE // 2, "bob": SCALE}
    book.note(HOUR, {}, 8)
    assert book.of(jobs) == {"ann": round(SCALE * 0.5**0.5), "bob": SCALE}
    book.note(40 * HOUR, {}, 8)
    assert book.of(jobs) == {"ann": SCALE, "bob": SCALE}


def test_what_past_use_does_is_told() -> None:
    book = TicketBook(PolicySettings(1, half_life_ns=HOUR))
    book.note(HOUR, {"ann": 8}, 8)
    book.of([job(1, "ann"), job(2, "bob")])
    assert {user: told.fair_share for user, told in book.of_users().items()} == {"ann": 0.5, "bob": 1}
    assert [*book.told("bob")] == []
    (line,) = book.told("ann")
    assert line.startswith("ann held 50 % of the GPUs of late (half-life 1 h) and has 50 % of its tickets")
    idle = TicketBook(PolicySettings(1))
    idle.note(HOUR, {"ann": 8}, 8)
    idle.of([job(1, "ann")])
    assert idle.of_users() == {} and [*idle.told("ann")] == []


def test_past_use_is_the_same_in_many_small_steps() -> None:
    whole, small = (TicketBook(PolicySettings(1, half_life_ns=HOUR)) for _ in range(2))
    whole.note(HOUR, {"ann": 4}, 8)
    for _ in range(3600):
        small.note(S, {"ann": 4}, 8)
    assert small.of([job(1, "ann"), job(2, "bob")]) == whole.of([job(1, "ann"), job(2, "bob")])


def test_users_who_held_what_is_theirs_are_equal_again() -> None:
    book = TicketBook(PolicySettings(1, half_life_ns=HOUR))
    book.note(HOUR, {"ann": 8}, 8)
    book.note(50 * HOUR, {"ann": 4, "bob": 4}, 8)
    assert parts(book, job(1, "ann"), job(2, "bob")) == {"ann": Fraction(1, 2), "bob": Fraction(1, 2)}


def test_past_use_leaves_a_sixteenth_at_least() -> None:
    book = TicketBook(PolicySettings(1, half_life_ns=HOUR))
    book.note(99 * HOUR, {"u0": 8}, 8)
    tickets = book.of([job(n, f"u{n}") for n in range(100)])
    assert tickets["u0"] == SCALE // 16 and tickets["u1"] == SCALE


def test_without_a_half_life_past_use_does_not_matter() -> None:
    book = TicketBook(PolicySettings(1))
    book.note(99 * HOUR, {"ann": 8}, 8)
    assert book.of([job(1, "ann"), job(2, "bob")]) == {"ann": 1, "bob": 1}
