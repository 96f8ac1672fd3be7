"""The GPU-time ledger: every hold once, every job with its runs. One writer: gandivactld.

A job is known by its id and its first submit time (Slurm gives a requeued job a new one, and reuses ids); a
run is one incarnation of it, on all its nodes together. `*_ns` are nanoseconds and `*_s` seconds since 1970,
0 = not known.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from gandiva_slurm.accounting.busy import Busy
from gandiva_slurm.accounting.database import Transaction, open_database
from gandiva_slurm.accounting.days import Days, HoldRow
from gandiva_slurm.accounting.schema import MIGRATIONS
from gandiva_slurm.accounting.upkeep import Upkeep
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import FINISHED, SlurmJob, is_reused
from gandiva_slurm.wire.messages import Hold, NodeReport, Resident

#: The state of a job whose end nobody saw.
UNKNOWN = "UNKNOWN"
OVER = FINISHED | {UNKNOWN}
#: SQLite's largest integer.
MOST_STEPS = (1 << 63) - 1


@dataclass(frozen=True)
class JobRow:
    """A row of `jobs`: `submit_s` is the first submission, `requeued_s` Slurm's own of this incarnation.

    `node` has all its nodes, with commas between, and `gpus` its GPUs on all of them.
    """

    job_id: int
    submit_s: int
    requeued_s: int
    restart: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    account: str
    partition: str
    state: str
    gpus: int
    type: str
    node: str
    start_s: int
    end_s: int
    exit_code: str


@dataclass(frozen=True)
class Tickets:
    """What a user is due: tickets, and his part of the cluster by shares alone."""

    user: str
    account: str
    tickets: int
    norm_share: float


_COLUMNS = tuple(field.name for field in fields(JobRow))
_VALUES = ", ".join(f":{name}" for name in _COLUMNS)
_INSERT_JOB = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({_VALUES})"
_SELECT_JOB = f"SELECT ref, {', '.join(_COLUMNS)} FROM jobs"
_UPDATE_JOB = f"UPDATE jobs SET {', '.join(f'{name} = :{name}' for name in _COLUMNS[2:])} WHERE ref = :ref"
_START_RUN = """INSERT INTO runs (ref, restart, start_s, end_s) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET start_s = excluded.start_s, end_s = excluded.end_s"""
_RELEASE_RUN = """INSERT INTO runs (ref, restart, released_ns, gpus) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET released_ns = excluded.released_ns, gpus = excluded.gpus"""
_MOVE_RUN = "UPDATE runs SET moved_ns = ?, moved_by = ? WHERE ref = ? AND restart = ? AND moved_ns = 0"
_SIGNAL_RUN = "UPDATE runs SET signalled_ns = ? WHERE ref = ? AND restart = ?"
#: A requeue ends the runs before it, at the moment Slurm gave the job its new submit time.
_CLOSE_RUNS = "UPDATE runs SET end_s = ? WHERE ref = ? AND restart < ? AND start_s > 0 AND end_s = 0"
#: What a mini-batch took of late, alone and packed.
STEP_TIMES = ("step_p50_ns", "step_p99_ns", "packed_step_p50_ns", "packed_step_p99_ns")
#: Each node measures its part: the job began with its first process, and the others go on together. Of memory
#: the node with the most counts, of what a mini-batch took what was told last.
_MEASURE_RUN = f"""INSERT INTO runs (registered_ns, world, steps, suspends, reaims, off_boundary,
        first_ns, live_bytes, peak_bytes, begun, save_ns, written_ns,
        spilled_bytes, {", ".join(STEP_TIMES)}, ref, restart)
    VALUES ({", ".join("?" * 19)}) ON CONFLICT DO UPDATE SET
    {", ".join(f"{name} = coalesce(nullif(excluded.{name}, 0), {name})" for name in STEP_TIMES)},
    spilled_bytes = max(spilled_bytes, excluded.spilled_bytes),
    registered_ns = CASE WHEN excluded.registered_ns = 0 OR registered_ns BETWEEN 1 AND excluded.registered_ns
        THEN registered_ns ELSE excluded.registered_ns END, world = excluded.world,
    first_ns = CASE WHEN excluded.first_ns = 0 OR first_ns BETWEEN 1 AND excluded.first_ns
        THEN first_ns ELSE excluded.first_ns END,
    live_bytes = max(live_bytes, excluded.live_bytes), peak_bytes = max(peak_bytes, excluded.peak_bytes),
    begun = max(begun, excluded.begun), save_ns = max(save_ns, excluded.save_ns),
    written_ns = max(written_ns, excluded.written_ns),
    steps = max(steps, excluded.steps), suspends = max(suspends, excluded.suspends),
    reaims = max(reaims, excluded.reaims), off_boundary = max(off_boundary, excluded.off_boundary)"""
_END_RUN = """UPDATE runs SET begun = max(begun, ?1), reached = max(reached, ?2), gone_ns = max(gone_ns, ?3)
    WHERE ref = ?4 AND restart = ?5"""
#: One that did not leave, and from an image of which a later one goes on, was lost with its node: it was as
#: far as that had told. Those in between, which have done nothing, were lost before they had begun.
_LOSE_RUN = """UPDATE runs SET moved_ns = ?1, moved_by = 'kept image',
    reached = CASE WHEN reached < 0 AND begun >= 0 THEN begun + steps ELSE reached END
    WHERE ref = ?2 AND moved_ns = 0 AND restart = (SELECT max(restart) FROM runs
        WHERE ref = ?2 AND restart <= ?3 AND (steps > 0 OR moved_ns > 0))"""
_SEE_RUN = "UPDATE runs SET seen_ns = seen_ns + ?, busy_ns = busy_ns + ? WHERE ref = ? AND restart = ?"
#: A job that is seen for the first time has the holds of its number and user that came before.
_CLAIM_HOLDS = "UPDATE holds SET ref = ? WHERE job_id = ? AND user = ? AND ref IS NULL"
_CLAIM_SUMS = "UPDATE sums SET ref = ? WHERE job_id = ? AND user = ? AND ref = 0"
#: Of the jobs of a user that had this number the one that a hold of then is of; dates may be off by a step.
_REF_OF_THEN = """SELECT ref FROM jobs WHERE job_id = ? AND user = ?
    ORDER BY submit_s > ?, submit_s DESC LIMIT 1"""
#: A node that has lost what it knew of a hold ends it again, under another number, with the same beginning.
_INSERT_HOLD = f"""INSERT OR IGNORE INTO holds SELECT {", ".join(f"?{number}" for number in range(1, 15))}
    WHERE NOT EXISTS (SELECT 1 FROM holds
        WHERE job_id = ?5 AND t0_ns = ?10 AND node = ?1 AND restart = ?6)"""


class Ledger:
    """Writes the ledger. Writing the same again changes nothing; after an error the file is as it was."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, MIGRATIONS)
        self._days = Days(self._db)
        self._upkeep = Upkeep(self._db, self._days)
        #: job id -> (ref, the row as it stands); of a reused id the newest. Of jobs that ended those that
        #: Slurm shows, so that memory does not grow with them
        self._jobs: dict[int, tuple[int, JobRow]] = {}
        #: by node: each measures its part
        self._measured: dict[tuple[str, JobKey], tuple[int, ...]] = {}
        self._busy = Busy()
        self._tickets = {share.user: share for share in _last_tickets(self._db)}
        for ref, *row in self._db.execute(f"{_SELECT_JOB} WHERE end_s = 0 ORDER BY submit_s"):
            self._jobs[row[0]] = (ref, JobRow(*row))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def record_jobs(self, jobs: Iterable[SlurmJob], types: Mapping[str, str]) -> None:
        """Write what is new of these jobs; `types` gives each node's GPU type."""
        rows = [self._row(job, types) for job in jobs]
        changed = [row for row in rows if row != self._known(row.job_id)]
        if changed:
            with Transaction(self._db) as db:
                written = {row.job_id: (self._write_job(db, row), row) for row in changed}
            self._jobs.update(written)
        self._forget({row.job_id for row in rows})

    def record_gone(self, job_id: int, end_s: int) -> None:
        """Write that a job left Slurm's memory before its end was seen: what became of it is not known."""
        row = self._known(job_id)
        if row is not None and row.state not in OVER:
            gone = replace(row, state=UNKNOWN, end_s=end_s)
            with Transaction(self._db) as db:
                ref = self._write_job(db, gone)
            self._jobs[job_id] = (ref, gone)

    def record_tickets(self, shares: Iterable[Tickets], since_ns: int) -> None:
        """Write the tickets of users whose tickets differ from those written last."""
        changed = [share for share in shares if self._tickets.get(share.user) != share]
        if changed:
            rows = [(item.user, since_ns, item.account, item.tickets, item.norm_share) for item in changed]
            with Transaction(self._db) as db:
                db.executemany("INSERT OR REPLACE INTO tickets VALUES (?, ?, ?, ?, ?)", rows)
            self._tickets.update({share.user: share for share in changed})

    def record_release(self, key: JobKey, released_ns: int, gpus: int) -> None:
        """Write when Slurm was asked to start this incarnation, and on how many GPUs in all (ADR 0031)."""
        ref = self._ref(key.job_id)
        if ref is not None:
            with Transaction(self._db) as db:
                db.execute(_RELEASE_RUN, (ref, key.restart, released_ns, gpus))

    def record_move(self, key: JobKey, moved_ns: int, by: str) -> None:
        """Write when this incarnation left for the next to go on elsewhere; `by`: attached, signal, self."""
        ref = self._ref(key.job_id)
        if ref is not None:
            with Transaction(self._db) as db:
                db.execute(_MOVE_RUN, (moved_ns, by, ref, key.restart))

    def record_signal(self, key: JobKey, signalled_ns: int) -> None:
        """Write when this incarnation was sent the signal upon which it saves itself, the last time."""
        ref = self._ref(key.job_id)
        if ref is not None:
            with Transaction(self._db) as db:
                db.execute(_SIGNAL_RUN, (signalled_ns, ref, key.restart))

    def record_report(self, report: NodeReport) -> int:
        """Write a node's closed holds and its residents' counters.

        Returns the number up to which the holds of this node boot are safe.
        """
        holds = [self._hold_row(report, hold) for hold in report.holds if hold.seq > 0]
        fresh = [item for item in report.residents if self._is_news(report.node, item)]
        # what the ledger does not know of a job yet, it is told again
        ends = [(*final, self._ref(job_id), restart) for job_id, restart, *final in report.finals]
        busy = self._busy.due(report)
        if holds or fresh or ends or busy:
            rows = [(*_measures(item), self._ref(item.job_id), item.restart) for item in fresh]
            lost = [item for item in fresh if item.is_restored]
            left = [(item.registered_ns, self._ref(item.job_id), item.restart - 1) for item in lost]
            seen = [(*sums, self._ref(key.job_id), key.restart) for key, sums in busy.items()]
            try:
                with Transaction(self._db) as db:
                    self._write_holds(db, holds)
                    db.executemany(_MEASURE_RUN, rows)
                    db.executemany(_END_RUN, ends)
                    db.executemany(_LOSE_RUN, left)
                    db.executemany(_SEE_RUN, seen)
            except BaseException:
                self._days.load()
                raise
        self._busy.written(busy)
        self._measured.update({(report.node, _key(item)): _measures(item) for item in fresh})
        for job_id, restart in report.ended:
            self._measured.pop((report.node, JobKey(job_id, restart)), None)
        # What was known already is safe, too, under whatever number.
        return max([self.safe_up_to(report.node, report.boot), *(hold.seq for hold in report.holds)])

    def safe_up_to(self, node: str, boot: str) -> int:
        """Return the highest hold number of this node boot that is in the file, 0 when none is."""
        query = "SELECT coalesce(max(seq), 0) FROM holds WHERE node = ? AND boot = ?"
        return int(self._db.execute(query, (node, boot)).fetchone()[0])

    def tidy(self, now_ns: int, keep_days: int) -> bool:
        """Do a piece of the file's upkeep; True when there is more to do.

        Single holds that ended more than `keep_days` days ago are removed; their sums by day stay.
        """
        return self._upkeep.piece(now_ns, keep_days)

    def _known(self, job_id: int) -> JobRow | None:
        found = self._find(job_id)
        return found[1] if found else None

    def _ref(self, job_id: int) -> int | None:
        found = self._find(job_id)
        return found[0] if found else None

    def _find(self, job_id: int) -> tuple[int, JobRow] | None:
        if job_id not in self._jobs:
            query = f"{_SELECT_JOB} WHERE job_id = ? ORDER BY submit_s DESC LIMIT 1"
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None:
                return None
            self._jobs[job_id] = (row[0], JobRow(*row[1:]))
        return self._jobs[job_id]

    def _forget(self, shown: Set[int]) -> None:
        """Forget jobs that ended and that Slurm shows no more: they are in the file."""
        over = {id_ for id_, (_, row) in self._jobs.items() if row.state in OVER and id_ not in shown}
        if over:
            self._jobs = {id_: known for id_, known in self._jobs.items() if id_ not in over}
            told = self._measured.items()
            self._measured = {key: value for key, value in told if key[1].job_id not in over}

    def _write_holds(self, db: sqlite3.Connection, holds: Iterable[HoldRow]) -> None:
        """Write each hold that is new, and add it to the sums."""
        fresh = []
        for hold in holds:
            if hold.t0_ns < self._upkeep.kept_from_ns and self._days.has(hold):
                continue
            if db.execute(_INSERT_HOLD, (*hold, self._days.is_long(hold))).rowcount:
                fresh.append(hold)
        self._days.add(fresh)

    def _row(self, job: SlurmJob, types: Mapping[str, str]) -> JobRow:
        known = self._known(job.job_id)
        if known is not None and job.state == "COMPLETING" and job.restart > known.restart:
            # what ends is the run before: Slurm counts the new one already, and its submit time comes later
            job = replace(job, restart=known.restart)
        if known is not None and is_reused(job, known.user, known.requeued_s):
            known = None
        node = ",".join(job.nodes)
        if not node and known is not None and job.state in FINISHED:
            node = known.node
        return JobRow(
            job_id=job.job_id,
            submit_s=known.submit_s if known else job.submit_s,
            requeued_s=job.submit_s,
            restart=job.restart,
            array_job_id=job.array_job_id or None,
            array_task_id=job.array_task_id,
            name=job.name,
            user=job.user,
            account=job.account,
            partition=job.partition,
            state=job.state,
            gpus=job.options.gpus if job.options else 0,
            type=types.get(node.partition(",")[0]) or (job.options.gpu_type if job.options else ""),
            node=node,
            start_s=0 if job.state == "PENDING" else job.start_s,
            end_s=job.end_s if job.state in FINISHED else 0,
            exit_code=job.exit_code,
        )

    def _write_job(self, db: sqlite3.Connection, row: JobRow) -> int:
        ref, known = self._find(row.job_id) or (0, None)
        if known is None or known.submit_s != row.submit_s:
            ref = db.execute(_INSERT_JOB, asdict(row)).lastrowid or 0
            db.execute(_CLAIM_HOLDS, (ref, row.job_id, row.user))
            db.execute(_CLAIM_SUMS, (ref, row.job_id, row.user))
        else:
            db.execute(_UPDATE_JOB, {**asdict(row), "ref": ref})
        db.execute(_CLOSE_RUNS, (row.requeued_s, ref, row.restart))
        if row.start_s:
            db.execute(_START_RUN, (ref, row.restart, row.start_s, row.end_s))
        return ref

    def _hold_row(self, report: NodeReport, hold: Hold) -> HoldRow:
        ref, gpus = self._ref_of(hold), ",".join(map(str, hold.gpus))
        whose = (ref, hold.job_id, hold.restart, hold.user, gpus, len(hold.gpus))
        times = (hold.t0_ns, hold.t1_ns, hold.park_ns, hold.shared_with)
        return HoldRow(report.node, report.boot, hold.seq, *whose, *times)

    def _ref_of(self, hold: Hold) -> int | None:
        """The job a hold is of: the newest of its number, unless that came later, or is another user's."""
        found, began_s = self._find(hold.job_id), hold.t0_ns // 1_000_000_000
        if found is None or (found[1].user == hold.user and found[1].submit_s <= began_s):
            return found[0] if found else None
        row = self._db.execute(_REF_OF_THEN, (hold.job_id, hold.user, began_s)).fetchone()
        return row[0] if row else None

    def _is_news(self, node: str, item: Resident) -> bool:
        is_new = self._measured.get((node, _key(item))) != _measures(item)
        return is_new and self._ref(item.job_id) is not None


def _last_tickets(db: sqlite3.Connection) -> Iterable[Tickets]:
    query = "SELECT user, account, tickets, norm_share, max(since_ns) FROM tickets GROUP BY user"
    return [Tickets(*row[:4]) for row in db.execute(query)]


def _key(item: Resident) -> JobKey:
    return JobKey(item.job_id, item.restart)


def _measures(item: Resident) -> tuple[int, ...]:
    # A rank's own word, which may be any: one that SQLite cannot take must not keep a node's holds out.
    steps = min(item.steps, MOST_STEPS)
    counts = (item.suspends, item.reaims, item.off_boundary)
    memory = (item.live_bytes, item.peak_bytes)
    late = (item.spilled_bytes, *item.step_alone_ns, *item.step_packed_ns)
    first = (item.registered_ns, item.world, steps, *counts, item.first_ns)
    return (*first, *memory, item.begun, item.save_ns, item.written_ns, *late)
