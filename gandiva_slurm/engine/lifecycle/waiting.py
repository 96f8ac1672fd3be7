"""What keeps a held job from being placed, other than room.

Slurm looks at neither dependencies nor begin times while it holds a job (22.05.8: a dependency long met is
still shown as unfulfilled). Begin times the engine judges itself. Dependencies only Slurm can: such a job is
started like any other, and if Slurm then says that it waits for others it is held again and tried anew later,
at once when a job it names has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.lifecycle.event_handlers import hold_again
from gandiva_slurm.engine.lifecycle.limits import take_back_limited
from gandiva_slurm.engine.lifecycle.owners import lacks_vc
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import OWNER_HOLD_S, SECOND_NS, JobRecord, named_jobs
from gandiva_slurm.engine.state.sizes import most_nodes
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import Reason, because

#: Slurm's reasons for a released job that waits for others.
DEPENDENCY_REASONS = frozenset({"Dependency", "DependencyNeverSatisfied"})

#: What keeps a job for a moment only: what is kept for it is not given to others.
PASSING = frozenset({"NotPending", "StillThere"})

#: Dependencies that cannot be met while the job they name is alive.
_UNTIL_END = ("afterok:", "afterany:", "afternotok:", "aftercorr:")


def obstacle(at: Cycle, record: JobRecord) -> Reason | None:
    """What keeps a held job from being placed, other than room; None when nothing does."""
    job = record.job
    if record.is_owner_held:
        return because("RequeuedHeld" if record.requeue_hold_s else "HeldByUser", job=job.job_id)
    if record.travels.forgotten_ns:
        return record.reason
    if job.state != "PENDING":
        return because("NotPending", state=job.state)
    if not job.is_held:
        return record.reason  # taken back; Slurm does not show it held yet
    # a requeued job shows a begin time too (Slurm's own delay), which our start overrides
    if job.restart == 0 and at.slurm_ns < job.eligible_s * SECOND_NS < OWNER_HOLD_S * SECOND_NS:
        return because("BeginTime")
    if not record.options.nodes <= job.node_count <= most_nodes(record):
        return because("WrongNodes", nodes=job.node_count, want=record.options.nodes)
    if lacks_vc(at, record):
        known = ", ".join(at.settings.virtual_clusters)
        return because("NoSuchVc", vc=record.vc, known=known, job=job.job_id)
    if job.dependency and _names_live_job(at, job.dependency):
        return because("Dependency", dependency=job.dependency)
    if record.retry_ns > at.now_ns:
        return record.reason
    return _still_there(at, record) if record.options.saves_by else None


def _still_there(at: Cycle, record: JobRecord) -> Reason | None:
    """A node that answers still has a former start of a job whose files nobody guards."""
    if record.job.restart == 0:
        return None
    if at.former is None:
        at.former = dict(_former_starts(at))
    found = at.former.get(record.job.job_id)
    return because("StillThere", node=found[0], key=found[1]) if found is not None else None


def _former_starts(at: Cycle) -> Iterator[tuple[int, tuple[str, JobKey]]]:
    """Yield by job where a start of it that is not the newest is, as far as nodes answer."""
    for node, key in at.state.sightings:
        record, home = at.state.jobs.get(key.job_id), at.state.nodes.get(node)
        is_heard = home is not None and home.has_daemon and not home.is_down
        if is_heard and record is not None and key.restart < record.job.restart:
            yield key.job_id, (node, key)


def is_pausing(at: Cycle, record: JobRecord) -> bool:
    """True while a job cannot be started for nothing but that we have just requeued it."""
    is_ours = record.state == states.REQUEUED or (record.state == states.HELD and record.code == "MadeWay")
    reason = obstacle(at, record) if is_ours else None
    return reason is not None and (reason is record.reason or reason.code in PASSING)


def heed_slurm(at: Cycle, record: JobRecord) -> None:
    """Take back a start that Slurm, or the job's owner, has put off since."""
    job = record.job
    if record.is_owner_held and job.is_held:
        record.move(states.HELD, because("HeldByUser", job=job.job_id), at.now_ns)
    elif not job.is_held and job.reason in DEPENDENCY_REASONS:
        is_hopeless = job.reason == "DependencyNeverSatisfied"
        code = "DependencyFailed" if is_hopeless else "Dependency"
        record.move(states.HELD, because(code, dependency=job.dependency, job=job.job_id), at.now_ns)
        wait_ns = at.settings.longest_retry_ns if is_hopeless else at.settings.probe_ns
        record.retry_ns = at.now_ns + wait_ns
        hold_again(at, record)
    else:
        take_back_limited(at, record)


def _names_live_job(at: Cycle, dependency: str) -> bool:
    """True when a live job of ours surely keeps this dependency from being met: the start can be spared."""
    if "?" in dependency:  # any one of several is enough
        return False
    parts = [part for part in dependency.split(",") if part.startswith(_UNTIL_END) and "_" not in part]
    return any(_is_live(at, job_id) for part in parts for job_id in named_jobs(part))


def _is_live(at: Cycle, job_id: int) -> bool:
    record = at.state.jobs.get(job_id)
    return record is not None and record.state != states.ENDED
