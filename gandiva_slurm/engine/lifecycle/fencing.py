"""Which incarnations a node must stop: none that Slurm shows there, all others in time (ADR 0003)."""

from __future__ import annotations

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import Sighting
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Fence
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import Reason, because


def fence_strays(at: Cycle) -> None:
    """Note what nodes have that they should not, and fence it once its grace is over."""
    for (node, key), sighting in sorted(at.state.sightings.items()):
        found = _cancelled_unborn(at, key, sighting) or _oddity(at, node, key)
        if found is None:
            sighting.odd_ns, sighting.is_fenced = 0, False
            continue
        reason, is_urgent = found
        sighting.odd_ns = sighting.odd_ns or at.now_ns
        is_due = is_urgent or at.now_ns - sighting.odd_ns >= at.settings.fence_grace_ns
        if is_due and not sighting.is_fenced:
            sighting.is_fenced = True
            at.actions.append(Fence(f"fence:{key}:{at.now_ns}", key, node, reason.code, reason.text))


def _oddity(at: Cycle, node: str, key: JobKey) -> tuple[Reason, bool] | None:
    """Why this incarnation should not be on this node, and whether it must go at once; None when it may.

    A newer restart than ours, or the newest while Slurm's picture is older than the node's, is left alone.
    """
    record = at.state.jobs.get(key.job_id)
    if record is None:
        return (because("Strange", job=key.job_id), False) if at.state.has_read_slurm else None
    if key.restart > record.job.restart:
        return None
    if record.state == states.ENDED:
        return because("Leftover"), False
    if key.restart < record.job.restart:
        # two live incarnations must never be: as soon as the newer may run, the older goes; before that where
        # both would write the same files
        is_urgent = record.is_placed or (record.job.state == "PENDING" and bool(record.options.saves_by))
        return because("Stale", key=key, newest=record.key), is_urgent
    if record.state in states.RESIDENT and node not in record.job.nodes:
        return because("Elsewhere", key=key, node=node, home=",".join(record.nodes)), False
    return None


def _cancelled_unborn(at: Cycle, key: JobKey, sighting: Sighting) -> tuple[Reason, bool] | None:
    """Slurm ends or requeues a job whose tasks are stopped before they begin: they go at once.

    slurmstepd signals only tasks that have begun: without a fence the job would end at its first turn, and
    what is requeued would wait for that.
    """
    record = at.state.jobs.get(key.job_id)
    if record is None or not sighting.is_unborn:
        return None
    is_ending = record.key == key and record.job.state == "COMPLETING"
    return (because("Leftover"), True) if is_ending or key.restart < record.job.restart else None
