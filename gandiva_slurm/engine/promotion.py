"""Promotion: an opportunistic job that has long waited for GPUs is guaranteed from then on (ADR 0034).

Soon, while what its user's guaranteed jobs ask for leaves it room in his share, and late in any case: nobody
starves. It waits while it is parked, and while no place is found for it; a turn begins its wait anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.placing import in_order, tell
from gandiva_slurm.engine.sizes import gpus_of
from gandiva_slurm.engine.state import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import because
from gandiva_slurm.policy.classes import MOST_PATIENCE_NS, PATIENCE_NS
from gandiva_slurm.policy.port import GUARANTEED, Promotion
from gandiva_slurm.policy.shares import Leaf, leaf_tickets

#: States in which a job has no GPUs; whether it wants some is another matter.
WITHOUT = (states.SUSPENDED, *states.WAITING)


def promote_waiting(at: Cycle, left: Sequence[JobRecord]) -> None:
    """Promote those who have waited long; `left` found no place in this cycle."""
    without, ripe = {record.job.job_id for record in left}, []
    for record in at.state.jobs.values():
        if record.state not in WITHOUT or record.is_entitled:
            continue
        is_waiting = record.state == states.SUSPENDED or record.job.job_id in without
        record.without_ns = (record.without_ns or at.now_ns) if is_waiting else 0
        if is_waiting and at.now_ns - record.without_ns >= PATIENCE_NS:
            ripe.append(record)
    wanted = _wanted(at, left) if ripe else {}
    for record in sorted(ripe, key=lambda record: record.order):
        own, room = wanted.get(record.leaf, 0), _room(at, record.leaf, wanted)
        has_room, waited_ns = own + gpus_of(record) <= room, at.now_ns - record.without_ns
        if has_room or waited_ns >= _longest_ns(at):
            wanted[record.leaf] = own + gpus_of(record)
            record.is_promoted, record.without_ns = True, 0
            user = record.job.user
            why = f"{user} has room in his share" if has_room else "it is not to starve"
            fact = f"{user}'s guaranteed jobs ask for {own} GPU(s), his share is {float(room):.3g}"
            tell(at, record, because("Promoted", fact, waited_s=waited_ns // SECOND_NS, why=why))


def follow_promotions(at: Cycle, promoted: Mapping[int, Promotion], ready: Container[int]) -> None:
    """Take over what a policy promotes, and since when others wait; `ready`: jobs that could be placed."""
    for job_id, (waited_ns, why) in promoted.items():
        record = at.state.jobs.get(job_id)  # an answer holds for longer than some jobs live
        if record is not None and not record.is_entitled:
            record.is_promoted, record.without_ns = True, 0
            tell(at, record, because("Promoted", waited_s=waited_ns // SECOND_NS, why=why))
    for job_id, record in at.state.jobs.items():
        if record.state in WITHOUT and not record.is_entitled:
            is_waiting = record.state == states.SUSPENDED or job_id in ready
            record.without_ns = (record.without_ns or at.now_ns) if is_waiting else 0


def told(record: JobRecord, now_ns: int) -> Iterable[str]:
    """Say of a job submitted as opportunistic what it is now."""
    if record.is_promoted:
        yield "submitted as opportunistic; guaranteed since it had long waited for GPUs"
    elif record.options.job_class != GUARANTEED and record.state != states.ENDED:
        waits_s = (now_ns - record.without_ns) // SECOND_NS if record.without_ns else 0
        soon_s, late_s = PATIENCE_NS // SECOND_NS, MOST_PATIENCE_NS // SECOND_NS
        yield (
            f"opportunistic: it has what guaranteed jobs leave; without GPUs for {waits_s} s, "
            f"guaranteed after {soon_s} s if its user's share has room, after {late_s} s in any case"
        )


def _longest_ns(at: Cycle) -> int:
    """Before the bound of a park, which is an hour by default, gives it a turn of its own."""
    return MOST_PATIENCE_NS - 2 * at.settings.quantum_ns


def _wanted(at: Cycle, left: Sequence[JobRecord]) -> dict[Leaf, int]:
    """GPUs that the guaranteed jobs of each user have or wait for."""
    wanted: dict[Leaf, int] = {}
    for record in (*in_order(at, *states.PLACED), *left):
        if record.is_entitled:
            wanted[record.leaf] = wanted.get(record.leaf, 0) + gpus_of(record)
    return wanted


def _room(at: Cycle, leaf: Leaf, wanted: Iterable[Leaf]) -> Fraction:
    """GPUs of a user's share, were all with guaranteed jobs and he there."""
    parts = leaf_tickets(at.state.associations, {*wanted, leaf})
    gpus = sum(node.gpus for node in at.state.nodes.values() if not node.is_down)
    return Fraction(gpus * parts[leaf], sum(parts.values()))
