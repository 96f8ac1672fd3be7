"""What accounts and users had in a window of weeks: GPU time, waiting, and what sharing made of it.

Sums over jobs, by account, user and GPU type, in GPU nanoseconds as `queries` defines them for a job:

- held, parking, packed, parked: GpuHeld, GpuHeld less GpuRun, GpuPacked, GpuParked of `gandiva acct -T`.
- seen, busy: what NVML looked at, and how much of that was busy. Of runs, whole, that were in the window.
- exclusive: the GPUs of jobs for as long as they were started. So much Slurm alone would have taken from all
  others for the same starts and ends; what of it was not held, others had.
- waited: seconds in the window between a job's submission and its first start; begun: jobs that first started
  in the window, and began_s: the seconds that those waited in all.
- entitled: a user's part of the cluster by Slurm's shares alone, a mean over the window.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.accounting.days import NS_PER_S
from gandiva_slurm.accounting.parts import Window, parts_in
from gandiva_slurm.accounting.queries import OpenHold, open_part, run_bounds
from gandiva_slurm.model.errors import UsageError

#: Jobs in one report: some 300 MiB of gandivactld's memory while it is made.
MOST_JOBS = 500_000

_JOBS = """SELECT ref, job_id, account, user, type, submit_s, end_s FROM jobs
    WHERE submit_s <= :end AND (end_s = 0 OR end_s >= :start) LIMIT :most"""
_RUNS = """SELECT runs.ref, runs.start_s, runs.end_s, runs.registered_ns, runs.seen_ns, runs.busy_ns,
    coalesce(nullif(runs.gpus, 0), jobs.gpus) AS gpus
    FROM runs JOIN jobs USING (ref)
    WHERE runs.start_s > 0 AND +jobs.submit_s <= :end AND (jobs.end_s = 0 OR jobs.end_s >= :start)
    ORDER BY runs.ref, runs.restart"""


@dataclass
class _Used:
    """Of one job. `held` and `parking` are in half GPU nanoseconds, as charged."""

    account: str
    user: str
    type: str
    submit_s: int
    end_s: int
    first_s: int = 0
    held: int = 0
    parking: int = 0
    packed: int = 0
    running: int = 0
    seen: int = 0
    busy: int = 0


def usage_report(
    db: sqlite3.Connection, window: Window, open_holds: Iterable[OpenHold]
) -> list[dict[str, Any]]:
    """Return a row for each account, user and GPU type that had jobs in the window, in seconds.

    UsageError: there are too many jobs, or single holds of a day that the window cuts are no longer kept.
    """
    jobs, newest = _jobs(db, window)
    opened = ((newest.get(hold.key.job_id, 0), open_part(window, hold)) for hold in open_holds)
    for ref, part in (*((part.ref, part) for part in parts_in(db, window)), *opened):
        job = jobs.get(ref)
        if job is not None:
            job.held += part.halves
            job.parking += part.parking_halves
            job.packed += part.held_ns if part.shared_with else 0
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for job in jobs.values():
        whose = (job.account, job.user, job.type)
        _add(rows.setdefault(whose, _empty(*whose)), job, window)
    due = _entitled(db, window)
    return [row | {"entitled": due.get(user)} for (_, user, _), row in sorted(rows.items())]


def _jobs(db: sqlite3.Connection, window: Window) -> tuple[dict[int, _Used], dict[int, int]]:
    """Return the jobs of the window by their rows' numbers, and the newest such number of each id."""
    values = {
        "start": window.start_ns // NS_PER_S, "end": window.end_ns // NS_PER_S, "most": MOST_JOBS + 1,
    }  # fmt: skip
    found = db.execute(_JOBS, values).fetchall()
    if len(found) > MOST_JOBS:
        raise UsageError(f"more than {MOST_JOBS} jobs; ask for less time (-S, -E)")
    jobs = {ref: _Used(account, user, kind, *times) for ref, _, account, user, kind, *times in found}
    for run in db.execute(_RUNS, values):
        job = jobs.get(run["ref"])
        if job is None:
            continue
        job.first_s = job.first_s or run["start_s"]
        ran_ns = window.cut(*run_bounds(run, window))
        job.running += ran_ns * run["gpus"]
        is_in = ran_ns > 0
        job.seen += run["seen_ns"] * is_in
        job.busy += run["busy_ns"] * is_in
    return jobs, {row["job_id"]: row["ref"] for row in sorted(found, key=lambda row: row["submit_s"])}


def _empty(account: str, user: str, kind: str) -> dict[str, Any]:
    names = ("held", "parking", "packed", "parked", "seen", "busy", "exclusive")
    sums = {f"gpu_{name}_s": 0.0 for name in names}
    return {
        "account": account, "user": user, "type": kind, "jobs": 0, **sums,
        "waited_s": 0.0, "begun": 0, "began_s": 0.0,
    }  # fmt: skip


def _add(row: dict[str, Any], job: _Used, window: Window) -> None:
    half = 2 * NS_PER_S
    row["jobs"] += 1
    row["gpu_held_s"] += job.held / half
    row["gpu_parking_s"] += job.parking / half
    row["gpu_packed_s"] += job.packed / NS_PER_S
    row["gpu_parked_s"] += max(0, 2 * job.running - job.held - job.packed) / half
    row["gpu_seen_s"] += job.seen / NS_PER_S
    row["gpu_busy_s"] += job.busy / NS_PER_S
    row["gpu_exclusive_s"] += job.running / NS_PER_S
    until_s = job.first_s or job.end_s
    until_ns = until_s * NS_PER_S if until_s else window.now_ns
    row["waited_s"] += window.cut(job.submit_s * NS_PER_S, until_ns) / NS_PER_S
    if window.start_ns <= job.first_s * NS_PER_S < window.end_ns and job.first_s:
        row["begun"] += 1
        row["began_s"] += max(0, job.first_s - job.submit_s)


def _entitled(db: sqlite3.Connection, window: Window) -> dict[str, float]:
    """Return each user's part of the cluster by shares alone; what it was before it was written: the same."""
    since: dict[str, list[tuple[int, float]]] = {}
    query = "SELECT user, since_ns, norm_share FROM tickets WHERE since_ns < ? ORDER BY user, since_ns"
    for user, since_ns, share in db.execute(query, (window.end_ns,)):
        since.setdefault(user, []).append((since_ns, share))
    length_ns = max(1, window.end_ns - window.start_ns)
    means = {}
    for user, told in since.items():
        ends = [*(at_ns for at_ns, _ in told[1:]), window.end_ns]
        begins = [0, *(at_ns for at_ns, _ in told[1:])]
        spans = zip(begins, ends, told, strict=True)
        means[user] = sum(window.cut(*span) * share / length_ns for *span, (_, share) in spans)
    return means
