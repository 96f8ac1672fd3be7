"""What a simulation shows: the JSON, a row a job, a line an event."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from gandiva_slurm.sim.books import Books
from gandiva_slurm.sim.job import Job

#: Version of the JSON.
VERSION = 1
#: Counts of the JSON that a policy may tell by an attribute `counts` where the world cannot see them.
COUNTS = (
    "suspends", "resumes", "migrations", "packs_tried", "packs_kept", "packs_undone", "grows", "shrinks",
    "evictions", "refusals", "trades",
)  # fmt: skip
JOB_COLUMNS = ("job_id", "user", "gpus", "submit_s", "start_s", "end_s", "jct_s", "gpu_s")


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    policy: str
    books: Books
    #: isolated completion time by job
    isolated_s: Mapping[int, float]
    counts: dict[str, int]
    events: int
    wall_s: float
    peak_rss_mib: float
    #: by user and GPU type: GPU seconds that trades brought, and took
    traded_in: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    traded_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the JSON of docs/simulator.md."""
        books = self.books
        ended = [row for row in range(len(books.specs)) if books.end_ns[row] >= 0]
        jct_s = self.jct_s()
        queue_s = [(books.start_ns[row] - books.specs[row].submit_ns) / 1e9 for row in ended]
        early_s = [
            (books.first_100_ns[row] - books.specs[row].submit_ns) / 1e9
            for row in ended
            if books.first_100_ns[row] >= 0
        ]
        users = self._users(ended)
        return {
            "version": VERSION,
            "policy": self.policy,
            "jobs": len(books.specs),
            "finished": books.finished,
            "avg_jct_s": _mean(jct_s),
            "p50_jct_s": percentile(jct_s, 50),
            "p99_jct_s": percentile(jct_s, 99),
            "makespan_s": max((books.end_ns[row] for row in ended), default=0) / 1e9,
            "avg_queue_s": _mean(queue_s),
            "avg_first_100_minibatches_s": _mean(early_s),
            "useful_gpu_s": books.useful_gpu_s,
            "held_gpu_s": sum(books.held_halves[row] for row in ended) / 2e9,
            **{name: self.counts.get(name, 0) for name in COUNTS},
            "jain": jain([user["gpu_s"] / (books.entitled_gpu_s[name] or 1) for name, user in users.items()]),
            "max_ftf": max((self._ftf(row) for row in ended), default=0.0),
            "users": users,
            "events": self.events,
            "wall_s": self.wall_s,
            "peak_rss_mib": self.peak_rss_mib,
        }

    def jct_s(self) -> list[float]:
        """Completion times of the jobs that have ended, ascending."""
        books = self.books
        return sorted(_jct_s(books, row) for row in range(len(books.specs)) if books.end_ns[row] >= 0)

    def _ftf(self, row: int) -> float:
        isolated_s = self.isolated_s.get(self.books.specs[row].job_id, 0.0)
        return _jct_s(self.books, row) / isolated_s if isolated_s else 0.0

    def _users(self, ended: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Tickets, GPU time and its part of all, the part by entitlement, and 1/ρ of each user."""
        books = self.books
        jct_s, alone_s = (dict.fromkeys(books.tickets, 0.0) for _ in range(2))
        halves = dict.fromkeys(books.tickets, 0)
        for row in ended:
            user = books.specs[row].user
            halves[user] += books.held_halves[row]
            jct_s[user] += _jct_s(books, row)
            alone_s[user] += self.isolated_s.get(books.specs[row].job_id, 0.0)
        gpu_s = {user: held / 2e9 for user, held in halves.items()}
        total, entitled = sum(gpu_s.values()) or 1.0, sum(books.entitled_gpu_s.values()) or 1.0
        return {
            user: {
                "tickets": tickets,
                "gpu_s": gpu_s[user],
                "share": gpu_s[user] / total,
                "entitled": books.entitled_gpu_s[user] / entitled,
                "rate_vs_isolated": alone_s[user] / jct_s[user] if jct_s[user] else 0.0,
                "traded_in": dict(self.traded_in.get(user, {})),
                "traded_out": dict(self.traded_out.get(user, {})),
            }
            for user, tickets in sorted(books.tickets.items())
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ascending values, linear between the two nearest; 0 of none."""
    if not ordered:
        return 0.0
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 when all are equal, 1/n when one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def write_jobs(path: Path, books: Books) -> None:
    """Write one row a job, in order of submission; empty where it has not come so far."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(JOB_COLUMNS)
        for row, spec in enumerate(books.specs):
            end_ns = books.end_ns[row]
            times = ["", "", "", ""] if end_ns < 0 else [
                books.start_ns[row] / 1e9, end_ns / 1e9, _jct_s(books, row), books.held_halves[row] / 2e9
            ]  # fmt: skip
            writer.writerow([spec.name, spec.user, spec.size, spec.submit_ns / 1e9, *times])


class Listener(Protocol):
    """Is told of each thing that happens; `clock.now_ns` is when."""

    clock: Any

    def tell(self, event: str, job: Job | None, gpus: tuple[int, ...]) -> None:
        """Take note of what happened, to whom, on which GPUs."""


class EventLines:
    """Writes a JSON line for each thing that happens."""

    def __init__(self, file: TextIO, clock: Any) -> None:
        """`clock` is the world: it has `now_ns` and the policy's `notes`."""
        self._file, self.clock = file, clock

    def tell(self, event: str, job: Job | None, gpus: tuple[int, ...]) -> None:
        """Write what happened, to whom, on which GPUs."""
        line: dict[str, Any] = {"t_s": self.clock.now_ns / 1e9, "event": event}
        if job is not None:
            line.update(job_id=job.spec.name, user=job.user)
            if job.job_id in self.clock.notes:
                line["note"] = self.clock.notes[job.job_id]
        if gpus:
            line["gpus"] = [*gpus]
        if job is not None and event == "priority":
            line["priority"] = job.priority
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _jct_s(books: Books, row: int) -> float:
    return (books.end_ns[row] - books.specs[row].submit_ns) / 1e9


def _mean(values: Iterable[float]) -> float:
    numbers = [*values]
    return sum(numbers) / len(numbers) if numbers else 0.0
