"""A wish granted: the job as it would be, before the engine is run forward."""

from __future__ import annotations

import json
from dataclasses import replace

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.event import JobSeen
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.model.wish import Wish

#: How long one runs that is not submitted yet and names no limit, in seconds.
NO_LIMIT_S = 24 * 3600


def grant(wish: Wish, engine: Engine, work_ns: dict[int, int], now_ns: int) -> None:
    """Change the job, and its work with its GPUs. GandivaError: that cannot be."""
    if wish.what == "new":
        _submit(wish, engine, work_ns, now_ns)
        return
    record = engine.jobs.get(wish.job_id)
    if record is None or record.state == states.ENDED:
        raise GandivaError(f"Gandiva has no job {wish.job_id} that waits or runs")
    options = record.options
    if wish.what == "tickets":
        options = replace(options, tickets=int(wish.value))
    elif record.state not in states.WAITING or record.job.restart:
        text = f"job {wish.job_id} has begun: --if {wish.what} is for jobs that wait to begin"
        raise GandivaError(f"{text}; --if tickets=N is for all")
    elif wish.what == "type":
        options = replace(options, gpu_type=wish.value, types=())
    elif options.nodes > 1:
        raise GandivaError(f"job {wish.job_id} is of {options.nodes} nodes: --if gpus is for those of one")
    else:  # it takes the same GPU time
        work_ns[wish.job_id] = work_ns[wish.job_id] * max(1, options.gpus) // int(wish.value) + 1
        options = replace(options, gpus=int(wish.value), elastic="")
    record.job = replace(record.job, options=options)


def _submit(wish: Wish, engine: Engine, work_ns: dict[int, int], now_ns: int) -> None:
    """Let the engine see a job more, as the submission filter leaves one: held."""
    told = json.loads(wish.value)
    user, now_s = str(told["user"]), (now_ns + engine.state.skew_ns) // 10**9
    account = next((row.account for row in engine.state.associations if row.user == user), "")
    options = JobOptions(gpus=told["gpus"], nodes=told["nodes"], gpu_type=told["type"])
    limit_s = told["limit"] or NO_LIMIT_S
    job = SlurmJob(
        wish.job_id, user, told["uid"], account, told["partition"], "PENDING", "JobHeldAdmin", "new",
        submit_s=now_s, eligible_s=now_s, node_count=options.nodes, time_limit_s=limit_s, options=options,
    )  # fmt: skip
    engine.handle([JobSeen(job)], now_ns)
    work_ns[wish.job_id] = limit_s * 10**9
