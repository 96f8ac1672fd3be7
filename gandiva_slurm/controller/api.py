"""POST /v1/query: what the command line asks, and the one change that it makes (`update`).

Everybody may see jobs, shares and nodes, but for what Slurm's PrivateData hides (`privacy`); holds, the raw
intervals, are for root and SlurmUser. A job is changed by its owner and by these two.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gandiva_slurm import __version__
from gandiva_slurm.accounting.database import open_reader
from gandiva_slurm.accounting.fairness import user_shares
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, OpenHold, held_by_job, holds_in, job_usage
from gandiva_slurm.accounting.report import usage_report
from gandiva_slurm.config import NS_PER_S
from gandiva_slurm.controller import curtained, foretold, overview, topmost
from gandiva_slurm.controller.arguments import Args, number, numbers, text, texts
from gandiva_slurm.controller.figures import figures, own_figures
from gandiva_slurm.controller.hiding import curtain_of, users_of
from gandiva_slurm.controller.loop import Controller
from gandiva_slurm.controller.privacy import JOBS, NODES, USAGE, Curtain, Privacy, Rules, Viewer
from gandiva_slurm.controller.requests import change_of
from gandiva_slurm.controller.views import World, in_order, node_rows, picked, queue_rows, why_row
from gandiva_slurm.controller.what_if import WhatIf
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.wish import parse_wish
from gandiva_slurm.policy.port import OfUser
from gandiva_slurm.slurm.jobs import fold_nodes

VERSION = 1
#: The SHARE of `gandiva queue` looks back so far.
SHARE_WINDOW_S = 60.0
#: Queries of the ledger at a time. They have threads of their own: however many users ask for however much,
#: what is signed for the nodes does not wait.
READERS = 2
#: What reads the ledger. A user's questions of these are answered one after the other, so that nobody waits
#: for the many of another.
READING = frozenset({"queue", "acct", "share", "report", "holds", "when", "top", "overview"})
#: Jobs are counted at most so often, however many ask: 50 ms of 50,000 jobs.
FIGURES_S = 1.0
#: How long a change may take until it is in the journal: some cycles, and less than the command line waits.
UPDATE_S = 4.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class Api:
    """Answers questions from the controller's memory and its ledger."""

    def __init__(
        self, controller: Controller, operators: frozenset[int], rules: Callable[[], Awaitable[Rules]]
    ) -> None:
        self._controller = controller
        self._operators = operators
        self._privacy = Privacy(rules, operators)
        #: answers `when --if`
        self.what_if: WhatIf | None = None
        self._readers = ThreadPoolExecutor(READERS, "ledger-reader")
        #: when figures were counted last, without and with users, and what came out
        self._figured: dict[bool, tuple[float, dict[str, Any]]] = {}
        #: jobs in an order of `gandiva top`, and when they were put in it
        self._ordered: dict[str, tuple[float, list[JobRecord]]] = {}
        #: by uid, while it has questions
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._asks: dict[str, Callable[[Args, Viewer], Awaitable[Any]]] = {
            "queue": self._queue,
            "acct": self._acct,
            "share": self._share,
            "report": self._report,
            "why": self._why,
            "when": self._when,
            "nodes": self._nodes,
            "holds": self._holds,
            "figures": self._figures,
            "top": self._top,
            "overview": self._overview,
            "ping": self._ping,
        }
        self._changes: dict[str, Callable[[Args, int], Awaitable[Any]]] = {"update": self._update}

    async def answer(self, payload: bytes, uid: int) -> bytes:
        """Answer one question; an error is an answer too."""
        try:
            return _json({"version": VERSION, "ok": True, "data": await self._data(payload, uid)})
        except GandivaError as err:
            return _json({"version": VERSION, "ok": False, "error": str(err), "exit": err.exit_code})
        except sqlite3.Error as err:
            log.warning("the ledger cannot be read: %s", err)
            text = f"the ledger cannot be read: {err}; see the controller's state_dir"
            return _json({"version": VERSION, "ok": False, "error": text, "exit": 1})

    async def _data(self, payload: bytes, uid: int) -> Any:
        try:
            question = json.loads(payload)
            ask, args = question["ask"], question.get("args") or {}
        except (ValueError, KeyError, TypeError, RecursionError) as err:
            raise UsageError('a question is {"ask": NAME, "args": {...}}') from err
        known = [*self._asks, *self._changes]
        if not isinstance(ask, str) or ask not in known or not isinstance(args, dict):
            raise UsageError(f"unknown question {str(ask)[:40]!r}; known: {', '.join(known)}")
        if ask in self._changes:
            return await self._changes[ask](args, uid)
        if ask == "holds" and uid not in self._operators:
            raise GandivaError("holds are shown to root and SlurmUser only; `gandiva acct` shows their sums")
        viewer = await self._privacy.viewer(uid)
        if ask not in READING or {"if", "new"} & args.keys():  # a process of its own reads for that
            return await self._asks[ask](args | {"uid": uid}, viewer)
        async with self._turns.setdefault(uid, asyncio.Lock()):
            return await self._asks[ask](args, viewer)

    async def _queue(self, args: Args, viewer: Viewer) -> list[dict[str, Any]]:
        user, jobs, wanted = text(args, "user"), numbers(args, "job_ids"), texts(args, "states")
        world = self._world()
        records = in_order(
            record
            for record in picked(world.engine.jobs, jobs)
            if (user is None or record.job.user == user)
            and (wanted is None or record.state in wanted)
            and viewer.sees(JOBS, record.job.user, [record.job.account])
        )
        shares = await self._shares_of_nodes(records)
        rows = [row async for part in overview.parts_of(world, records, shares) for row in part]
        if args.get("when"):
            rows = await self._with_forecasts(rows)
        return curtained.queue(rows, self._curtain(viewer))

    async def _top(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        """Answer with the first jobs of an order, and how many there are by state."""
        order, users = text(args, "order") or "state", texts(args, "users")
        (most,) = numbers({"most": [args.get("most")]}, "most") or {0}
        now_s = time.monotonic()
        made_s, records = self._ordered.get(order, (-FIGURES_S, []))
        if now_s - made_s >= FIGURES_S:
            records = topmost.alive(self._controller.engine.jobs.values(), order)
            self._ordered[order] = now_s, records
        seen = [record for record in records if viewer.sees(JOBS, record.job.user, [record.job.account])]
        shown, counts = topmost.chosen(seen, users, text(args, "match") or "", most)
        rows = queue_rows(self._world(), shown, await self._shares_of_nodes(shown))
        rows = await self._with_forecasts(rows)
        return {"rows": curtained.queue(rows, self._curtain(viewer)), "counts": counts}

    async def _acct(self, args: Args, viewer: Viewer) -> list[dict[str, Any]]:
        window, holds = self._window(args), self._world().open_holds()
        users = viewer.users_seen(texts(args, "users"))
        names = users, texts(args, "accounts"), texts(args, "states")
        wanted = Filter(numbers(args, "job_ids"), *names, is_cut=bool(args.get("truncate")))
        rows = await self._read(lambda db: job_usage(db, window, wanted, holds))
        rows = [{**row, **_folded(row["node"])} for row in rows]
        # `gandiva web` asks for all of its users, and hides from each.
        is_raw = viewer.sees_all and bool(args.get("mates"))
        return rows if is_raw else curtained.used(rows, viewer)

    async def _share(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        window, holds = self._window(args), self._world().open_holds()
        capacity = sum(node.gpus for node in self._controller.engine.nodes.values())
        users, accounts = texts(args, "users"), texts(args, "accounts")
        rows = await self._read(lambda db: user_shares(db, window, capacity, holds))
        told = self._controller.engine.decider.of_users()
        shown = [
            {**row, **dataclasses.asdict(told.get(row["user"], OfUser()))}
            for row in rows
            if (users is None or row["user"] in users)
            and (accounts is None or accounts & set(row["account"].split(",")))
            and curtained.may_see_usage(row, viewer)
        ]
        return {"window": [window.start_ns / NS_PER_S, window.end_ns / NS_PER_S], "users": shown}

    async def _report(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        window, holds = self._window(args), self._world().open_holds()
        users, accounts = texts(args, "users"), texts(args, "accounts")
        rows = await self._read(lambda db: usage_report(db, window, holds))
        shown = [
            row
            for row in rows
            if (users is None or row["user"] in users)
            and (accounts is None or row["account"] in accounts)
            and curtained.may_see_usage(row, viewer)
        ]
        return {"window": [window.start_ns / NS_PER_S, window.end_ns / NS_PER_S], "rows": shown}

    async def _why(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        job_ids = numbers({"job_id": [args.get("job_id")]}, "job_id") or {0}
        (job_id,) = job_ids
        record = self._controller.engine.jobs.get(job_id)
        if record is None or not viewer.sees(JOBS, record.job.user, [record.job.account]):
            raise GandivaError(f"Gandiva has no job {job_id} now; `gandiva acct -j {job_id}` looks back")
        row = why_row(self._world(), record, bool(args.get("story")))
        row["evidence"] += self._controller.spans.evidence(record.key)
        return curtained.why(row, self._curtain(viewer))

    async def _when(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        """Return what is foretold of these jobs, or of all; GandivaError: one of these is not here."""
        new = text(args, "new")
        if new is not None and self.what_if is not None:
            told = await self.what_if.ask_new(new, args["uid"], self._controller.config.partitions[0])
            return curtained.newcomer(told, self._curtain(viewer))
        wanted, jobs = numbers(args, "job_ids"), self._controller.engine.jobs
        shown = {
            job_id: jobs[job_id]
            for job_id in (jobs if wanted is None else wanted & jobs.keys())
            if viewer.sees(JOBS, jobs[job_id].job.user, [jobs[job_id].job.account])
        }
        for job_id in sorted((wanted or shown.keys()) - shown.keys()):
            raise GandivaError(f"Gandiva has no job {job_id} now; `gandiva acct -j {job_id}` looks back")
        wish = text(args, "if")
        if wish is not None:
            if len(shown) != 1 or self.what_if is None:
                raise UsageError("`if` is for one job, and asked of a gandivactld that runs by itself")
            asked = parse_wish(next(iter(shown)), wish)
            return curtained.wished(await self.what_if.ask(asked), self._curtain(viewer))
        return curtained.when(await self._foretold([*shown]), shown, self._curtain(viewer))

    async def _with_forecasts(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        told = await self._foretold([row["job_id"] for row in rows])
        for row in rows:
            row["when"] = foretold.brief(told, row["job_id"])
        return rows

    async def _foretold(self, job_ids: list[int]) -> foretold.Told:
        folder = Path(self._controller.config.controller.state_dir)
        reading = functools.partial(foretold.read, folder, time.time(), job_ids)
        return await asyncio.get_running_loop().run_in_executor(self._readers, reading)

    async def _update(self, args: Args, uid: int) -> list[dict[str, Any]]:
        """Change all of these jobs, or none."""
        job_ids = sorted(numbers(args, "job_ids") or ())
        name, value, made = change_of(args)
        if not job_ids:
            raise UsageError("expected job_ids")
        rows = [
            {"job_id": job_id, name: value, "was": getattr(self._changed_by(job_id, uid), name)}
            for job_id in job_ids
        ]
        aside = self._controller.engine.state.aside  # an operator's word has these tried again
        events = [
            made(row["job_id"], value) for row in rows if row["was"] != value or row["job_id"] in aside
        ]
        if events:
            await self._controller.requests.ask(events, UPDATE_S)
        return rows

    def _changed_by(self, job_id: int, uid: int) -> JobRecord:
        """Return a job that this user may change; GandivaError: there is none."""
        record = self._controller.engine.jobs.get(job_id)
        if record is None or record.state == states.ENDED:
            raise GandivaError(f"Gandiva has no job {job_id} that waits or runs; next: `gandiva queue`")
        if uid != record.job.uid and uid not in self._operators:
            raise GandivaError(f"job {job_id} is of {record.job.user}: its owner and operators may change it")
        return record

    async def _nodes(self, args: Args, viewer: Viewer) -> list[dict[str, Any]]:
        if not viewer.sees_every(NODES):
            raise GandivaError("Slurm's PrivateData hides nodes from all but its operators")
        return curtained.nodes(node_rows(self._world()), self._curtain(viewer))

    async def _holds(self, args: Args, viewer: Viewer) -> list[dict[str, Any]]:
        window, holds = self._window(args), self._world().open_holds()
        return await self._read(lambda db: holds_in(db, window, holds))

    async def _figures(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        _require_all(viewer, "figures are")
        with_users, now_s = bool(args.get("users")), time.monotonic()
        made_s, counted = self._figured.get(with_users, (-FIGURES_S, {}))
        if now_s - made_s >= FIGURES_S:
            counted = figures(self._world(), with_users)
            self._figured[with_users] = now_s, counted
        return {**counted, **own_figures(self._controller)}

    async def _overview(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        _require_all(viewer, "an overview is")
        rules, world = await self._privacy.rules(), self._world()
        records = in_order(world.engine.jobs.values())
        return {
            "queue": await overview.in_parts(world, records, await self._shares_of_nodes(records)),
            "nodes": node_rows(world),
            "ping": await self._ping(args, viewer),
            "private": overview.private(rules, users_of(self._controller.engine)),
        }

    async def _ping(self, args: Args, viewer: Viewer) -> dict[str, Any]:
        status, curtain = self._controller.status, self._curtain(viewer)
        return {
            "version": __version__,
            "cluster": self._controller.config.cluster,
            "cycle": status.cycle,
            "stale_s": time.monotonic() - status.fresh_s,
            "started_s": status.started_s,
            "slurm": self._controller.back_end(),
            "slurm_error": curtain.over(status.slurm_error),
            "state_error": self._controller.books.error,
            "policy_errors": curtain.over_all(self._controller.troubles),
            "set_aside": [*self._set_aside(viewer)],
            "rounds": self._controller.nodes.lateness(),
            "errors": status.errors,
            "last_error": curtain.over(status.last_error),
        }

    def _curtain(self, viewer: Viewer) -> Curtain:
        return curtain_of(self._controller.engine, viewer)

    def _set_aside(self, viewer: Viewer) -> Iterator[str]:
        """Say of the jobs that this viewer may see what keeps them from being scheduled, or read."""
        engine = self._controller.engine
        for job_id, aside in sorted(engine.state.aside.items()):
            record = engine.jobs.get(job_id)
            if viewer.sees_every(JOBS) or (
                record is not None and viewer.sees(JOBS, record.job.user, [record.job.account])
            ):
                yield f"job {job_id} is {aside.reason.text}"
        unread = self._controller.status.unread if viewer.sees_every(JOBS) else {}
        for job_id, why in sorted(unread.items()):
            yield f"job {job_id} cannot be read, and stays as it was: {why}"

    def _world(self) -> World:
        links = {link.name: link for link in self._controller.nodes}
        controller = self._controller
        now_ns = controller.clock.now_ns()
        return World(controller.engine, links, controller.reports, tuple(controller.troubles), now_ns)

    async def _shares_of_nodes(self, records: Iterable[JobRecord]) -> dict[JobKey, float]:
        records = [record for record in records if record.places]
        if not records:
            return {}
        world, now_ns = self._world(), time.time_ns()
        window = Window(now_ns - round(SHARE_WINDOW_S * NS_PER_S), now_ns, now_ns)
        open_holds = [_until(hold, now_ns) for hold in world.open_holds()]
        held = await self._read(lambda db: held_by_job(db, window, open_holds))
        shares = {}
        for record in records:
            nodes = [world.engine.nodes.get(name) for name in record.nodes]
            gpus = sum(node.gpus for node in nodes if node is not None)
            if gpus:
                whole_ns = gpus * (window.end_ns - window.start_ns)
                shares[record.key] = held.get(record.key, 0) / whole_ns
        return shares

    def _window(self, args: Args) -> Window:
        """The time asked for: from the controller's first midnight (as sacct's) to now unless told."""
        now_s = number(args, "now_s", time.time())
        midnight = time.mktime((*time.localtime(now_s)[:3], 0, 0, 0, 0, 0, -1))
        start_s, end_s = number(args, "start_s", midnight), number(args, "end_s", now_s)
        if end_s < start_s:
            raise UsageError(f"the window ends ({end_s:.0f}) before it starts ({start_s:.0f})")
        return Window(round(start_s * NS_PER_S), round(end_s * NS_PER_S), round(now_s * NS_PER_S))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        def read() -> T:
            db = open_reader(self._controller.books.ledger_path)
            try:
                db.execute("BEGIN")  # all that it reads is of one moment
                return query(db)
            finally:
                db.close()

        return await asyncio.get_running_loop().run_in_executor(self._readers, read)


def _require_all(viewer: Viewer, what: str) -> None:
    """GandivaError for one from whom anything is hidden."""
    if not all(viewer.sees_every(kind) for kind in (JOBS, USAGE, NODES)):
        text = f"{what} of all jobs, which Slurm's PrivateData hides from all but its operators"
        raise GandivaError(f"{text}: ask as one (sacctmgr modify user NAME set adminlevel=operator)")


def _until(hold: OpenHold, now_ns: int) -> OpenHold:
    """An open hold of a report a moment ago goes on."""
    return dataclasses.replace(hold, t1_ns=now_ns) if abs(now_ns - hold.t1_ns) < 5 * NS_PER_S else hold


def _folded(nodes: str) -> dict[str, Any]:
    """The node list of a job in Slurm's manner, and its length."""
    names = [name for name in nodes.split(",") if name]
    return {"node": fold_nodes(names), "nodes": len(names)}


def _json(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
