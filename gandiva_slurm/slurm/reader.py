"""One coalesced read a cycle: all jobs by `squeue --json`, all nodes by `sinfo --json`, at the same time.

JSON, because a job's name and comment are user text: `scontrol show job` prints a name with line breaks as it
is, and no parser could tell it from fields. 22.05's --json ignores -t, -j and -r, lists finished jobs too
(for MinJobAge), and prints an empty table with exit code 0 when slurmctld is away (`fields.records`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gandiva_slurm.model.snapshot import SlurmJob, SlurmNode
from gandiva_slurm.slurm import arrays, gres
from gandiva_slurm.slurm.dependencies import Dependencies
from gandiva_slurm.slurm.fields import records
from gandiva_slurm.slurm.jobs import read_job
from gandiva_slurm.slurm.nodes import read_node
from gandiva_slurm.slurm.run import Commands, together

SQUEUE = ("squeue", "--json")
SINFO = ("sinfo", "--all", "--json")


@dataclass(frozen=True)
class Picture:
    """Jobs and nodes of our partitions; `joint` are the Gandiva arrays whose tasks still share a record."""

    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    joint: tuple[arrays.JointTasks, ...]


async def read_picture(commands: Commands, partitions: frozenset[str], timeout_s: float) -> Picture:
    """Read jobs and nodes; SlurmUnreachable when either read fails."""
    squeue, sinfo = await together(commands.output(SQUEUE, timeout_s), commands.output(SINFO, timeout_s))
    jobs, joint = read_jobs(squeue, partitions)
    return Picture(jobs, read_nodes(sinfo, partitions), joint)


def read_jobs(
    answer: str, partitions: frozenset[str]
) -> tuple[tuple[SlurmJob, ...], tuple[arrays.JointTasks, ...]]:
    """Return the jobs that are Gandiva's or in our partitions, and the joint records of Gandiva arrays."""
    everything = [(record, read_job(record)) for record in records(answer, " ".join(SQUEUE), "jobs")]
    dependencies = Dependencies(job for _, job in everything)
    jobs: list[SlurmJob] = []
    joint: list[arrays.JointTasks | None] = []
    for record, job in everything:
        if job.options is None and partitions.isdisjoint(job.partition.split(",")):
            continue
        job, tasks = arrays.untangle(record, dependencies.settle(job))
        jobs.append(job)
        joint.append(tasks)
    return tuple(jobs), tuple(filter(None, joint))


def read_nodes(answer: str, partitions: frozenset[str]) -> tuple[SlurmNode, ...]:
    """Return the nodes of our partitions."""
    nodes: Sequence[SlurmNode] = [read_node(record) for record in records(answer, " ".join(SINFO), "nodes")]
    return tuple(node for node in nodes if not partitions.isdisjoint(node.partitions))


async def read_gres(commands: Commands, timeout_s: float) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return (type, count) of each node's gres/gpu, for `gandiva check`."""
    answer = await commands.output(SINFO, timeout_s)
    nodes = records(answer, " ".join(SINFO), "nodes")
    return {node.text("name"): tuple(gres.gpus(node.text("gres"))) for node in nodes}
