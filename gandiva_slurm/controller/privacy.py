"""Who may see what, as Slurm has it: PrivateData, its operators and administrators, its coordinators.

Slurm's words mean here what they mean there: `jobs` hides others' jobs, `usage` what others have used and
`nodes` the nodes. Operators see all, coordinators what is of their accounts. As long as Slurm has not said
what is private, everything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pwd
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gandiva_slurm.logs import warn_once
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.slurm.accounts import Person
from gandiva_slurm.slurm.port import SlurmPort

JOBS, USAGE, NODES = "jobs", "usage", "nodes"
#: How old what Slurm has said may be before it is asked again, and how long a question waits for the first.
FRESH_S, FIRST_S = 60.0, 2.0
#: When it is asked again after it has not answered.
AGAIN_S = 5.0
_JOB = re.compile(r"\bjob (\d+)(?:_\d+)?\b")
#: Several in a sentence: "jobs 7 and 8", "jobs (7, 8)".
_JOBS = re.compile(r"\bjobs \(?\d+(?:(?:, | and )\d+)*\)?")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What is private, and who sees it all the same."""

    hidden: frozenset[str] = frozenset({JOBS, USAGE, NODES})
    people: tuple[Person, ...] = ()


@dataclass(frozen=True)
class Viewer:
    """One who asks. `accounts` are those that this user coordinates."""

    user: str
    sees_all: bool = False
    accounts: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()

    def sees(self, what: str, user: str, accounts: Collection[str] = ()) -> bool:
        """True when something of this kind, of that user and of those accounts, is this viewer's to see."""
        is_open = self.sees_all or what not in self.hidden
        return is_open or user == self.user or (bool(accounts) and self.accounts >= {*accounts})

    def users_seen(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Return of these users (None: all) those to ask the ledger for, lest others fill its answer."""
        if self.accounts or (self.sees_every(JOBS) and self.sees_every(USAGE)):
            return wanted
        own = frozenset({self.user})
        return own if wanted is None else wanted & own

    def sees_every(self, what: str) -> bool:
        """True when nothing of this kind is hidden."""
        return self.sees_all or what not in self.hidden


class Curtain:
    """Takes jobs and users that are not to be seen out of what is said.

    Whether a job may be seen, and which users may not, is asked where a text or a row needs it: most have no
    need of it, and there may be very many jobs.
    """

    def __init__(
        self, sees: Callable[[int], bool] | None = None, hidden: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`sees`: whether a job may be seen (None: all may); `hidden`: names of users that may not."""
        self._sees = sees
        self._hidden = hidden

    @property
    def is_open(self) -> bool:
        """True when nothing is taken out."""
        return self._sees is None

    @functools.cached_property
    def _users(self) -> frozenset[str]:
        return frozenset(self._hidden())

    def shows(self, job_id: int | None) -> bool:
        """True for a job that may be seen, and for none."""
        return not job_id or self._sees is None or self._sees(job_id)

    def over(self, text: str) -> str:
        """Return the sentence without them."""
        if self.is_open or not text:
            return text
        text = _JOB.sub(lambda match: match[0] if self.shows(int(match[1])) else "another job", text)
        text = _JOBS.sub(lambda match: match[0] if self._shows_all(match[0]) else "other jobs", text)
        for user in sorted((user for user in self._users if user in text), key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(user)}(?![\w-])", "another user", text)
        return text

    def _shows_all(self, text: str) -> bool:
        return all(self.shows(int(number)) for number in re.findall(r"\d+", text))

    def over_all(self, texts: Iterable[str]) -> list[str]:
        """Return all of them without."""
        return [self.over(text) for text in texts]


class Owned(Protocol):
    """A job, as far as it matters whose it is."""

    @property
    def job_id(self) -> int:
        """Its id."""

    @property
    def user(self) -> str:
        """Its user's name."""

    @property
    def account(self) -> str:
        """Its account."""


def viewer_of(rules: Rules, user: str) -> Viewer:
    """Return what a user may see by these rules."""
    if not rules.hidden:
        return Viewer("")
    person = next((one for one in rules.people if one.user == user), Person(user))
    return Viewer(user, person.is_operator, person.coordinates, rules.hidden)


def curtain(
    viewer: Viewer,
    find: Callable[[int], Owned | None],
    jobs: Callable[[], Iterable[Owned]],
    users: Callable[[], Iterable[str]],
) -> Curtain:
    """Return what hides jobs and users from a viewer, as far as they are hidden; `find`: a job by its id."""
    if viewer.sees_every(JOBS):
        return Curtain()

    def sees(job: Owned | None) -> bool:
        return job is not None and viewer.sees(JOBS, job.user, [job.account])

    def hidden() -> Iterable[str]:
        # Of others' jobs a coordinator alone sees some.
        others = {job.user for job in jobs() if sees(job)} if viewer.accounts else set[str]()
        return {*users()} - {"", viewer.user} - others

    return Curtain(lambda job_id: sees(find(job_id)), hidden)


class Privacy:
    """Knows Slurm's rules, as they were a minute ago at most while Slurm answers."""

    def __init__(self, read: Callable[[], Awaitable[Rules]], operators: frozenset[int]) -> None:
        self._read = read
        self._operators = operators
        self._rules = Rules()
        self._fresh_until_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._is_known = False

    async def viewer(self, uid: int) -> Viewer:
        """Return what a user may see."""
        if uid in self._operators:
            return Viewer("", sees_all=True)
        rules = await self.rules()
        # The directory of users may be on another machine.
        return viewer_of(rules, await asyncio.to_thread(_name_of, uid) if rules.hidden else "")

    async def rules(self) -> Rules:
        """Return what is private."""
        if time.monotonic() >= self._fresh_until_s and self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        if not self._is_known and self._reading is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._reading), FIRST_S)
        return self._rules

    async def _refresh(self) -> None:
        try:
            self._rules, self._is_known = await self._read(), True
            self._fresh_until_s = time.monotonic() + FRESH_S
        except GandivaError as err:
            log.debug("Slurm does not say what is private: %s", err)
            self._fresh_until_s = time.monotonic() + AGAIN_S
        finally:
            self._reading = None


async def read_rules(port: SlurmPort) -> Rules:
    """Ask Slurm what is private, and slurmdbd for whom it is not; GandivaError: Slurm does not say."""
    words = (await port.slurm_config()).get("PrivateData", "").lower().split(",")
    rules = Rules(frozenset(word.strip() for word in words) & Rules().hidden)
    if not rules.hidden:
        return rules
    try:
        return replace(rules, people=await port.people())
    except GandivaError as err:
        warn_once(log, f"operators and coordinators are not known: {err}")
        return rules


def _name_of(uid: int) -> str:
    """The name of a user; one that no job can have where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
