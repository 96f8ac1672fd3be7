"""Two pictures in, events out. Pure: the same pictures give the same events.

A picture is compared with the last one and with what the engine holds, so that nothing is missed over a
restart: after one there is no last picture, everything is new, and what the engine knows but Slurm no longer
shows is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gandiva_slurm.model.event import (
    DaemonSeen,
    Event,
    HeldTold,
    JobGone,
    JobSeen,
    NodeGone,
    NodeSeen,
    ResidentGone,
    ResidentSeen,
    SharesSeen,
)
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import FINISHED, Association, SlurmJob, SlurmNode, Snapshot, is_reused
from gandiva_slurm.wire.messages import NodeReport, Resident


@dataclass(frozen=True)
class Picture:
    """Slurm's last word on everything of ours. Built by `look`, compared by `slurm_events`."""

    jobs: Mapping[int, SlurmJob]
    nodes: Mapping[str, SlurmNode]
    associations: tuple[Association, ...] | None = None
    #: jobs of our partitions without a record of ours: submitted before Gandiva was, or moved in by root
    others: Mapping[int, SlurmJob] = field(default_factory=dict)

    @property
    def heard(self) -> set[str]:
        """The nodes that slurmctld hears."""
        return {name for name, node in self.nodes.items() if node.is_heard}


def look(snapshot: Snapshot, last: Picture | None, held: Mapping[int, SlurmJob]) -> Picture:
    """Pick Gandiva's jobs and nodes out of a snapshot.

    `held` are the jobs the engine has: one whose AdminComment somebody overwrote keeps its options, for a
    job that Slurm still shows is not gone; nor is one whose record cannot be read. Associations that were not
    read this time stay.
    """
    jobs: dict[int, SlurmJob] = {}
    others: dict[int, SlurmJob] = {}
    for job in snapshot.jobs:
        known = held.get(job.job_id)
        if known is not None and is_reused(job, known.user, known.submit_s):
            continue  # the one that had its number is gone first; it is new at the next look
        if job.options is None and known is not None:
            job = replace(job, options=known.options)
        (others if job.options is None else jobs)[job.job_id] = job
    for job_id in snapshot.unread:  # as it was, as far as it is known
        if last is not None and job_id in last.others:
            others[job_id] = last.others[job_id]
        elif job_id in held:
            jobs[job_id] = held[job_id]
    associations = snapshot.associations
    if associations is None and last is not None:
        associations = last.associations
    return Picture(jobs, {node.name: node for node in snapshot.nodes}, associations, others)


def slurm_events(
    old: Picture | None, new: Picture, held_jobs: Iterable[int], held_nodes: Iterable[str]
) -> list[Event]:
    """Return what changed in Slurm. `held_jobs` are the engine's live jobs, `held_nodes` its nodes."""
    was = old or Picture({}, {})
    events: list[Event] = []
    if new.associations is not None and new.associations != was.associations:
        events.append(SharesSeen(new.associations))
    events += [NodeSeen(node) for name, node in sorted(new.nodes.items()) if was.nodes.get(name) != node]
    events += [NodeGone(name) for name in sorted({*was.nodes, *held_nodes} - new.nodes.keys())]
    for job_id, job in sorted(new.jobs.items()):
        if was.jobs.get(job_id) != job:
            events.append(_gone(job) if job.state in FINISHED else JobSeen(job))
    unfinished = {job_id for job_id, job in was.jobs.items() if job.state not in FINISHED}
    vanished = {*unfinished, *held_jobs} - new.jobs.keys()
    events += [JobGone(job_id, "", 0, "") for job_id in sorted(vanished)]
    return events


def report_events(
    report: NodeReport,
    held: Iterable[JobKey],
    others: Mapping[int, SlurmJob] | None = None,
    heard_ns: int = 0,
) -> list[Event]:
    """Return what a node says of its residents; what the engine still holds there and it has not, is gone.

    All are told each time: what the engine could not use yet (Slurm showed the job later) it can next time.
    A job of `others` that Slurm shows alive on this node is no stray: it is sliced there and left alone.
    `heard_ns`: when it was heard; then what each has held is told too, which a policy charges.
    """
    guests = {job_id for job_id, job in (others or {}).items() if _is_alive_on(job, report.node)}
    residents = sorted((item for item in report.residents if item.job_id not in guests), key=_key)
    gone = sorted({*held} - {_key(item) for item in residents})
    times = tuple((_key(item), item.gpu_ns) for item in residents if heard_ns)
    return [
        *(_seen(report.node, item) for item in residents),
        *([HeldTold(report.node, times, heard_ns)] if times else []),
        *(ResidentGone(report.node, key) for key in gone),
    ]


def daemon_events(old: Mapping[str, bool], new: Mapping[str, bool]) -> list[Event]:
    """Return which nodes' daemons began or ceased to answer."""
    return [DaemonSeen(name, alive) for name, alive in sorted(new.items()) if old.get(name) != alive]


def _is_alive_on(job: SlurmJob, node: str) -> bool:
    return job.state not in FINISHED and node in job.nodes


def _gone(job: SlurmJob) -> JobGone:
    return JobGone(job.job_id, job.state, job.end_s, job.exit_code, job.restart)


def _key(item: Resident) -> JobKey:
    return JobKey(item.job_id, item.restart)


def _seen(node: str, item: Resident) -> ResidentSeen:
    stand, words = (_key(item), item.state, item.gpus), (item.reason, item.detail)
    return ResidentSeen(
        node, *stand, *words, item.parked_ns, item.has_left, item.measured, item.has_floor,
        spent_ns=item.spent_ns,
    )
