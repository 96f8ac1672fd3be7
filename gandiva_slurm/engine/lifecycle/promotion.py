"""Promotion: an opportunistic job that has long waited for GPUs is guaranteed from then on (ADR 0034).

Soon, while what its user's guaranteed jobs ask for leaves it room in his share, and late in any case: nobody
starves. It waits while it is parked, and while no place is found for it; a turn begins its wait anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from gandiva_slurm.engine.lifecycle.placing import tell
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.idle import Idle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import because
from gandiva_slurm.policy.packing.classes import MOST_PATIENCE_NS, PATIENCE_NS
from gandiva_slurm.policy.port import Promotion

#: States in which a job has no GPUs; whether it wants some is another matter.
WITHOUT = (states.SUSPENDED, *states.WAITING)


def follow_promotions(at: Cycle, promoted: Mapping[int, Promotion], ready: Container[int]) -> None:
    """Take over what a policy promotes, and since when others wait; `ready`: jobs that could be placed."""
    for job_id, (waited_ns, why) in promoted.items():
        record = at.state.jobs.get(job_id)  # an answer holds for longer than some jobs live
        if record is not None and record.idle.parked_ns:  # a turn, in which it may show that it works
            seen = (at.state.sightings.get((name, record.key)) for name in record.nodes)
            tried_s = max((each.measured.idle_s for each in seen if each is not None), default=0)
            record.idle = Idle(record.idle.told_ns, 0, max(1, tried_s))
            record.without_ns = 0
        elif record is not None and record.is_opportunistic:
            record.is_promoted, record.without_ns = True, 0
            tell(at, record, because("Promoted", waited_s=waited_ns // SECOND_NS, why=why))
    for job_id, record in at.state.jobs.items():
        if record.state in WITHOUT and record.is_opportunistic:
            is_waiting = record.state == states.SUSPENDED or job_id in ready
            record.without_ns = (record.without_ns or at.now_ns) if is_waiting else 0


def told(record: JobRecord, now_ns: int) -> Iterable[str]:
    """Say of a job submitted as opportunistic what it is now."""
    if record.is_promoted:
        yield "opportunistic before; guaranteed since it had long waited for GPUs"
    elif record.is_opportunistic and record.state != states.ENDED:
        waits_s = (now_ns - record.without_ns) // SECOND_NS if record.without_ns else 0
        soon_s, late_s = PATIENCE_NS // SECOND_NS, MOST_PATIENCE_NS // SECOND_NS
        yield (
            f"opportunistic: it has what guaranteed jobs leave; without GPUs for {waits_s} s, "
            f"guaranteed after {soon_s} s if its user's share has room, after {late_s} s in any case"
        )
