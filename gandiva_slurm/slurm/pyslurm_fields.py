"""pyslurm's attributes, turned into the records squeue and scontrol print, so that one reader serves both.

What pyslurm (25.11.2) loses on the way, and what is done about it:

- task 0 of an array has no task number (0 reads as None): an array's record that has neither task number nor
  waiting tasks is task 0;
- an exit code from 128 on is shown less 128: `Told.exit_code` has it from squeue;
- of dependencies, their order and an unfulfilled `singleton` are lost: `Told.dependency` has the text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.slurm import states
from gandiva_slurm.slurm.fields import Fields
from gandiva_slurm.slurm.options import PREFIX

JOBS, NODES = "pyslurm.Jobs", "pyslurm.Nodes"
#: How Slurm's number without limit is written.
UNLIMITED = "UNLIMITED"


@dataclass(frozen=True)
class Told:
    """What squeue knows better of one job."""

    exit_code: str
    dependency: str | None


def job_records(jobs: Iterable[Mapping[str, Any]], told: Mapping[int, Told]) -> list[Fields]:
    """Return the records of jobs as the worker sent them."""
    return [
        Fields(_job(job, told.get(job["id"])), ("pyslurm", "Jobs", index)) for index, job in enumerate(jobs)
    ]


def node_records(nodes: Iterable[Mapping[str, Any]]) -> list[Fields]:
    """Return the records of nodes as the worker sent them."""
    return [Fields(_node(node), ("pyslurm", "Nodes", index)) for index, node in enumerate(nodes)]


def is_unsure(job: Mapping[str, Any], partitions: Collection[str]) -> bool:
    """True when squeue must be asked about this job: one that may be ours, with what pyslurm loses."""
    is_ours = PREFIX in (job["admin_comment"] or "") or bool(
        set((job["partition"] or "").split(",")) & set(partitions)
    )
    failed = states.is_finished(job["state"] or "") and job["state"] != states.WELL
    return is_ours and (failed or job["dependencies"] is not None)


def unsure_key(job: Mapping[str, Any]) -> tuple[object, ...] | None:
    """Return what squeue's answer on this job hangs on; None when it must be asked each time.

    Slurm changes the dependencies of a job only while it is not held.
    """
    if job["dependencies"] is not None and job["priority"] != 0:
        return None
    return job["id"], job["submit_time"], job["requeue_count"], job["state"], repr(job["dependencies"])


def _job(job: Mapping[str, Any], told: Told | None) -> dict[str, Any]:
    tres = job["tres"]
    is_task_0 = job["array_id"] and job["array_task_id"] is None and not job["array_tasks_waiting"]
    code, _, signal = told.exit_code.partition(":") if told else ("", "", "")
    return {
        "job_id": job["id"],
        "job_state": job["state"],
        "user_name": job["user_name"],
        "user_id": job["user_id"] or 0,
        "account": job["account"],
        "partition": job["partition"],
        "state_reason": job["state_reason"],
        "state_description": None,
        "name": job["name"],
        "priority": 2**32 - 1 if job["priority"] == UNLIMITED else job["priority"],
        "restart_cnt": job["requeue_count"],
        "nodes": job["allocated_nodes"],
        "array_job_id": job["array_id"],
        "array_task_id": 0 if is_task_0 else job["array_task_id"],
        "array_task_string": job["array_tasks_waiting"],
        "array_max_tasks": job["array_tasks_parallel"],
        "qos": job["qos"],
        "tres_alloc_str": None,
        "tres_req_str": ",".join(f"{kind}={count}" for kind, count in tres.items() if count is not None),
        "cpus": job["cpus"],
        "time_limit": job["time_limit"],
        "submit_time": job["submit_time"],
        "eligible_time": job["eligible_time"],
        "start_time": job["start_time"],
        "end_time": job["end_time"],
        "exit_code": {
            "return_code": int(code) if code else job["exit_code"],
            "signal": {"id": int(signal) if signal else job["exit_code_signal"]},
        },
        "batch_flag": job["is_batch_job"],
        "requeue": job["is_requeueable"],
        "dependency": _conditions(job["dependencies"], told),
        "admin_comment": job["admin_comment"],
    }


def _conditions(dependencies: Mapping[str, Any] | None, told: Told | None) -> str:
    """Return the conditions as far as they are known; something, lest the job be started early."""
    if dependencies is None:
        return ""
    if told and told.dependency is not None:
        return told.dependency
    known = {kind: jobs for kind, jobs in dependencies.items() if isinstance(jobs, list)}
    conditions = [f"{kind}:{job}" for kind, jobs in known.items() for job in jobs]
    mark = "?" if dependencies["satisfy"] == "any" else ","
    return mark.join(conditions) or "singleton(unfulfilled)"


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    used = (node["allocated_tres"] or {}).get("gres/gpu", 0)
    return {
        "name": node["name"],
        "state": (node["state"] or "").split("+"),
        "gres": ",".join(f"{name}:{count}" for name, count in (node["configured_gres"] or {}).items()),
        "gres_used": f"gpu:{used}",
        "cpus": node["total_cpus"],
        "real_memory": node["real_memory"],
        "address": node["address"],
        "partitions": node["partitions"],
        "reason": node["reason"],
    }
