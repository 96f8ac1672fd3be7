"""What of a plan reaches the nodes: where one misses its part of a round, all stays there as it is."""

from __future__ import annotations

import random

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.job import Job

Runs = dict[int, tuple[int, ...]]


def missed_hosts(cluster: Cluster, part: float, seed: int, now_ns: int) -> frozenset[int]:
    """Draw the nodes that miss their part of the round at `now_ns`, each with the probability `part`."""
    draw = random.Random(f"{seed}/{now_ns}")
    return frozenset(index for index in range(len(cluster.hosts)) if draw.random() < part)


def carried_out(runs: Runs, running: dict[int, Job], cluster: Cluster, missed: frozenset[int]) -> Runs:
    """Return what runs once all nodes but the missed have carried out a plan.

    A job that runs on a missed node, or is to move to one, stays where it is; a job that was to come to one,
    or to GPUs that are kept so, does not come.
    """
    kept: Runs = {}
    for job_id, job in running.items():
        gpus = (*job.gpus, *runs.get(job_id, ()))
        if not missed.isdisjoint(cluster.hosts_of(gpus)):
            kept[job_id] = job.gpus
    taken = {gpu for gpus in kept.values() for gpu in gpus}
    come = {
        job_id: gpus
        for job_id, gpus in runs.items()
        if job_id not in kept and missed.isdisjoint(cluster.hosts_of(gpus)) and taken.isdisjoint(gpus)
    }
    return dict(sorted({**kept, **come}.items()))
