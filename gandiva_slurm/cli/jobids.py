"""Job ids, states and users as users type them: 123, 123_4, 123.batch; PD, RUNNING, held; ann, 1000."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gandiva_slurm.cli.client import query
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.job import ENDED

_JOB = re.compile(r"(\d{1,10})(?:_(\d{1,10}))?(?:\.(?:\w+))?(?:\+0)?")

#: sacct's state codes (JOB STATE CODES of sacct(1)).
STATE_CODES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}


class JobId(NamedTuple):
    """A job, or one task of an array."""

    job_id: int
    task: int | None


def parse_job_ids(text: str) -> tuple[JobId, ...]:
    """Read `12,13_4`; a step suffix (12.batch) means its job. UsageError names the bad one."""
    return tuple(parse_job_id(part) for part in text.split(",") if part.strip())


def parse_job_id(text: str) -> JobId:
    """Read one job id; UsageError says what was wrong with it."""
    match = _JOB.fullmatch(text.strip())
    if not match:
        raise UsageError(f"invalid job id {text!r}; allowed: 123, 123_4 (a task of an array), 123.batch")
    return JobId(int(match[1]), int(match[2]) if match[2] else None)


def find_jobs(config: str | None, wanted: JobId, typed: str, is_live: bool = False) -> list[int]:
    """Return the job's id, or those of an array's tasks, each of which is a job of its own.

    `is_live`: those that have not ended.
    """
    rows = [row for row in query(config, "queue", {"job_ids": [wanted.job_id]}) if is_wanted(row, [wanted])]
    found = [int(row["job_id"]) for row in rows if not is_live or row["state"] != ENDED]
    if not found:
        raise GandivaError(f"Gandiva has no job {typed} now; `gandiva acct -j {typed}` looks back")
    return found


def is_wanted(row: Mapping[str, Any], wanted: Iterable[JobId]) -> bool:
    """True when a row of queue or acct is one of `wanted`; an array's id stands for all its tasks."""
    array, task = row.get("array_job_id"), row.get("array_task_id")
    whole = {row["job_id"], array}
    return any(want.job_id in whole if want.task is None else want == (array, task) for want in wanted)


def show_job_id(row: Mapping[str, Any]) -> str:
    """Write a row's job id, array tasks as 12_3."""
    if row.get("array_job_id") and row.get("array_task_id") is not None:
        return f"{row['array_job_id']}_{row['array_task_id']}"
    return str(row["job_id"])


def by_job_id(row: Mapping[str, Any]) -> tuple[int, int]:
    """Order rows as their ids are shown: an array's tasks together, by number."""
    task = row.get("array_task_id")
    return row.get("array_job_id") or row["job_id"], -1 if task is None else task


def parse_states(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Read a list of states, short or long, any case; UsageError lists `known`."""
    names = set(known)
    found = []
    for part in text.split(","):
        word = STATE_CODES.get(part.strip().upper(), part.strip().upper())
        if word not in names:
            raise UsageError(f"invalid state {part.strip()!r}; allowed: {', '.join(sorted(names))}")
        found.append(word)
    return tuple(found)


def parse_users(text: str | None) -> list[str] | None:
    """Read a comma-separated list of users, by name or number; None stays None."""
    names = parse_names(text)
    return names if names is None else [_user_name(name) for name in names]


def require_users(names: Iterable[str] | None) -> None:
    """UsageError for one whom this machine does not know: asked where nothing is known of any of them."""
    for name in names or ():
        try:
            pwd.getpwnam(name)
        except KeyError as err:
            raise UsageError(f"invalid user {name!r}: not known here, and nothing is recorded of it") from err


def _user_name(text: str) -> str:
    try:
        return pwd.getpwuid(int(text)).pw_name if text.isdecimal() else text
    except (KeyError, OverflowError, ValueError):
        return text


def parse_names(text: str | None) -> list[str] | None:
    """Read a comma-separated list of names; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
