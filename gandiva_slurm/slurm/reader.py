"""One coalesced read a cycle: all jobs by `squeue --json`, and all nodes, at the same time.

JSON, because a job's name and comment are user text: `scontrol show job` prints a name with line breaks as it
is, and no parser could tell it from fields. 22.05's --json ignores -a, -t, -j and -r, lists finished jobs too
(for MinJobAge), and prints an empty table with exit code 0 when slurmctld is away (`fields.records`). Later
releases heed the options, so all states are asked for. Their `sinfo --json` sums nodes up instead of
listing them, and `scontrol show nodes` prints JSON, which 22.05's does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.model.snapshot import SlurmJob, SlurmNode
from gandiva_slurm.slurm import arrays, gres
from gandiva_slurm.slurm.dependencies import Dependencies
from gandiva_slurm.slurm.fields import Fields, records
from gandiva_slurm.slurm.jobs import read_job
from gandiva_slurm.slurm.nodes import read_node
from gandiva_slurm.slurm.run import Commands, together

SQUEUE = ("squeue", "--all", "--states=all")
SINFO = ("sinfo", "--all")
NODES = ("scontrol", "--all", "show", "nodes")
#: The first release whose `scontrol` prints JSON.
SCONTROL_JSON = (23, 2)
#: The short form of JSON, in the releases it was tried on: numbers as they are, null where there is none.
#: It takes half the time of the plain one, which writes three words for most numbers.
SHORT_FORMS = {(24, 11): "--json=v0.0.42+complex", (26, 5): "--json=v0.0.45+complex"}

#: More jobs than this that cannot be read are another form of Slurm's answer, not faults of single jobs.
MOST_UNREAD = 4

Jobs = tuple[tuple[SlurmJob, ...], tuple[arrays.JointTasks, ...]]
#: Jobs that could not be read, each with a sentence.
Unread = dict[int, str]


@dataclass(frozen=True)
class Picture:
    """Jobs and nodes of our partitions; `joint` are the Gandiva arrays whose tasks still share a record."""

    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    joint: tuple[arrays.JointTasks, ...]
    unread: Unread = field(default_factory=dict)


async def read_picture(
    commands: Commands, partitions: frozenset[str], timeout_s: float, version: tuple[int, int]
) -> Picture:
    """Read jobs and nodes; SlurmUnreachable when either read fails. `version` is the commands' release."""
    squeue, nodes = jobs_command(version), nodes_command(version)
    told = await together(commands.output(squeue, timeout_s), commands.output(nodes, timeout_s))
    unread: Unread = {}
    jobs, joint = read_jobs(told[0], partitions, squeue, unread)
    return Picture(jobs, read_nodes(told[1], partitions, nodes), joint, unread)


def jobs_command(version: tuple[int, int]) -> tuple[str, ...]:
    """Return the command that lists jobs as JSON in this release, as (22, 5)."""
    return (*SQUEUE, SHORT_FORMS.get(version, "--json"))


def nodes_command(version: tuple[int, int]) -> tuple[str, ...]:
    """Return the command that lists nodes as JSON in this release."""
    return (*(NODES if version >= SCONTROL_JSON else SINFO), SHORT_FORMS.get(version, "--json"))


def release(version: str) -> tuple[int, int]:
    """Return 26.05.5 as (26, 5); (0, 0) where there is none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def read_jobs(
    answer: str,
    partitions: frozenset[str],
    command: Sequence[str] = SQUEUE,
    unread: Unread | None = None,
) -> Jobs:
    """Read the answer of `jobs_command`; `unread` takes in the jobs that cannot be read."""
    return pick_jobs(records(answer, " ".join(command), "jobs"), partitions, unread)


def pick_jobs(found: Iterable[Fields], partitions: frozenset[str], unread: Unread | None = None) -> Jobs:
    """Return the jobs that are Gandiva's or in our partitions, and the joint records of Gandiva arrays.

    `unread` takes in some jobs that cannot be read; without it, and for many, the error is raised.
    """
    everything = _read_each(found, {} if unread is None else unread, 0 if unread is None else MOST_UNREAD)
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


def _read_each(found: Iterable[Fields], unread: Unread, most: int) -> list[tuple[Fields, SlurmJob]]:
    jobs = []
    for record in found:
        try:
            jobs.append((record, read_job(record)))
        except Exception as err:  # whatever one job's record makes of the code that reads it
            if len(unread) >= most:
                raise
            unread[record.number("job_id")] = str(err) or type(err).__name__
            last = err
    if unread and not jobs:
        raise last
    return jobs


def read_nodes(
    answer: str, partitions: frozenset[str], command: Sequence[str] = SINFO
) -> tuple[SlurmNode, ...]:
    """Read the answer of `nodes_command`."""
    return pick_nodes(records(answer, " ".join(command), "nodes"), partitions)


def pick_nodes(found: Iterable[Fields], partitions: frozenset[str]) -> tuple[SlurmNode, ...]:
    """Return the nodes of our partitions."""
    nodes = (read_node(record) for record in found)
    return tuple(node for node in nodes if not partitions.isdisjoint(node.partitions))


async def read_gres(
    commands: Commands, timeout_s: float, version: tuple[int, int]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return (type, count) of each node's gres/gpu, for `gandiva check`."""
    command = nodes_command(version)
    nodes = records(await commands.output(command, timeout_s), " ".join(command), "nodes")
    return {node.text("name"): tuple(gres.gpus(node.text("gres"))) for node in nodes}
