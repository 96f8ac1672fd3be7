"""The schema of the ledger, a step for each release that changed it: a published one is never edited."""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE jobs (
        ref INTEGER PRIMARY KEY, job_id INTEGER NOT NULL,
        submit_s INTEGER NOT NULL, requeued_s INTEGER NOT NULL, restart INTEGER NOT NULL,
        array_job_id INTEGER, array_task_id INTEGER, name TEXT, user TEXT, account TEXT, partition TEXT,
        state TEXT, gpus INTEGER, type TEXT, node TEXT, start_s INTEGER, end_s INTEGER, exit_code TEXT,
        UNIQUE (job_id, submit_s)
    );
    CREATE TABLE runs (
        ref INTEGER NOT NULL REFERENCES jobs, restart INTEGER NOT NULL,
        start_s INTEGER NOT NULL DEFAULT 0, end_s INTEGER NOT NULL DEFAULT 0,
        released_ns INTEGER NOT NULL DEFAULT 0, registered_ns INTEGER NOT NULL DEFAULT 0,
        world INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0,
        suspends INTEGER NOT NULL DEFAULT 0, reaims INTEGER NOT NULL DEFAULT 0,
        off_boundary INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (ref, restart)
    ) WITHOUT ROWID;
    CREATE TABLE holds (
        node TEXT NOT NULL, boot TEXT NOT NULL, seq INTEGER NOT NULL,
        ref INTEGER REFERENCES jobs, job_id INTEGER NOT NULL, restart INTEGER NOT NULL, user TEXT NOT NULL,
        gpus TEXT NOT NULL, gpu_count INTEGER NOT NULL,
        t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL, park_ns INTEGER NOT NULL,
        PRIMARY KEY (node, boot, seq)
    ) WITHOUT ROWID;
    CREATE TABLE tickets (
        user TEXT NOT NULL, since_ns INTEGER NOT NULL, account TEXT NOT NULL, tickets INTEGER NOT NULL,
        norm_share REAL NOT NULL, PRIMARY KEY (user, since_ns)
    ) WITHOUT ROWID;
    CREATE INDEX holds_of_job ON holds (ref);
    CREATE INDEX holds_by_end ON holds (t1_ns);
    CREATE INDEX jobs_by_end ON jobs (end_s);
    """,
    "ALTER TABLE holds ADD COLUMN shared_with INTEGER NOT NULL DEFAULT 0",
    """
    ALTER TABLE runs ADD COLUMN moved_ns INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE runs ADD COLUMN first_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN live_bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN peak_bytes INTEGER NOT NULL DEFAULT 0;
    """,
    "ALTER TABLE runs ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX holds_by_begin ON holds (job_id, t0_ns)",
    # is_long: it touches more than one day; NULL: a former release wrote it, and no day's sums have it yet
    """
    DROP INDEX holds_of_job;
    ALTER TABLE holds ADD COLUMN is_long INTEGER;
    CREATE INDEX holds_over_midnight ON holds (t1_ns) WHERE is_long = 1;
    CREATE TABLE days (start_ns INTEGER PRIMARY KEY, end_ns INTEGER NOT NULL);
    CREATE TABLE sums (
        job_id INTEGER NOT NULL, restart INTEGER NOT NULL, node TEXT NOT NULL,
        day_ns INTEGER NOT NULL REFERENCES days, shared_with INTEGER NOT NULL, user TEXT NOT NULL,
        ref INTEGER NOT NULL, held_ns INTEGER NOT NULL, parking_ns INTEGER NOT NULL,
        begun_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL,
        PRIMARY KEY (job_id, restart, node, day_ns, shared_with, user, ref)
    ) WITHOUT ROWID;
    CREATE INDEX sums_by_day ON sums (day_ns);
    CREATE INDEX jobs_of_array ON jobs (array_job_id) WHERE array_job_id IS NOT NULL;
    CREATE INDEX runs_by_end ON runs (end_s);
    CREATE TABLE upkeep (
        kept_from_ns INTEGER NOT NULL, is_summed INTEGER NOT NULL,
        node TEXT NOT NULL, boot TEXT NOT NULL, seq INTEGER NOT NULL
    );
    INSERT INTO upkeep SELECT 0, NOT EXISTS (SELECT * FROM holds), '', '', 0;
    """,
    # begun, reached: mini-batches that its training had done when it began and when it ended; -1: not known
    """
    ALTER TABLE runs ADD COLUMN moved_by TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN begun INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE runs ADD COLUMN reached INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE runs ADD COLUMN save_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN signalled_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN gone_ns INTEGER NOT NULL DEFAULT 0;
    """,
    # of the GPU time that it held: what NVML looked at, and the part of that in which it was busy
    """
    ALTER TABLE runs ADD COLUMN seen_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN busy_ns INTEGER NOT NULL DEFAULT 0;
    """,
    # how long it ran, parked, to write itself to disk
    "ALTER TABLE runs ADD COLUMN written_ns INTEGER NOT NULL DEFAULT 0",
    # the most that was in host memory, for the GPU was full; what a mini-batch took of late, alone and packed
    """
    ALTER TABLE runs ADD COLUMN spilled_bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN step_p50_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN step_p99_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN packed_step_p50_ns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN packed_step_p99_ns INTEGER NOT NULL DEFAULT 0;
    """,
)
