"""How long the jobs that ended last held their GPUs, and what starts took: for forecasts."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

#: How many of the jobs that ended last are looked at, and of the runs that began.
MOST_JOBS, MOST_RUNS = 5_000, 200


class Ended(NamedTuple):
    """A job that has ended, and how long it held its GPUs, all its runs together."""

    job_id: int
    end_s: int
    user: str
    name: str
    gpus: int
    length_ns: int


_ENDED = """
    WITH last AS (
        SELECT ref, job_id, user, coalesce(name, '') AS name, gpus, end_s FROM jobs
        WHERE end_s > 0 AND gpus > 0 ORDER BY end_s DESC LIMIT ?
    )
    SELECT last.job_id, last.end_s, last.user, last.name, last.gpus,
        sum(CASE shared_with WHEN 0 THEN held_ns ELSE held_ns / 2 END) / last.gpus
    FROM last CROSS JOIN sums ON sums.job_id = last.job_id AND sums.ref = last.ref
    GROUP BY last.ref ORDER BY last.end_s, last.ref
"""
_LOADED = """
    SELECT first_ns - released_ns FROM runs WHERE released_ns > 0 AND first_ns > released_ns
    ORDER BY released_ns DESC LIMIT ?
"""


def ended_jobs(db: sqlite3.Connection) -> list[Ended]:
    """Return the jobs that ended last, the latest at the end. sqlite3.Error: the ledger cannot be read."""
    return [Ended(*row) for row in db.execute(_ENDED, (MOST_JOBS,))]


def load_ns(db: sqlite3.Connection) -> int:
    """Return the median of what starts took, from the order to the first mini-batch; 0: not known."""
    took = sorted(ns for (ns,) in db.execute(_LOADED, (MOST_RUNS,)))
    return int(took[len(took) // 2]) if took else 0
