"""Taking a plan: the newest counts, whole; a job that is merely missing from it is left alone (ADR 0005)."""

from __future__ import annotations

import logging

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import leading, leaving, packs
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.part import IN, OUT, Part
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.wire.messages import NodePlan, PlannedJob

#: A quantum shorter than this would be spent on changing hands.
_MIN_QUANTUM_NS = 10_000_000
#: No node has more: what counts to it asks for no memory that is not there.
_MOST_GPUS = 1 << 16

log = logging.getLogger(__name__)


class Planning:
    """Brings what lives here in line with the controller's plan."""

    def __init__(self, node: Node, slicer: Slicer, watcher: Watcher) -> None:
        self._node = node
        self._slicer = slicer
        self._watcher = watcher
        #: the plan that was carried out to its end
        self._done: NodePlan | None = None

    def take(self, plan: NodePlan) -> bool:
        """Take a plan that is not older than the present one; PeerError when it is not meant for us."""
        node = self._node
        check_plan(plan, node.settings.node)
        old = node.plan
        if old is not None and (plan.epoch_ns, plan.generation) < (old.epoch_ns, old.generation):
            log.warning("plan %d of epoch %d is older than ours; not taken", plan.generation, plan.epoch_ns)
            return False
        self._hear(plan)
        is_news = node.ledger.acknowledge(plan.ack_boot, plan.ack_seq)
        node.plan = plan
        if self._done is None or _essence(plan) != _essence(self._done):
            self._apply(plan)
            self._done, is_news = plan, True
        self._forget_ended(plan)
        self._slicer.charge(node.clock.mono())  # it is of before this turn
        leading.hear(node, plan)
        self._slicer.look_again()
        if is_news:
            node.save()
        return True

    def restore(self, plan: NodePlan) -> None:
        """Take the plan that a former gandivad had; the slicer is asked later."""
        self._node.plan = plan
        self._set_size(plan)
        for job in plan.jobs:
            self._node.know(job.key)
            if job.key in self._node.residents:
                leaving.tell(self._node.residents[job.key], job.is_leaving, job.own_save_s)
                packs.tell(self._node.residents[job.key], job)
                self._node.residents[job.key].is_on = job.is_on
                self._node.freezer.set_trust(self._node.residents[job.key], job.is_trusted)
                self._node.residents[job.key].is_requeueable = job.is_requeueable

    def _hear(self, plan: NodePlan) -> None:
        """Take what it says of Slurm, as old as the report that the controller had before it looked there."""
        node, now = self._node, self._node.clock.mono()
        node.contact_ns = node.voice_ns = now
        # An older controller does not tell.
        asked_ns = now if plan.echo_ns is None else min(now, plan.echo_ns)
        for key in {job.key for job in plan.jobs} & node.residents.keys():
            words = node.residents[key].words
            words.shown_ns = max(words.shown_ns, asked_ns)
            words.heard_ns = max(words.heard_ns, asked_ns) if plan.is_heard else words.heard_ns
            if not words.halted_ns:
                words.together_ns = max(words.together_ns, min(now, plan.contact_ns))

    def _apply(self, plan: NodePlan) -> None:
        node = self._node
        self._slicer.charge(node.clock.mono())  # what was held so far was held as it was told then
        self._set_size(plan)
        planned = {job.key: job for job in plan.jobs}
        led = {key: (resident.is_on, resident.leave.is_told) for key, resident in node.residents.items()}
        for key in planned:
            node.know(key)
        for resident in list(node.residents.values()):
            job = planned.get(resident.key)
            if job is not None and job.uid != resident.processes.uid and not resident.is_ending:
                self._watcher.fence(resident, "its number is another user's job's now")
        for resident in node.residents.values():
            job = planned.get(resident.key)
            resident.is_planned = job is not None
            if job is not None:  # else it may be requeued by now: its old processes must not train on
                leaving.tell(resident, job.is_leaving, job.own_save_s)
            packs.tell(resident, job)
            resident.is_on = job.is_on if job is not None else None
            if job is not None and job.uid == resident.processes.uid:
                resident.tickets, resident.user, resident.name = job.tickets, job.user, job.name
                node.freezer.set_trust(resident, job.is_trusted)
                resident.is_requeueable = job.is_requeueable
        self._await_spans(plan)
        node.newest = {job_id: restart for job_id, restart in node.newest.items() if self._is_needed(job_id)}
        node.set_gangs()
        for job_id, restart in plan.fence:
            stale = node.residents.get(JobKey(job_id, restart))
            if stale is not None and not stale.is_ending:
                self._watcher.fence(stale, "the controller knows a newer incarnation, or its job is over")
        is_round = any(
            resident.is_on is not None and led.get(key) != (resident.is_on, resident.leave.is_told)
            for key, resident in node.residents.items()
        )
        (self._slicer.quantum if is_round and leading.is_led(node) else self._slicer.fill)()

    def _forget_ended(self, plan: NodePlan) -> None:
        """Tell no more of what has ended, once that was heard and the plan goes without it."""
        node = self._node
        if node.ended:
            planned = {job.key for job in plan.jobs}
            ends = node.ended.items()
            node.ended = {key: at for key, at in ends if key in planned or not _is_heard(plan, at)}
            node.finals = {key: final for key, final in node.finals.items() if key in node.ended}

    def _await_spans(self, plan: NodePlan) -> None:
        """Know the parts of planned spans before a process of them comes; forget those that will not come."""
        node = self._node
        spans = {job.key: job for job in plan.jobs if job.span}
        for resident in [r for r in node.residents.values() if r.part is not None and r.key not in spans]:
            if resident.part is not None and not resident.part.has_processes:
                self._watcher.dismiss(resident)
        for key, job in spans.items():
            here = node.residents.get(key)
            if here is not None:
                self._learn_span(here, job)
            elif key not in node.ended and not node.is_stale(key):
                node.welcome(self._awaited(job))

    def _awaited(self, job: PlannedJob) -> Resident:
        clock = self._node.clock
        return Resident(
            key=job.key,
            user=job.user,
            gpus=tuple(sorted(job.gpus)),
            tickets=job.tickets,
            submitted_ns=job.submitted_ns,
            processes=JobProcesses(job.key, job.uid, self._node.settings.node, set(), set()),
            registered_real_ns=clock.real(),
            registered_ns=clock.mono(),
            name=job.name,
            since_ns=clock.mono(),
            part=Part(job.span),
            is_opportunistic=job.is_opportunistic,
            vc=job.vc,
            is_on=job.is_on,
            is_requeueable=job.is_requeueable,
        )

    def _learn_span(self, resident: Resident, job: PlannedJob) -> None:
        """A part nothing of which has come may be planned anew; what came before any plan is a part now."""
        if resident.part is None and resident.state in (RUNNING, SUSPENDED):
            wish = IN if resident.holds else OUT
            resident.part = Part(job.span, wish, has_begun=True, has_processes=True)
            for group in resident.sets:
                group.is_part, group.gang = True, None
        elif resident.part is not None and not resident.part.has_begun and not resident.holds:
            resident.gpus, resident.part.span = tuple(sorted(job.gpus)), job.span

    def _set_size(self, plan: NodePlan) -> None:
        local = self._node.local
        used = [gpu + 1 for resident in self._node.residents.values() for gpu in resident.gpus]
        local.gpus = max([plan.gpus, *used])
        local.quantum_ns = plan.quantum_ns

    def _is_needed(self, job_id: int) -> bool:
        node = self._node
        plan = node.plan
        named = plan is not None and any(job.job_id == job_id for job in plan.jobs)
        return named or any(key.job_id == job_id for key in node.residents)


def _is_heard(plan: NodePlan, told_ns: int) -> bool:
    """True when the controller has an end that was reported first at this moment (0: not yet).

    A plan may go without a job because Slurm shows its end, while the answer that told of it was lost. An
    older controller does not say which reports it has.
    """
    return told_ns > 0 and (plan.echo_ns is None or plan.echo_ns >= told_ns)


def check_plan(plan: NodePlan, node: str) -> None:
    """PeerError when a plan is not this node's, or impossible."""
    if plan.node != node:
        raise PeerError(
            f"this is node {node}, the plan is {plan.node}'s; compare node.addresses in gandiva.yaml"
        )
    if plan.quantum_ns < _MIN_QUANTUM_NS or not 0 <= plan.gpus <= _MOST_GPUS:
        raise PeerError(
            f"plan for {node}: a quantum of {plan.quantum_ns} ns on {plan.gpus} GPUs is impossible"
        )
    for job in plan.jobs:
        gpus = set(job.gpus)
        if not gpus or len(gpus) != len(job.gpus) or min(gpus) < 0 or max(gpus) >= plan.gpus:
            raise PeerError(f"plan for {node}: job {job.key} is given GPUs {job.gpus} of {plan.gpus}")
        if job.tickets <= 0:
            raise PeerError(f"plan for {node}: job {job.key} has {job.tickets} tickets; at least 1 is needed")


def _essence(plan: NodePlan) -> tuple[object, ...]:
    return (plan.epoch_ns, plan.quantum_ns, plan.gpus, plan.jobs, plan.fence)
