"""Did users get their due? GPU time held against entitlement, in a window of time.

- A user's demand at an instant: the GPUs of his started, unfinished jobs.
- The user's entitlement at that instant: tickets in force, water-filled over all demands
  (`policy.shares.associations`), so that what one cannot use others are due. It is integrated over the
  window: between two changes it is constant.
- Served over fair: his part of all GPU time held, over his part of all that was due. 1 is exactly fair.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from gandiva_slurm.accounting.days import NS_PER_S
from gandiva_slurm.accounting.ledger import Tickets
from gandiva_slurm.accounting.parts import Window, last_end
from gandiva_slurm.accounting.queries import OpenHold, held_by_user, run_bounds
from gandiva_slurm.policy.shares.associations import entitled_shares


@dataclass(frozen=True)
class _Change:
    """At `at_ns` a user's demand changes by `gpus`, or his tickets become `tickets`."""

    at_ns: int
    user: str
    gpus: int = 0
    tickets: int | None = None


def user_shares(
    db: sqlite3.Connection, window: Window, capacity: int, open_holds: Iterable[OpenHold]
) -> list[dict[str, Any]]:
    """Return a row a user who has tickets: GPU time, its part of all, the part due, served over fair.

    `capacity` is the number of GPUs there are.
    """
    held = held_by_user(db, window, open_holds)
    due = _due(_changes(db, window), window, capacity)
    all_held, all_due = sum(held.values()), sum(due.values())
    rows = []
    for share in _tickets_at(db, window.end_ns):
        effective = Fraction(held.get(share.user, 0), all_held or 1)
        entitled = due.get(share.user, Fraction(0)) / (all_due or 1)
        rows.append(
            {
                "account": share.account,
                "user": share.user,
                "tickets": share.tickets,
                "norm_shares": share.norm_share,
                "gpu_s": held.get(share.user, 0) / (2 * NS_PER_S),
                "effectv_share": float(effective),
                "entitled_share": float(entitled),
                "served_fair": float(effective / entitled) if entitled else None,
            }
        )
    return rows


def _due(changes: Iterable[_Change], window: Window, capacity: int) -> dict[str, Fraction]:
    """Integrate the GPUs due over the window, in GPU nanoseconds."""
    by_time: dict[int, list[_Change]] = {window.start_ns: [], window.end_ns: []}
    for change in changes:
        by_time.setdefault(change.at_ns, []).append(change)
    demand: dict[str, int] = {}
    tickets: dict[str, int] = {}
    due: dict[str, Fraction] = {}
    for at_ns, until_ns in pairwise(sorted(by_time)):
        for change in by_time[at_ns]:
            demand[change.user] = demand.get(change.user, 0) + change.gpus
            tickets[change.user] = tickets.get(change.user, 0) if change.tickets is None else change.tickets
        span_ns = window.cut(at_ns, until_ns)
        for user, gpus in (entitled_shares(tickets, demand, capacity) if span_ns else {}).items():
            due[user] = due.get(user, Fraction(0)) + gpus * span_ns
    return due


def _changes(db: sqlite3.Connection, window: Window) -> Iterable[_Change]:
    for start_ns, end_ns, user, gpus in _live(db, window):
        yield _Change(start_ns, user, gpus)
        yield _Change(end_ns, user, -gpus)
    first: set[str] = set()
    query = "SELECT user, since_ns, tickets FROM tickets WHERE since_ns < ? ORDER BY since_ns"
    for user, since_ns, tickets in db.execute(query, (window.end_ns,)):
        # What a user had before his tickets were first written is not known: the same.
        yield _Change(since_ns if user in first else 0, user, tickets=tickets)
        first.add(user)


def _live(db: sqlite3.Connection, window: Window) -> Iterable[tuple[int, int, str, int]]:
    """Return (from, to, user, GPUs) of each run, cut to the window."""
    query = f"""SELECT runs.*, user, coalesce(nullif(runs.gpus, 0), jobs.gpus) AS size,
        {last_end(db)} AS last_ns FROM runs JOIN jobs USING (ref)
        WHERE +runs.start_s BETWEEN 1 AND ? AND (runs.end_s = 0 OR runs.end_s >= ?)"""
    for row in db.execute(query, (window.end_ns // NS_PER_S, window.start_ns // NS_PER_S - 1)):
        start_ns, end_ns = run_bounds(row, window)
        # Slurm cuts the end to a whole second; the job was there as long as it held its GPUs.
        if row["end_s"] and end_ns < row["last_ns"] < end_ns + NS_PER_S:
            end_ns = row["last_ns"]
        start_ns, end_ns = max(start_ns, window.start_ns), min(end_ns, window.end_ns)
        if start_ns < end_ns:
            yield start_ns, end_ns, row["user"], row["size"]


def _tickets_at(db: sqlite3.Connection, at_ns: int) -> Iterable[Tickets]:
    """Return each user's tickets as last written before a moment, by account and user."""
    query = """SELECT user, account, tickets, norm_share, max(since_ns) FROM tickets
        WHERE since_ns < ? GROUP BY user ORDER BY account, user"""
    rows: Mapping[str, Tickets] = {row[0]: Tickets(*tuple(row)[:4]) for row in db.execute(query, (at_ns,))}
    return list(rows.values())
