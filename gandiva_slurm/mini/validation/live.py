"""The workload on a real mini cluster: submit each job at its moment, wait for all, take what they left."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gandiva_slurm.mini import demo_watch
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.validation.plan import PacedJob

POLL_S = 0.5
#: Many times what it takes.
DEADLINE_S = 900.0


@dataclass(frozen=True)
class Step:
    """One mini-batch of a job's first rank: unix nanoseconds, but for the processor time."""

    restart: int
    number: int
    began_ns: int
    ended_ns: int
    cpu_ns: int
    loss: str


@dataclass(frozen=True)
class Recorded:
    """All that is known of a run. Times are unix nanoseconds."""

    jobs: Sequence[PacedJob]
    #: by name: Slurm's number, and when sbatch had answered
    ids: Mapping[str, int]
    submitted_ns: Mapping[str, int]
    #: the nodes' event logs, in order of time
    events: Sequence[Mapping[str, Any]]
    #: gandivactld's journal: (kind, job, restart count, when it was asked for)
    actions: Sequence[tuple[str, int, int, int]]
    steps: Mapping[str, Sequence[Step]]
    #: by name: Slurm's last word
    states: Mapping[str, str]
    #: what a policy takes a move for until one was measured
    guess_ns: int = field(default=0)


def run(cluster: MiniCluster, jobs: Sequence[PacedJob], say: Callable[[str], None]) -> Recorded:
    """Play the workload; returns once all jobs have ended and Gandiva knows it."""
    demo_watch.wait_for(
        lambda: not cluster.exec(["squeue", "-h"]).stdout.strip(), "Slurm to be empty", DEADLINE_S
    )
    ids: dict[str, int] = {}
    submitted_ns: dict[str, int] = {}
    began_s = time.monotonic()
    for job in jobs:
        time.sleep(max(0.0, began_s + job.at_s - time.monotonic()))
        done = cluster.exec(["sbatch", "--parsable"], user=job.user, input=job.script)
        submitted_ns[job.name] = time.time_ns()
        ids[job.name] = int(done.stdout.strip().partition(";")[0])
        say(f"{time.monotonic() - began_s:4.0f} s: {job.user} submits {job.name}, {job.gpus} GPU(s)")
    demo_watch.wait_for(lambda: _have_ended(cluster), "all jobs to end", DEADLINE_S)
    rows = {row["job_id"]: row for row in demo_watch.ask(cluster, "acct")[0]}
    return Recorded(
        jobs, ids, submitted_ns, demo_watch.events(cluster), actions_of(cluster),
        {job.name: steps_of(cluster.path(f"/home/{job.user}/{job.name}.steps")) for job in jobs},
        {name: rows.get(job_id, {}).get("state", "LOST") for name, job_id in ids.items()},
        round(_guess_s(cluster) * 1e9),
    )  # fmt: skip


def _have_ended(cluster: MiniCluster) -> bool:
    time.sleep(POLL_S)
    if cluster.exec(["squeue", "-h"]).stdout.strip():
        return False
    return all(row["state"] == "ENDED" for row in demo_watch.queue(cluster).values())


def _guess_s(cluster: MiniCluster) -> float:
    import yaml

    told = yaml.safe_load((cluster.at.etc / "gandiva.yaml").read_text())
    return float(told["moves"]["cost_s"])


def actions_of(cluster: MiniCluster) -> list[tuple[str, int, int, int]]:
    """What gandivactld had done, by its journal: kind, job, restart count, when."""
    path = cluster.at.spool / "gandivactld" / "journal.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT kind, action, asked_ns FROM actions ORDER BY number").fetchall()
    found = []
    for kind, text, asked_ns in rows:
        job_id, restart = json.loads(text)["key"]
        found.append((kind, job_id, restart, asked_ns))
    return found


def steps_of(path: Path) -> list[Step]:
    """What a job wrote of its mini-batches, with its times as unix time."""
    if not path.exists():
        return []
    offset_ns = time.time_ns() - time.monotonic_ns()
    found = []
    for line in path.read_text().splitlines():
        restart, number, began, ended, cpu, loss = line.split()
        found.append(
            Step(int(restart), int(number), int(began) + offset_ns, int(ended) + offset_ns, int(cpu), loss)
        )
    return found
