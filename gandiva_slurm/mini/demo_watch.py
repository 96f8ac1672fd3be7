"""Looking at a running mini cluster: wait for what it shows, fetch what it recorded."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_checks import JobRecord
from gandiva_slurm.mini.demo_jobs import DemoJob, home_of, read_losses, read_steps
from gandiva_slurm.model.errors import GandivaError

POLL_S = 0.2
#: `gandiva` has no command for raw holds: operators' scripts ask the controller like this.
ASK = (
    "import json, sys; from gandiva_slurm.cli.client import query; "
    "print(json.dumps([query(None, name, {}) for name in sys.argv[1:]]))"
)


def wait_for(
    is_so: Callable[[], bool], what: str, deadline_s: float
) -> None:
    """Return once `is_so`; GandivaError when that takes longer than `deadline_s`."""
    ends_s = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > ends_s:
            raise GandivaError(
                f"waited {deadline_s:.0f} s for {what}; is this machine busy? see the daemons' logs"
            )
        time.sleep(POLL_S)


def queue(cluster: MiniCluster) -> dict[int, dict[str, Any]]:
    """What `gandiva queue` shows, by job id."""
    rows = json.loads(cluster.exec(["gandiva", "queue", "-t", "all", "--json"]).stdout)["jobs"]
    return {row["job_id"]: row for row in rows}


def holds(cluster: MiniCluster) -> list[dict[str, Any]]:
    """Every hold in the controller's ledger."""
    found: list[dict[str, Any]] = ask(cluster, "holds")[0]
    return found


def ask(cluster: MiniCluster, *names: str) -> list[Any]:
    """The controller's answers (`acct`, `share`, `holds` ...), by one process."""
    answers: list[Any] = json.loads(cluster.exec(["python", "-c", ASK, *names]).stdout)
    return answers


def events(cluster: MiniCluster) -> list[dict[str, Any]]:
    """The nodes' event logs, in order of time."""
    found: list[dict[str, Any]] = []
    for node in cluster.spec.nodes:
        path = cluster.path("spool", "gandivad", node.name, "events.jsonl")
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda event: event["mono_ns"])


def record(cluster: MiniCluster, job: DemoJob, row: dict[str, Any]) -> JobRecord:
    """All that is known of one ended job but its run alone; `row` is of `gandiva acct --json`."""
    prefix = home_of(cluster, job) / job.name
    return JobRecord(
        row["job_id"], job.name, job.user, job.gpus, row["state"], row["suspends"], row["start_latency_s"],
        losses=read_losses(prefix, job.gpus), steps=read_steps(prefix, job.gpus),
    )  # fmt: skip


def pyslurm_version(cluster: MiniCluster) -> str | None:
    """The version of pyslurm that gandivactld reads Slurm through, by its log; None with Slurm's commands."""
    told = re.findall(r"through pyslurm (\S+)", cluster.log("gandivactld").read_text(errors="replace"))
    return told[-1] if told else None


def output_of(cluster: MiniCluster, job: DemoJob) -> str:
    """The end of what a job printed, for an error message."""
    path: Path = home_of(cluster, job) / f"{job.name}.out"
    return path.read_text(errors="replace")[-800:] if path.exists() else ""
