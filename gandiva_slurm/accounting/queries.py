"""Questions to the ledger: what jobs used in a window of time.

Holds are cut to the window, exactly, in nanoseconds (`parts`). A hold still open is not in the file: the
caller passes those of the nodes' last reports. Definitions (per GPU, summed over a job's GPUs):

- GpuHeld: from the grant of the GPUs to the last rank's release; what a user is charged, and so half of the
  time in which a mate held the same GPUs.
- GpuPacked: that time, whole.
- GpuRun: GpuHeld less the time after an order to park.
- GpuParked: time the job was started in Slurm without holding its GPUs.
- First100: from its submission to its 100th mini-batch.
- gpu_seen_s, gpu_busy_s: of its GPU time what NVML looked at, and how much of that its processes kept busy
  (`busy`); of the whole job, whatever the window.
- GpuMemLive, GpuMemPeak: the most that its tensors took at a boundary, and at all, on one node.
- Migrations: its runs that left, by us or upon our signal, to go on elsewhere, and did. CkptTime, LostSteps:
  what these moves took and lost (`losses`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gandiva_slurm.accounting.days import NS_PER_S
from gandiva_slurm.accounting.ledger import STEP_TIMES
from gandiva_slurm.accounting.losses import Moves
from gandiva_slurm.accounting.parts import Part, Window, closed_holds, parts_in
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import FINISHED

#: Jobs in one answer: some 100 MiB of gandivactld's memory while it is made.
MOST_JOBS = 50_000


@dataclass(frozen=True)
class OpenHold:
    """A hold that goes on, as its node's last report told it."""

    node: str
    key: JobKey
    user: str
    gpus: tuple[int, ...]
    t0_ns: int
    t1_ns: int
    park_ns: int
    shared_with: int = 0


@dataclass(frozen=True)
class Filter:
    """Which jobs are asked for; None = all. `is_cut`: count only GPU time inside the window (sacct's -T)."""

    job_ids: frozenset[int] | None = None
    users: frozenset[str] | None = None
    accounts: frozenset[str] | None = None
    states: frozenset[str] | None = None
    is_cut: bool = True

    def takes(self, row: Mapping[str, Any]) -> bool:
        """True when the row of a job is asked for, its state aside."""
        wanted = (self.job_ids, self.users, self.accounts)
        values = ({row["job_id"], row["array_job_id"]}, {row["user"]}, {row["account"]})
        return all(want is None or want & value for want, value in zip(wanted, values, strict=True))


@dataclass
class _Used:
    """Sums over one job, in GPU nanoseconds; `held` and `parking`, as charged, in halves of these."""

    held: int = 0
    parking: int = 0
    #: time in which a mate held the same GPUs, by mate
    packed: dict[int, int] = field(default_factory=dict)
    running: int = 0
    suspends: int = 0
    moves: Moves = field(default_factory=Moves)
    latency_ns: int | None = None
    #: when its 100th mini-batch was done, in the run that came to it first; 0: not yet
    first_ns: int = 0
    live: int = 0
    peak: int = 0
    spilled: int = 0
    #: ns: what a mini-batch took in its newest run, by the ledger's names
    step_times: dict[str, int] = field(default_factory=dict)
    #: mini-batches done; GPU nanoseconds that NVML looked at, and of these busy ones
    steps: int = 0
    seen: int = 0
    busy: int = 0


def job_usage(
    db: sqlite3.Connection, window: Window, wanted: Filter, open_holds: Iterable[OpenHold]
) -> list[dict[str, Any]]:
    """Return a row for each job that was in the queue or ran in the window, by job id and submit time."""
    rows = _jobs_of(db, window, wanted)
    picked = (row for row in rows if wanted.takes(row))
    picked = (row for row in picked if wanted.states is None or _states(row, window) & wanted.states)
    jobs = {row["ref"]: dict(row) for row in islice(picked, MOST_JOBS + 1)}
    if len(jobs) > MOST_JOBS:
        raise UsageError(f"more than {MOST_JOBS} jobs; ask for less time (-S, -E), or for some users' (-u)")
    jobs = dict(sorted(jobs.items(), key=lambda item: (item[1]["job_id"], item[1]["submit_s"])))
    used = {ref: _Used() for ref in jobs}
    newest = {(job["job_id"], job["user"]): ref for ref, job in jobs.items()}
    counted = window if wanted.is_cut else Window(0, window.now_ns, window.now_ns)
    for part in parts_in(db, counted, jobs):
        if part.ref in used:
            _add_part(used[part.ref], part)
    for hold in open_holds:
        ref = newest.get((hold.key.job_id, hold.user))
        if ref is not None:
            _add_part(used[ref], open_part(counted, hold))
    query = "SELECT runs.* FROM json_each(?) AS picked CROSS JOIN runs ON runs.ref = picked.value"
    rows = db.execute(query, (json.dumps([*jobs]),))
    for row in sorted(rows, key=lambda row: row["restart"]):
        # an elastic job's runs have sizes of their own; of a run we did not start none is written
        job = jobs[row["ref"]]
        job["gpus"] = row["gpus"] or job["gpus"]
        _add_run(used[row["ref"]], counted, job["gpus"], row)
    owners = _owners(db, {mate for one in used.values() for mate in one.packed})
    return [_job_row(job, used[ref], owners) for ref, job in jobs.items()]


def _owners(db: sqlite3.Connection, job_ids: Collection[int]) -> dict[int, list[tuple[str, str]]]:
    """Return users and accounts of the jobs that have had these numbers."""
    found: dict[int, list[tuple[str, str]]] = {job_id: [] for job_id in job_ids}
    query = "SELECT DISTINCT job_id, user, account FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))"
    for job_id, user, account in db.execute(query, (json.dumps(sorted(job_ids)),)) if job_ids else ():
        found[job_id].append((user, account))
    return found


def _jobs_of(db: sqlite3.Connection, window: Window, wanted: Filter) -> Iterable[Any]:
    """Return the jobs that were in the queue or ran in the window; an array's id stands for its tasks."""
    values: dict[str, object] = {"start": window.start_ns // NS_PER_S, "end": window.end_ns // NS_PER_S}
    picked = ""
    if wanted.job_ids is not None:
        listed = "IN (SELECT value FROM json_each(:job_ids))"
        picked = f"(job_id {listed} OR array_job_id {listed}) AND "
        values["job_ids"] = json.dumps(sorted(wanted.job_ids))
    if wanted.users is not None:
        picked += "+user IN (SELECT value FROM json_each(:users)) AND "
        values["users"] = json.dumps(sorted(wanted.users))
    # The + keeps SQLite from an index that leads to more rows than another one.
    plus = "" if wanted.job_ids is None else "+"
    times = f"+submit_s <= :end AND ({plus}end_s = 0 OR {plus}end_s >= :start)"
    return db.execute(f"SELECT * FROM jobs WHERE {picked}{times}", values)


def holds_in(db: sqlite3.Connection, window: Window, open_holds: Iterable[OpenHold]) -> list[dict[str, Any]]:
    """Return every hold that touches the window, uncut, in the order they began."""
    keys = ("node", "job_id", "restart", "user", "gpus", "t0_ns", "t1_ns", "park_ns", "shared_with")
    rows = []
    for row in closed_holds(db, window):
        closed = {key: row[key] for key in keys}
        rows.append({**closed, "gpus": json.loads(f"[{row['gpus']}]"), "open": False})
    for hold in open_holds:
        if window.cut(hold.t0_ns, hold.t1_ns):
            times = (hold.t0_ns, hold.t1_ns, hold.park_ns, hold.shared_with)
            values = (hold.node, *hold.key, hold.user, list(hold.gpus), *times)
            rows.append(dict(zip(keys, values, strict=True), open=True))
    return sorted(rows, key=lambda row: (row["t0_ns"], row["node"], row["job_id"]))


def held_by_job(db: sqlite3.Connection, window: Window, open_holds: Iterable[OpenHold]) -> dict[JobKey, int]:
    """Return the GPU nanoseconds each incarnation is charged for in the window."""
    halves: dict[JobKey, int] = {}
    opened = (open_part(window, hold) for hold in open_holds)
    for part in (*parts_in(db, window), *opened):
        key = JobKey(part.job_id, part.restart)
        halves[key] = halves.get(key, 0) + part.halves
    return {key: value // 2 for key, value in halves.items() if value}


def held_by_user(db: sqlite3.Connection, window: Window, open_holds: Iterable[OpenHold]) -> dict[str, int]:
    """Return the half GPU nanoseconds each user is charged for in the window."""
    halves: dict[str, int] = {}
    opened = (open_part(window, hold) for hold in open_holds)
    for part in (*parts_in(db, window), *opened):
        halves[part.user] = halves.get(part.user, 0) + part.halves
    return halves


def open_part(window: Window, hold: OpenHold) -> Part:
    """Return what a hold that goes on has in the window."""
    gpus = len(hold.gpus)
    # The parking part is the end of a hold.
    parked_ns = max(hold.t0_ns, hold.t1_ns - hold.park_ns)
    held_ns, parking_ns = (window.cut(t0_ns, hold.t1_ns) * gpus for t0_ns in (hold.t0_ns, parked_ns))
    return Part(0, *hold.key, hold.user, hold.shared_with, held_ns, parking_ns)


def _add_part(used: _Used, part: Part) -> None:
    used.held += part.halves
    used.parking += part.parking_halves
    if part.shared_with:
        used.packed[part.shared_with] = used.packed.get(part.shared_with, 0) + part.held_ns


def _add_run(used: _Used, window: Window, gpus: int, row: Any) -> None:
    start_ns, end_ns = run_bounds(row, window)
    used.running += window.cut(start_ns, end_ns) * gpus if start_ns else 0
    used.suspends += row["suspends"]
    used.moves.add(row)
    if 0 < row["released_ns"] <= row["registered_ns"]:  # unless a clock was set back in between
        used.latency_ns = row["registered_ns"] - row["released_ns"]
    used.first_ns = used.first_ns or row["first_ns"]
    used.steps += row["steps"]
    used.seen, used.busy = used.seen + row["seen_ns"], used.busy + row["busy_ns"]
    used.live, used.peak = max(used.live, row["live_bytes"]), max(used.peak, row["peak_bytes"])
    used.spilled = max(used.spilled, row["spilled_bytes"])
    used.step_times |= {name: row[name] for name in STEP_TIMES if row[name]}


def run_bounds(row: Any, window: Window) -> tuple[int, int]:
    """Return a run's start and end, 0 when it has not started; without an end it goes on.

    Slurm's times are whole seconds: the node's own moment of the first process is better where known.
    """
    start_ns = row["start_s"] * NS_PER_S
    if start_ns <= row["registered_ns"] < start_ns + 60 * NS_PER_S:
        start_ns = row["registered_ns"]
    return start_ns, row["end_s"] * NS_PER_S if row["end_s"] else window.now_ns


def _job_row(
    job: Mapping[str, Any], used: _Used, owners: Mapping[int, list[tuple[str, str]]]
) -> dict[str, Any]:
    """Return what `acct` tells; `mates` has whose `packed_with` are, for those from whom jobs are hidden."""
    packed = sum(used.packed.values())
    mates = sorted(mate for mate, packed_ns in used.packed.items() if packed_ns)
    return {
        **{key: job[key] for key in _SHOWN},
        # As sacct has it: slurmdbd is told of a cancelled job before its processes end.
        "exit_code": "0:0" if job["state"] == "CANCELLED" else job["exit_code"],
        "submit_s": float(job["submit_s"]),
        "start_s": float(job["start_s"]) or None,
        "end_s": float(job["end_s"]) or None,
        "gpu_held_s": used.held / (2 * NS_PER_S),
        "gpu_run_s": (used.held - used.parking) / (2 * NS_PER_S),
        "gpu_packed_s": packed / NS_PER_S,
        "gpu_parked_s": max(0, 2 * used.running - used.held - packed) / (2 * NS_PER_S),
        "packed_with": mates,
        "mates": [(mate, owners[mate]) for mate in mates],
        "first_100_s": first_s if (first_s := used.first_ns / NS_PER_S - job["submit_s"]) > 0 else None,
        "gpu_mem_live_bytes": used.live or None,
        "gpu_mem_peak_bytes": used.peak if used.peak > 1 else None,
        "gpu_mem_spilled_bytes": used.spilled or None,
        **{f"{name[:-2]}ms": used.step_times.get(name, 0) / 1e6 or None for name in STEP_TIMES},
        "gpu_seen_s": used.seen / NS_PER_S,
        "gpu_busy_s": used.busy / NS_PER_S,
        "steps": used.steps,
        "suspends": used.suspends,
        **used.moves.told(),
        "restarts": job["restart"],
        "start_latency_s": None if used.latency_ns is None else used.latency_ns / NS_PER_S,
    }


_SHOWN = (
    *("job_id", "array_job_id", "array_task_id", "name", "user", "account", "partition"),
    *("state", "gpus", "type", "node"),
)


def _states(job: Mapping[str, Any], window: Window) -> frozenset[str]:
    """Which of sacct's states a job was in during the window: an end counts when it lies inside."""
    states = set()
    start_ns, end_ns = job["start_s"] * NS_PER_S, job["end_s"] * NS_PER_S or window.now_ns
    if start_ns and start_ns <= window.end_ns and end_ns >= window.start_ns:
        states.add("RUNNING")
    if (start_ns or end_ns) > window.start_ns:
        states.add("PENDING")
    if job["state"] not in FINISHED or job["end_s"] * NS_PER_S <= window.end_ns:
        states.add(job["state"])
    return frozenset(states)
