"""The jobs that `gandiva top` shows: the first of an order, found without a row being made of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import UsageError

#: Rows in one answer: more than any screen has lines.
MOST_ROWS = 500
#: Jobs that hold GPUs are shown first, then those that live beside them, then those that wait.
_FIRST = (states.RUNNING, states.RESUMING, states.SUSPENDING, states.CHECKPOINTING, states.SUSPENDED)
_RANK = {state: number for number, state in enumerate(_FIRST)}

Key = Callable[[JobRecord], Any]

ORDERS: dict[str, Key] = {
    "state": lambda record: _RANK.get(record.state, len(_FIRST)),
    "user": lambda record: record.job.user,
    "gpus": lambda record: -record.options.gpus,
    "newest": lambda record: (-record.job.submit_s, -record.job.job_id),
}


def alive(records: Iterable[JobRecord], order: str) -> list[JobRecord]:
    """Return the jobs that have not ended, in an order, equal ones as submitted; UsageError: no order."""
    if order not in ORDERS:
        raise UsageError(f"no order {order[:40]!r}; known: {', '.join(ORDERS)}")
    found = [record for record in records if record.state != states.ENDED]
    key = ORDERS[order]
    return sorted(found, key=lambda record: (key(record), record.order))


def chosen(
    records: Iterable[JobRecord], users: frozenset[str] | None, text: str, most: int
) -> tuple[Sequence[JobRecord], dict[str, int]]:
    """Return the first of these users' jobs with the text in a name of theirs, and how many by state."""
    wanted = text.casefold()
    fits = [
        record
        for record in records
        if (users is None or record.job.user in users) and (not wanted or wanted in _names(record))
    ]
    return fits[: max(0, min(most, MOST_ROWS))], dict(Counter(record.state for record in fits))


def _names(record: JobRecord) -> str:
    job = record.job
    words = (str(job.job_id), job.name, job.user, job.account, job.partition, record.state, record.code)
    return "\n".join(words).casefold()
