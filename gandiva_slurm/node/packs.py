"""Packs: two gangs that hold the same GPUs at the same time, and how fast each is then (ADR 0023).

The plan says who may; the books say who does. A gang whose mate is granted the GPUs, or releases them, closes
its hold and begins another at that moment, so that of each hold it is known with whom it was shared.
"""

from __future__ import annotations

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node import sharing
from gandiva_slurm.node.charging import charge, sharer
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.gauge import ALONE, PACKED, UNKNOWN
from gandiva_slurm.node.jobs import Pacing, Resident
from gandiva_slurm.policy.packing.tally import Tally
from gandiva_slurm.wire.messages import PlannedJob


def tell(resident: Resident, job: PlannedJob | None) -> None:
    """Take the plan's word, None where it says nothing; beside another mate its speed is another."""
    mate = job.mate if job is not None else 0
    if job is not None:
        resident.is_opportunistic, resident.vc = job.is_opportunistic, job.vc
    if mate != resident.mate:
        resident.mate, resident.gauge.packed, resident.pacing = mate, Tally(), Pacing()
        resident.gauge.steps_packed = UNKNOWN


def join(node: Node, resident: Resident, now: int) -> None:
    """It was granted its GPUs: if its mate holds them, both share them from now on."""
    key = node.local.mate_of(resident.key)
    mate = node.residents.get(key) if key is not None else None
    if mate is not None and mate.holds:
        charge(node, mate, now)
        _share(node, mate, resident.key.job_id, now)
        _share(node, resident, mate.key.job_id, now)
        node.note("packed", resident, now, mate=mate.key.job_id)
    measure(node, now)


def leave(node: Node, resident: Resident, now: int) -> None:
    """It releases its GPUs: its mate has them alone from now on."""
    mate = sharer(node, resident)
    if mate is not None:
        charge(node, mate, now)
        _share(node, mate, 0, now)
        sharing.tell(node)
        node.note("unpacked", resident, now, mate=mate.key.job_id)
        node.save()


def settle(node: Node) -> None:
    """After a restart: no hold is shared with one that is not there."""
    now = node.clock.mono()
    for key, hold in list(node.ledger.open.items()):
        resident = node.residents.get(key)
        if resident is not None and hold.shared_with and sharer(node, resident) is None:
            charge(node, resident, now)
            node.note("unpacked", resident, now, mate=hold.shared_with)
            _share(node, resident, 0, now)


def apart(node: Node) -> set[JobKey]:
    """Return who must leave since two still share that may no longer: the younger of each pair."""
    found = set()
    for resident in node.holders():
        mate = sharer(node, resident)
        if mate is not None and node.local.mate_of(resident.key) != mate.key:
            found.add(max(resident, mate, key=lambda one: (one.submitted_ns, one.key)).key)
    return found


def measure(node: Node, now: int) -> None:
    """Look at everybody's progress; called whenever somebody begins or ceases to hold GPUs."""
    for resident in node.residents.values():
        condition = _condition(node, resident)
        if condition != resident.gauge.condition:
            look_at_steps(resident, now)
        if condition or resident.gauge.condition:
            resident.gauge.look(resident.steps(), now, condition)
        if condition != PACKED:
            resident.pacing.since_ns = 0
    sharing.tell(node)


def look_at_steps(resident: Resident, now: int) -> None:
    """Take what a job's mini-batches take, by the page of its first rank."""
    rank = next(iter(resident.ranks), None)
    if rank is not None and rank.is_alive and resident.gauge.condition:
        resident.gauge.look_at_steps(rank.page.stamps(), now)


def told(node: Node, resident: Resident) -> str:
    """Say with whom it shares its GPUs, "" when it has them alone."""
    mate = sharer(node, resident)
    return f"shares its GPU with job {mate.key.job_id}" if mate is not None else ""


def _condition(node: Node, resident: Resident) -> str:
    if resident.state != RUNNING:
        return ""
    mate = sharer(node, resident)
    if mate is None:
        return ALONE
    return PACKED if mate.state == RUNNING else ""


def _share(node: Node, resident: Resident, mate: int, now: int) -> None:
    node.ledger.share(resident.key, mate, node.clock.real(now))
