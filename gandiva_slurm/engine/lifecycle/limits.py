"""Limits of associations, QOS and partitions: only Slurm knows them, so a job is started to ask.

A job that Slurm lets pend for a limit is taken back at once, not at the start deadline: its place is free
again and nobody waits behind it in Slurm's queue. It asks again later, at once when a job that may have used
up the limit has ended. Its peers (same association, QOS and partition) that want as much or more wait with
it: of a hundred jobs behind one limit one asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.engine.lifecycle.event_handlers import hold_again
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.pending import explain
from gandiva_slurm.model.reason import Reason, because

#: Who shares a job's limits: account, user, QOS, partition.
Peers = tuple[str, str, str, str]

_LIMITED = ("Limit", "BehindLimit")


def take_back_limited(at: Cycle, record: JobRecord) -> bool:
    """Take back a start that Slurm puts off for a limit; True when it was."""
    job = record.job
    pending = explain(job.reason, job.job_id)
    if job.is_held or job.state != "PENDING" or not pending.is_limit:
        return False
    wait_s = at.settings.probe_ns // 10**9
    reason = because("Limit", words=pending.words, word=job.reason, then=pending.then, wait_s=wait_s)
    record.move(states.HELD, reason, at.now_ns)
    record.retry_ns = at.now_ns + at.settings.probe_ns
    hold_again(at, record)
    return True


def waiting_for_limits(at: Cycle) -> Mapping[Peers, list[JobRecord]]:
    """Return the jobs that wait for limits, or ask, by whom they share those with, first submitted first."""
    found: dict[Peers, list[JobRecord]] = {}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order):
        is_limited = record.state == states.HELD and record.code in _LIMITED
        if is_limited or record.state == states.STARTING:
            found.setdefault(peers_of(record), []).append(record)
    return found


def behind(at: Cycle, record: JobRecord, waiting: Mapping[Peers, list[JobRecord]]) -> Reason | None:
    """Why a job need not ask now: a peer that wants no more goes first, or asks, or was told to wait."""
    for peer in waiting.get(peers_of(record), ()):
        if peer.state == states.STARTING and record.code not in _LIMITED:
            continue  # nobody has told this one yet that there is a limit
        is_first = peer.order < record.order or (peer.code == "Limit" and peer.retry_ns > at.now_ns)
        if peer is not record and is_first and _wants_as_much(record, peer):
            return because("BehindLimit", peer.text, job=peer.job.job_id)
    return None


def peers_of(record: JobRecord) -> Peers:
    """Whom it shares its limits with."""
    job = record.job
    return (job.account, job.user, job.qos, job.partition)


def _wants_as_much(record: JobRecord, peer: JobRecord) -> bool:
    mine, his = record.job, peer.job
    return (
        record.options.gpus >= peer.options.gpus
        and mine.cpus >= his.cpus
        and mine.memory_mib >= his.memory_mib
        and mine.time_limit_s >= his.time_limit_s
    )
