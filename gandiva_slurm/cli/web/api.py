"""The API under /api/v1/: what `gandiva queue|why|nodes|share|acct --json` give, for the user who asks.

Whatever is asked how often, gandivactld is asked for one look (`look`), and beside it one by one (`lane`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gandiva_slurm.cli.client import VERSION
from gandiva_slurm.cli.jobids import (
    STATE_CODES,
    by_job_id,
    is_wanted,
    parse_job_id,
    parse_job_ids,
    parse_states,
)
from gandiva_slurm.cli.queue import is_shown, wanted_states
from gandiva_slurm.cli.times import parse_time
from gandiva_slurm.cli.web.answers import PATHS
from gandiva_slurm.cli.web.asked import Pages, Words, names, pages, require_known, window
from gandiva_slurm.cli.web.lane import Lane
from gandiva_slurm.cli.web.login import Login
from gandiva_slurm.cli.web.look import Look, Looks, Part
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.cli.web.whens import Whens
from gandiva_slurm.controller import curtained
from gandiva_slurm.model.errors import AuthError, GandivaError, PeerError, SlurmUnreachable, UsageError

ROOT = "/api/v1/"
#: Jobs of one answer of acct; the ledger's own bound is higher.
MOST_ACCOUNTED = 10_000
#: What is told of gandivactld itself; what may name jobs is for `gandiva check`.
_HEALTH = (
    *("cluster", "cycle", "stale_s", "started_s", "slurm"),
    *("slurm_error", "state_error", "errors", "rounds"),
)
#: Parameters of each path.
_KNOWN = {path: parameters for path, _, _, parameters in PATHS}
#: Parameters that say which of the rows, not what is asked.
_PAGES = ("offset", "limit")
_AWAY = (PeerError, AuthError, SlurmUnreachable)

Row = dict[str, Any]
Query = Callable[[str, Row], Any]


@dataclass
class Api:
    """Answers requests; `query` asks gandivactld a question with its arguments."""

    query: Query
    login: Login
    looks: Looks = field(init=False)
    whens: Whens = field(init=False)
    #: stories of jobs, and windows of the ledger, which take longer
    stories: Lane = field(default_factory=Lane)
    windows: Lane = field(default_factory=Lane)

    def __post_init__(self) -> None:
        """Have looks taken by the same way."""
        self.looks = Looks(lambda: dict(self.query("overview", {})))
        self.whens = Whens(self.query)
        self._answers = {
            "health": self._health,
            "jobs": self._jobs,
            "nodes": self._nodes,
            "shares": self._shares,
            "acct": self._acct,
        }

    async def answer(self, request: web.BaseRequest) -> bytes:
        """Return the JSON of an answer; GandivaError: there is none."""
        user = self.login.user(request.headers)
        name, _, job = request.path.removeprefix(ROOT).partition("/")
        answered = self._answers.get(name)
        if answered is None or (job and name != "jobs"):
            raise Refused(404, f"nothing is served there; known below {ROOT}: {', '.join(self._answers)}")
        words = require_known(request.query, () if job else _KNOWN[name])
        look = await self.looks.get()
        asker = Asker(user, look, look.part(user))
        return await (self._story(job, asker) if job else answered(words, asker))

    async def _health(self, words: Words, asker: Asker) -> bytes:
        ping = asker.look.ping
        told = {name: ping[name] for name in _HEALTH}
        return written(asker.look, {"user": asker.user, "gandivactld": ping["version"], **told})

    async def _jobs(self, words: Words, asker: Asker) -> bytes:
        part, part_of = asker.part, pages(words)
        wanted = tuple(sorted((name, text) for name, text in words.items() if name not in _PAGES))
        rows = part.once(("rows", wanted), lambda: _queue(words, part.rows))
        shown = _cut(rows, part_of)
        whens = self.whens.of([row["job_id"] for row in shown])

        def make() -> bytes:
            told = curtained.queue((row | {"when": whens[row["job_id"]]} for row in shown), part.curtain)
            return _inside(_told("jobs", told, part_of, len(rows)))

        return written(asker.look, {}, part.once(("jobs", wanted, part_of, self.whens.version), make))

    async def _nodes(self, words: Words, asker: Asker) -> bytes:
        part, part_of = asker.part, pages(words)

        def make() -> bytes:
            rows = asker.look.nodes_for(part)
            return _inside(_told("nodes", _cut(rows, part_of), part_of, len(rows)))

        return written(asker.look, {}, part.once(("nodes", part_of), make))

    async def _story(self, text: str, asker: Asker) -> bytes:
        wanted = parse_job_id(text)
        rows = [row for row in asker.part.rows if is_wanted(row, [wanted])]
        row = next((row for row in rows if row["job_id"] == wanted.job_id), rows[0] if rows else None)
        if row is None:
            raise Refused(404, f"Gandiva has no job {text[:40]} now; next: {ROOT}acct?job={wanted.job_id}")
        arguments = {"job_id": row["job_id"], "story": True}
        told = await self.stories.get(row["job_id"], asker.user, lambda: self.query("why", arguments))
        row = row | {"when": self.whens.of([row["job_id"]])[row["job_id"]]}
        (shown,) = curtained.queue([row], asker.part.curtain)
        return written(asker.look, {**curtained.why(told, asker.part.curtain), "job": shown})

    async def _shares(self, words: Words, asker: Asker) -> bytes:
        now_s = time.time()
        start_s, end_s = window(words, parse_time("midnight", now_s), now_s)
        arguments = {"start_s": start_s, "end_s": end_s, "now_s": now_s}
        key = ("share", words.get("start"), words.get("end"))
        told = await self.windows.get(key, asker.user, lambda: self.query("share", arguments))
        users, accounts = names(words, "user"), names(words, "account")
        shown = [
            row
            for row in told["users"]
            if (users is None or row["user"] in users)
            and (accounts is None or {*accounts} & {*row["account"].split(",")})
            and curtained.may_see_usage(row, asker.part.viewer)
        ]
        return written(asker.look, {"window": told["window"], "users": shown})

    async def _acct(self, words: Words, asker: Asker) -> bytes:
        part_of, arguments = pages(words), _arguments(words, asker)
        narrowed = {name: value for name, value in words.items() if name not in _PAGES}
        users = asker.part.viewer.users_seen(None)
        key = ("acct", *sorted(narrowed.items()), *sorted(users or ()))
        used = await self.windows.get(key, asker.user, lambda: self._accounted(arguments))
        wanted = parse_job_ids(words.get("job", ""))
        rows = curtained.used(
            (row for row in used["jobs"] if not wanted or is_wanted(row, wanted)), asker.part.viewer
        )
        told = _told("jobs", _cut(rows, part_of), part_of, len(rows))
        return written(asker.look, {"window": used["window"], **told})

    def _accounted(self, arguments: Row) -> Row:
        rows = self.query("acct", {**arguments, "mates": True})
        if len(rows) > MOST_ACCOUNTED:
            raise UsageError(f"more than {MOST_ACCOUNTED} jobs; next: name users or jobs, or less time")
        of_time = [arguments["start_s"], arguments["end_s"]]
        return {"window": of_time, "jobs": sorted(rows, key=by_job_id)}


@dataclass(frozen=True)
class Asker:
    """A user, and what that user sees now."""

    user: str
    look: Look
    part: Part


def refused(err: GandivaError) -> tuple[int, bytes]:
    """Return the status and the JSON for a request that has no answer."""
    status = err.status if isinstance(err, Refused) else 404
    status = 400 if isinstance(err, UsageError) else status
    status = 503 if isinstance(err, _AWAY) else status
    told: Row = {"version": VERSION, "error": str(err)}
    if isinstance(err, Refused) and err.age_s is not None:
        told["age_s"] = round(err.age_s, 3)
    return status, json.dumps(told).encode()


def written(look: Look, told: Row, made: bytes = b"") -> bytes:
    """Write an answer out: its version, its age, what is told, and what was written before."""
    head = json.dumps({"version": VERSION, "age_s": round(look.age_s, 3), **told}).encode()
    return head[:-1] + b", " + made + b"}" if made else head


def _told(name: str, rows: list[Row], part_of: Pages, total: int) -> Row:
    return {"total": total, "offset": part_of.offset, name: rows}


def _inside(told: Row) -> bytes:
    """Write an object out without its braces."""
    return json.dumps(told)[1:-1].encode()


def _cut(rows: list[Row], part_of: Pages) -> list[Row]:
    return rows[part_of.offset : part_of.offset + part_of.limit]


def _queue(words: Words, rows: list[Row]) -> list[Row]:
    users, states = names(words, "user"), wanted_states(words.get("state"))
    wanted = parse_job_ids(words.get("job", ""))
    return [row for row in rows if is_shown(row, users, wanted, states)]


def _arguments(words: Words, asker: Asker) -> Row:
    now_s = time.time()
    start_s, end_s = window(words, 0.0 if words.get("job") else parse_time("midnight", now_s), now_s)
    told: Row = {"start_s": start_s, "end_s": end_s, "now_s": now_s}
    asked = names(words, "user")
    users = asker.part.viewer.users_seen(None if asked is None else frozenset(asked))
    if users is not None:
        told["users"] = sorted(users)
    if words.get("account"):
        told["accounts"] = names(words, "account")
    if words.get("state"):
        told["states"] = list(parse_states(words["state"], STATE_CODES.values()))
    if words.get("job"):
        told["job_ids"] = sorted({job.job_id for job in parse_job_ids(words["job"])})
    return told
