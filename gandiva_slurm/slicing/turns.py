"""Whose turn it is: a pass for every user, and inside it one for each of his jobs (ADR 0009).

The two-level book that a node's stride, the central one and the whole cluster's are kept in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gandiva_slurm.slicing.stride import STRIDE1, PassBook, UserPass


class Turns:
    """The passes of all users of one pool of GPUs, and of their jobs by number."""

    def __init__(self) -> None:
        self._users: PassBook[str] = PassBook()
        self._jobs: dict[str, PassBook[int]] = {}

    def set_members(self, users: Mapping[str, int], jobs: Mapping[str, Mapping[int, int]]) -> None:
        """Make exactly these present: users by tickets, and the jobs of each by their own.

        Newcomers join at the lowest pass present, whoever returns not below his old one.
        """
        self._users.set_members(users)
        for user in self._users.accounts:
            self._jobs.setdefault(user, PassBook()).set_members(jobs.get(user, {}))
        self._forget_users()

    def charge(self, user: str, job_id: int, work: int, overrun: int = 0, holders: int = 1) -> None:
        """Charge GPU time that was held, all GPUs together; a job that is gone is charged to its user.

        `overrun` is the part of it past the end of a quantum: a debt that levelling does not forgive. Of
        `holders` that held the same GPUs all that time each is charged its part.
        """
        if user in self._users.accounts:
            self._users.accounts[user].charge(work, overrun, holders)
        if user in self._jobs and job_id in self._jobs[user].accounts:
            self._jobs[user].accounts[job_id].charge(work, overrun, holders)

    def owe(self, user: str, work: int, most: int) -> None:
        """Make a debt, up to `most` in all, of GPU time that a user was charged: others waited for it."""
        if user in self._users.accounts:
            self._users.accounts[user].owe(work, most)

    def owe_own(self, user: str, job_id: int, work: int, most: int) -> None:
        """Make a debt of what a job was charged, towards others of its user, which waited for it."""
        if user in self._jobs and job_id in self._jobs[user].accounts:
            self._jobs[user].accounts[job_id].owe(work, most)

    def settle(self, round_work: int) -> None:
        """Level the passes; once a quantum, after its charges. `round_work` is a quantum of all GPUs."""
        self._users.settle(round_work)
        for book in self._jobs.values():
            book.settle(round_work)
        self._forget_users()

    def job_pass(self, user: str, job_id: int) -> int:
        """Return where a job stands among its user's; KeyError when it is no member."""
        return self._jobs[user].accounts[job_id].value

    def user_pass(self, user: str) -> int:
        """Return where a user stands."""
        return self._users.accounts[user].value

    def tickets(self, user: str) -> int:
        """Return a user's tickets."""
        return self._users.accounts[user].tickets

    def standing(self, later: Mapping[str, int] | None = None) -> dict[str, UserPass]:
        """Return where all users stand; `later` is what some are asked later by, in passes of one ticket."""
        extra = later or {}
        return {
            name: UserPass(account.value + extra.get(name, 0) // account.tickets, account.tickets)
            for name, account in self._users.accounts.items()
        }

    def passes(self) -> tuple[Mapping[str, int], Mapping[int, int]]:
        """Return the passes of all users and of all jobs (for `why`, tests and invariants)."""
        users = {user: account.value for user, account in self._users.accounts.items()}
        jobs = {job: acc.value for book in self._jobs.values() for job, acc in book.accounts.items()}
        return users, jobs

    def ahead(self) -> dict[int, tuple[int, int]]:
        """Return by job the GPU time that its user, and the job among its user's, has had beyond the last.

        Each is that beyond the one furthest behind, for its own tickets, in the unit of what is charged.
        """
        users = self._users.leads()
        return {
            job: (users[user], lead)
            for user, book in self._jobs.items()
            if user in users
            for job, lead in book.leads().items()
        }

    def adopt(self, users: Mapping[str, int], jobs: Mapping[str, Mapping[int, int]]) -> None:
        """Have users and jobs stand as far apart as they are told, in passes; no pass falls."""
        self._users.adopt(users)
        for user, leads in jobs.items():
            self._jobs[user].adopt(leads)

    def told(self, user: str, job_id: int) -> Iterator[str]:
        """Say where a job and its user stand, for `gandiva why`; nothing of one that is no member."""
        users = {name: account for name, account in self._users.accounts.items() if account.present}
        book = self._jobs.get(user, PassBook[int]())
        jobs = {job: account.value for job, account in book.accounts.items() if account.present}
        if user not in users or job_id not in jobs:
            return
        own = users[user]
        lowest = min(account.value for account in users.values())
        before = sum(account.value < own.value for account in users.values())
        ahead_s = (own.value - lowest) * own.tickets / STRIDE1 / 1e9
        if before:
            more = f"it has had {ahead_s:.0f} s of GPU time more for its tickets than the first"
            yield f"{before} of {len(users)} users go before {user}: {more}"
        elif len(users) > 1:
            yield f"of {len(users)} users none goes before {user}"
        if len(jobs) > 1:
            first = sum(value < jobs[job_id] for value in jobs.values())
            yield f"of the {len(jobs)} jobs{f' of {user}' if user else ''} {first} go before it"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        jobs = {user: book.to_json() for user, book in self._jobs.items()}
        return {"users": self._users.to_json(), "jobs": jobs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Turns:
        """Read what `to_json` wrote."""
        turns = cls()
        turns._users = PassBook.from_json(data["users"], str)
        turns._jobs = {user: PassBook.from_json(book, int) for user, book in data["jobs"].items()}
        return turns

    def _forget_users(self) -> None:
        for user in [user for user in self._jobs if user not in self._users.accounts]:
            del self._jobs[user]
