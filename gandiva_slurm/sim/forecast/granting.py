"""A wish granted: the job as it would be, before the engine is run forward."""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.wish import Wish


def grant(wish: Wish, engine: Engine, work_ns: dict[int, int]) -> None:
    """Change the job, and its work with its GPUs. GandivaError: that cannot be."""
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
