"""Gang-aware stride with a user-level pass, in integers (Gandiva_fair; ADR 0009).

A *pass* is virtual time: GPU time held, divided by tickets. In one round the user of the lowest pass is asked
again and again for his gang of the lowest pass; it runs if its GPUs are still free, else it is skipped,
uncharged, so it stays low and heads a later round. Ties go by (pass, does not fill the pool, tickets,
submission order): the one key that gives both published tables. The user level keeps a user of a hundred jobs
from a hundred shares.

Passes only ever rise. Where one lags by more than a whole round of the pool, it is raised, with all below it,
until the gap is one round: nobody is locked out for the past use of GPUs that nobody wanted, and the order is
kept.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

#: Pass units for one unit of work at one ticket. A multiple of lcm(1..16), so that small ticket counts divide
#: it; what other counts leave over is carried to the next charge, so nothing is ever lost.
STRIDE1 = 720_720 * 10**6

Name = TypeVar("Name", bound=Hashable)


class Entrant(NamedTuple):
    """A gang that may run in a round. `mask` has a bit for each fixed GPU; 0 means any `size` of the pool."""

    key: Hashable
    user: str
    size: int
    tickets: int
    order: tuple[int, ...]
    job_pass: int = 0
    mask: int = 0


class UserPass(NamedTuple):
    """Where a user stands when a round begins."""

    value: int
    tickets: int


class Pool:
    """Free GPUs of one round, counted, and by index where gangs have fixed ones."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self._left = gpus
        self._taken = 0

    def take(self, size: int, mask: int) -> bool:
        """Take the GPUs of a gang, all or none; False when they are not all free."""
        if size > self._left or self._taken & mask:
            return False
        self.force(size, mask)
        return True

    def force(self, size: int, mask: int) -> None:
        """Mark GPUs as taken by a gang that holds them already, whatever else is marked."""
        self._left -= (mask & ~self._taken).bit_count() if mask else size
        self._taken |= mask

    @property
    def left(self) -> int:
        """GPUs still free."""
        return self._left


def run_round(
    entrants: Sequence[Entrant],
    users: Mapping[str, UserPass],
    pool: Pool,
    quantum: int,
    charged: Mapping[str, int] | None = None,
) -> list[Hashable]:
    """Return the gangs that run this round, in the order they were picked (gang-aware stride: Gandiva_fair).

    `charged` is GPU work already given to users in this round (gangs that cannot be parked now).
    Nothing is charged for good here: the pick costs a user `size * quantum` for the rest of this round only.
    """
    provisional = {user: at.value for user, at in users.items()}
    for user, work in (charged or {}).items():
        provisional[user] += work * STRIDE1 // users[user].tickets
    waiting = _by_user(entrants, pool.gpus)
    heap = [_heap_item(user, waiting[user][-1], provisional, users, pool.gpus) for user in waiting]
    heapq.heapify(heap)
    picked: list[Hashable] = []
    while heap and pool.left > 0:
        user = heapq.heappop(heap)[-1]
        gang = waiting[user].pop()
        if pool.take(gang.size, gang.mask):
            picked.append(gang.key)
            provisional[user] += gang.size * quantum * STRIDE1 // users[user].tickets
        if waiting[user]:
            heapq.heappush(heap, _heap_item(user, waiting[user][-1], provisional, users, pool.gpus))
    return picked


def _by_user(entrants: Iterable[Entrant], gpus: int) -> dict[str, list[Entrant]]:
    """Each user's gangs, the next to be asked last (popped from the end)."""
    waiting: dict[str, list[Entrant]] = {}
    for gang in entrants:
        waiting.setdefault(gang.user, []).append(gang)
    for gangs in waiting.values():
        gangs.sort(key=lambda g: (g.job_pass, g.size != gpus, g.tickets, g.order), reverse=True)
    return waiting


def _heap_item(
    user: str, gang: Entrant, provisional: Mapping[str, int], users: Mapping[str, UserPass], gpus: int
) -> tuple[int, bool, int, tuple[int, ...], str]:
    return (provisional[user], gang.size != gpus, users[user].tickets, gang.order, user)


@dataclass(slots=True)
class Account:
    """One pass. `debt` is the part of it that no levelling forgives: overruns, and what others waited for."""

    value: int
    tickets: int
    carry: int = 0
    debt: int = 0
    present: bool = True

    def charge(self, work: int, overrun: int, holders: int = 1) -> None:
        """Add GPU work; `overrun` of it was held past its quantum. One of `holders` is charged its part.

        Up to 16 holders divide STRIDE1: all of them together are charged the whole, exactly.
        """
        rise, self.carry = divmod(work * (STRIDE1 // holders) + self.carry, self.tickets)
        self.value += rise
        self.debt += overrun * (STRIDE1 // holders) // self.tickets

    def owe(self, work: int, most: int) -> None:
        """Make a debt of GPU work that was charged, as far as debts are not above `most` of it then."""
        owed, most = (each * STRIDE1 // self.tickets for each in (work, most))
        self.debt = max(self.debt, min(self.debt + owed, most))

    def reweigh(self, tickets: int) -> None:
        """Change the tickets: what was used is paid, only the future is dearer or cheaper."""
        self.carry = self.carry * tickets // self.tickets
        self.tickets = tickets


class PassBook(Generic[Name]):
    """The passes of all who share one pool, those who left included until the others have caught up."""

    def __init__(self) -> None:
        self.accounts: dict[Name, Account] = {}
        #: the lowest pass of those present, or of the last who was: where newcomers join
        self.floor = 0

    def set_members(self, tickets: Mapping[Name, int]) -> None:
        """Make exactly these present: newcomers at the lowest pass, whoever returns not below his old one."""
        if self._is_as_before(tickets):
            return
        self._raise_floor()
        for name, weight in tickets.items():
            account = self.accounts.setdefault(name, Account(self.floor, weight))
            account.reweigh(weight)
            if not account.present:
                account.value = max(account.value, self.floor)
        for name, account in self.accounts.items():
            account.present = name in tickets
        self._forget()

    def _is_as_before(self, tickets: Mapping[Name, int]) -> bool:
        """True when these are those present, by the same tickets, and nobody who left is remembered."""
        accounts = self.accounts
        return len(accounts) == len(tickets) and all(
            name in tickets and account.tickets == tickets[name] and account.present
            for name, account in accounts.items()
        )

    def settle(self, round_work: int) -> None:
        """Close gaps wider than a round of the whole pool, from below; order and differences above stay.

        The published clamp (pass ≤ lowest + one round) cuts from above; it makes equals of all who lead, and
        then the tie-break alone decides between them, for ever. Debt widens the gap that is allowed.
        """
        members = [account for account in self.accounts.values() if account.present]
        if any(account.debt for account in members):
            self._repay(members)
        members.sort(key=lambda account: account.value - account.debt, reverse=True)
        shift = 0
        for upper, lower in itertools.pairwise(members):
            cap = round_work * STRIDE1 // upper.tickets
            upper_level = upper.value - upper.debt
            lower.value += shift
            excess = upper_level - (lower.value - lower.debt) - cap
            if excess > 0:
                lower.value += excess
                shift += excess
        self._raise_floor()
        self._forget()

    def leads(self) -> dict[Name, int]:
        """Return by how much work each one present is ahead of the lowest, for its tickets."""
        present = {name: account for name, account in self.accounts.items() if account.present}
        lowest = min((account.value for account in present.values()), default=0)
        return {name: (acc.value - lowest) * acc.tickets // STRIDE1 for name, acc in present.items()}

    def adopt(self, leads: Mapping[Name, int]) -> None:
        """Have those present stand so far ahead, in passes, of a common start; it is a debt, and none falls.

        The others are not below that start.
        """
        present = {name: account for name, account in self.accounts.items() if account.present}
        told = {name: account for name, account in present.items() if name in leads}
        start = max((account.value - leads[name] for name, account in told.items()), default=self.floor)
        for name, account in present.items():
            if name in told:
                account.value, account.debt = start + leads[name], leads[name]
            else:
                account.value = max(account.value, start)
        self._raise_floor()

    def _repay(self, members: Sequence[Account]) -> None:
        """Debt is at most the lead over the lowest other: what they have caught up is repaid."""
        lowest = min(account.value for account in members)
        for account in members:
            account.debt = max(0, min(account.debt, account.value - lowest))

    def _raise_floor(self) -> None:
        present = [account.value for account in self.accounts.values() if account.present]
        if present:
            self.floor = max(self.floor, min(present))

    def _forget(self) -> None:
        """Drop those who left and have nothing to pay back any more."""
        gone = [name for name, acc in self.accounts.items() if not acc.present and acc.value <= self.floor]
        for name in gone:
            del self.accounts[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        rows = [
            [str(name), acc.value, acc.tickets, acc.carry, acc.debt, acc.present]
            for name, acc in self.accounts.items()
        ]
        return {"floor": self.floor, "accounts": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], read_name: Callable[[str], Name]) -> PassBook[Name]:
        """Read what `to_json` wrote."""
        book = cls()
        book.floor = int(data["floor"])
        for name, value, tickets, carry, debt, present in data["accounts"]:
            book.accounts[read_name(name)] = Account(value, tickets, carry, debt, present)
        return book
