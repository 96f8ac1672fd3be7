"""What the node tells the controller: everything that lives here, and every hold not yet acknowledged."""

from __future__ import annotations

import time

from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import leaving, packs, returning, sharing, tiers
from gandiva_slurm.node.charging import own_ns
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.elsewhere import STARTED_ANEW
from gandiva_slurm.node.faults import faults_of
from gandiva_slurm.node.jobs import Resident as Job
from gandiva_slurm.node.memory import card_bytes, lack, memory_of
from gandiva_slurm.node.strangers import DOUBT_LOOKS
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import NodeReport, Resident

#: A running rank that passes no boundary for so long is worth a word.
QUIET_NS = 60_000_000_000
_MINUTE_S = 60
NS_PER_S = 1_000_000_000


def make_report(node: Node) -> NodeReport:
    """Return the whole truth of now; what has ended is told until a plan shows that it was heard."""
    plan = node.plan
    now, mono_ns = node.clock.real(), node.clock.mono()
    node.ended = {key: told_ns or mono_ns for key, told_ns in node.ended.items()}
    return NodeReport(
        node=node.settings.node,
        boot=node.ledger.boot,
        now_ns=now,
        epoch_ns=plan.epoch_ns if plan else 0,
        generation=plan.generation if plan else 0,
        gpus=node.gpus,
        residents=tuple(_resident(node, job) for job in node.residents.values() if _has_begun(job)),
        holds=node.ledger.report(now),
        strangers=tuple((one.gpu, one.pid, one.job_id, one.memory) for one in node.strangers),
        ended=tuple((key.job_id, key.restart) for key in node.ended),
        finals=tuple((*key, *final) for key, final in node.finals.items()),
        mono_ns=mono_ns,
        faults=faults_of(node),
        images=tuple(sorted(node.images)),
    )


def _has_begun(job: Job) -> bool:
    """False for a part of a span that is only planned so far: nothing of it is here."""
    return job.part is None or job.part.has_begun


def _resident(node: Node, job: Job) -> Resident:
    now = node.clock.mono()
    reason, detail = _why(node, job, now)
    counts, memory = job.counts, memory_of(job)
    packs.look_at_steps(job, now)
    is_doubted = job.usage.idle_looks >= DOUBT_LOOKS
    return Resident(
        job_id=job.key.job_id,
        restart=job.key.restart,
        state=job.state,
        gpus=job.gpus,
        registered_ns=job.registered_real_ns,
        since_ns=node.clock.real(job.since_ns),
        world=job.world,
        ranks=sum(rank.is_alive for rank in job.ranks),
        steps=job.steps(),
        rate=round(counts.rate, 3),
        suspends=counts.suspends,
        reaims=counts.reaims,
        off_boundary=counts.off_boundary,
        parked_ns=counts.parked_ns + (now - job.since_ns if job.state == SUSPENDED else 0),
        reason=reason,
        detail=detail,
        is_movable=any(can(job) for can in (leaving.is_movable, leaving.is_imageable, leaving.is_untouched)),
        unmoved=leaving.unmoved(job),
        framework=leaving.framework(job),
        has_left=leaving.has_left(job),
        has_floor=leaving.has_floor(node, job),
        is_elastic=leaving.is_elastic(job),
        saved_s=leaving.saved_s(node, job),
        # Mini-batches of which its GPUs know nothing are nobody's measure.
        rate_alone=0.0 if is_doubted else round(job.gauge.alone.rate, 6),
        rate_packed=0.0 if is_doubted else round(job.gauge.packed.rate, 6),
        rate_noise=round(job.gauge.noise, 6),
        card_bytes=card_bytes(node, job),
        live_bytes=memory.live,
        peak_bytes=memory.peak,
        held_bytes=memory.held,
        ooms=memory.ooms,
        spilled_bytes=memory.spilled,
        duty=sharing.duty_of(node, job),
        step_alone_ns=(*job.gauge.steps_alone,),
        step_packed_ns=(*job.gauge.steps_packed,),
        gpu_percent=job.usage.percent,
        idle_s=_idle_s(job),
        first_ns=counts.first_ns,
        begun=job.stand()[0],
        save_ns=job.leave.save_ns,
        written_ns=counts.written_ns,
        is_restored=job.image.is_restored,
        spent_ns=job.image.spent_ns,
        gpu_ns=own_ns(node, job, now) * len(job.gpus),
        mate=job.mate,
        unrestored=job.image.unfit,
        is_fit_again=job.image.unfit == STARTED_ANEW,
        is_doubted=is_doubted,
        keeps_type=job.image.has_card and (leaving.is_imageable(job) or job.image.is_whole),
    )


def _idle_s(job: Job) -> int:
    """Whole minutes once it is more than one: a job that idles for days is no news each few seconds."""
    idle_s = job.usage.idle_ns // NS_PER_S
    return idle_s if idle_s < _MINUTE_S else idle_s // _MINUTE_S * _MINUTE_S


def _why(node: Node, job: Job, now: int) -> tuple[str, str]:
    """Return (code of model.reason, what is special about it here)."""
    detail = leaving.told(job) if job.is_planned else "in no plan: its GPUs were chosen by its node"
    if job.is_ending:
        return "Leftover", "its last processes are being stopped"
    if job.state == SUSPENDED or job.halted_ns:
        return _why_still(node, job, detail)
    if job.state == SUSPENDING:
        return "Parking", detail
    if job.refusal.failures and job.has_client():
        return "NotParkable", _refused(node, job)
    if job.state == RESUMING:
        return "Resuming", _with_memory(job, detail)
    if job.is_blind(node.settings.client_wait_ns):
        return "NoClient", detail
    if not job.has_client():
        return "WarmingUp", detail or _ranks_so_far(job)
    if packs.told(node, job):
        return "Packed", packs.told(node, job)
    return "Running", detail or _quiet(job, now)


def _why_still(node: Node, job: Job, detail: str) -> tuple[str, str]:
    """Of a job that holds no GPU, or is not to, for Slurm may have started it elsewhere."""
    if job.halted_ns:
        return "Frozen", f"Slurm does not hear this node; it stands still since {_clock(node, job.halted_ns)}"
    if failed := returning.told(node, job):
        return "ResumeFailed", failed
    if job.image.unfit:
        return "NotRestored", job.image.unfit
    short = lack(node, job)
    if not job.counts.suspends and short:
        return "NoMemoryToBegin", short
    if not job.counts.suspends:
        return "WaitingTurn", detail or "its tasks are stopped before they begin"
    if short:
        return "NoGpuMemory", short
    if job.is_frozen:
        return "Frozen", _with_memory(job, _frozen(node, job) or detail)
    return "Parked", _with_memory(job, detail)


def _with_memory(job: Job, detail: str) -> str:
    """Add where its memory is, if that needs a word, to what else is special about it."""
    return "; ".join(filter(None, (detail, tiers.told(job))))


def _refused(node: Node, job: Job) -> str:
    """Say how often it failed to park, why, and how long others will bear it."""
    refusal, bound_ns = job.refusal, node.settings.refusal_bound_ns
    held = f"held {refusal.refused_ns // NS_PER_S} s while others waited"
    then = f", frozen at {bound_ns // NS_PER_S} s" if bound_ns else ""
    return f"{refusal.told()}; since {_clock(node, refusal.since_ns)} {held}{then}"


def _frozen(node: Node, job: Job) -> str:
    """Say why it is frozen though it has a client, "" when it has none; since when, until when at most."""
    settings = node.settings
    if not job.refusal.is_frozen:
        return ""
    since = _clock(node, job.refusal.frozen_at_ns)
    until = _clock(node, job.bound_ns(settings.max_park_ns, settings.freeze_bound_ns, settings.quantum_ns))
    return f"{job.refusal.told()}; frozen where it is since {since}, until {until} at the latest"


def _clock(node: Node, mono_ns: int) -> str:
    """The wall clock at a moment, as Slurm prints it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(node.clock.real(mono_ns) // NS_PER_S))


def _ranks_so_far(job: Job) -> str:
    return f"{len(job.ranks)} of {job.world} ranks registered" if job.sets else "no rank has registered yet"


def _quiet(job: Job, now: int) -> str:
    assert job.state == RUNNING
    last = max((rank.look()[wire.W_LAST_NS] for rank in job.ranks), default=now)
    quiet_ns = now - last
    return f"no mini-batch for {quiet_ns // 1_000_000_000} s" if quiet_ns > QUIET_NS else ""
