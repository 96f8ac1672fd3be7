"""Watching the demonstration's jobs at no cost: by the files that nodes and training scripts write."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_checks import JobRecord, user_shares
from gandiva_slurm.mini.demo_jobs import DemoJob, home_of


@dataclass(frozen=True)
class Row:
    """One job as the screen shows it."""

    name: str
    user: str
    gpus: int
    state: str
    steps: int
    parks: int


@dataclass(frozen=True)
class Picture:
    """What is shown: the jobs, which job holds each GPU, and the users' shares with what is due to them."""

    jobs: Sequence[Row]
    holders: Mapping[int, str]
    shares: Mapping[str, tuple[float, float]]


@dataclass
class Watcher:
    """Reads what was appended since the last look; `jobs` is filled as they are submitted."""

    cluster: MiniCluster
    gpus: int
    jobs: dict[int, DemoJob] = field(default_factory=dict)
    #: shares count from here, unix nanoseconds
    since_ns: int = field(default_factory=time.time_ns)
    ended: set[int] = field(default_factory=set)
    parks: dict[int, int] = field(default_factory=dict)
    _held: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[int, dict[str, Any]] = field(default_factory=dict)
    _logs: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        """Take in what the nodes have logged meanwhile."""
        for node in self.cluster.spec.nodes:
            path = self.cluster.path("spool", "gandivad", node.name, "events.jsonl")
            for line in self._fresh(path):
                self._take(json.loads(line))

    def _fresh(self, path: Path) -> list[bytes]:
        """Whole lines that were appended since the last look."""
        try:
            with path.open("rb") as log:
                log.seek(self._logs.get(path, 0))
                whole, newline, _ = log.read().rpartition(b"\n")
        except OSError:
            return []
        self._logs[path] = self._logs.get(path, 0) + len(whole) + len(newline)
        return whole.splitlines()

    def _take(self, event: Mapping[str, Any]) -> None:
        job_id = event.get("job", 0)
        if event["event"] == "grant" and job_id in self.jobs:
            user = self.jobs[job_id].user
            self._open[job_id] = {"user": user, "gpus": event["gpus"], "t0_ns": event["t_ns"]}
        elif event["event"] == "release" and job_id in self._open:
            self._held.append(self._open.pop(job_id) | {"t1_ns": event["t_ns"]})
        elif event["event"] == "parked":
            self.parks[job_id] = self.parks.get(job_id, 0) + 1
        elif event["event"] == "ended":
            self.ended.add(job_id)

    def began_ns(self, job_id: int) -> int | None:
        """When the job that holds its GPUs got them, unix nanoseconds; None while it has none."""
        return self._open[job_id]["t0_ns"] if job_id in self._open else None

    def steps(self, job_id: int) -> int:
        """Losses that the job's first rank has written."""
        job = self.jobs[job_id]
        try:
            return (home_of(self.cluster, job) / f"{job.name}.0.loss").read_bytes().count(b"\n")
        except OSError:
            return 0

    def have_steps(self, wanted: Mapping[int, int]) -> bool:
        """True when each of these jobs has trained its number of steps, or has ended."""
        return all(job_id in self.ended or self.steps(job_id) >= count for job_id, count in wanted.items())

    def users(self, tickets: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Shares since `since_ns` by the nodes' logs, in the shape of `user_shares`."""
        now_ns = time.time_ns()
        holds = [*self._held, *(hold | {"t1_ns": now_ns} for hold in self._open.values())]
        there = [JobRecord(key, job.name, job.user, job.gpus) for key, job in self.jobs.items()]
        return user_shares(holds, (self.since_ns, now_ns), tickets, there, self.gpus)

    def picture(self, tickets: Mapping[str, int]) -> Picture:
        """What is to be shown now."""
        self.look()
        holders = {gpu: self.jobs[key].name for key, hold in self._open.items() for gpu in hold["gpus"]}
        rows = [
            Row(job.name, job.user, job.gpus, self._state(key), self.steps(key), self.parks.get(key, 0))
            for key, job in self.jobs.items()
        ]
        users = self.users(tickets)
        return Picture(rows, holders, {user: (row["share"], row["entitled"]) for user, row in users.items()})

    def _state(self, job_id: int) -> str:
        if job_id in self.ended:
            return "ended"
        if job_id in self._open:
            return "trains" if self.steps(job_id) else "loads PyTorch"
        return "parked" if job_id in self.parks else "waits"
