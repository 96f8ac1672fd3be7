"""Parked time given back to the time limit (ADR 0013): the limit counts the time a job may run, not the wall.

The rule. A running job's limit is what its owner (or an administrator) set, plus its parked time in whole
minutes, rounded down. It never goes past the partition's MaxTime x stretch, nor to where a reservation of one
of its nodes begins. It grows in steps of five minutes, of one when less than ten are left, and never shrinks
under a running job. A job that is requeued begins with the limit it was given at first, unless it goes on in
the midst of its program, from an image: what that has used stays used, and is taken off once it runs again.

Whoever changes the limit meanwhile changes what the parked time is added to: what was given is known, not the
sum. What a job was parked before this controller knew it is taken as given already.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.lifecycle.reservations import first_start_s
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.engine.state.time_limit_credit import Giving, Parked
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import SetTimeLimit
from gandiva_slurm.model.event import ResidentSeen

MINUTE_S = 60
#: A limit grows in such steps, unless so little is left of it.
STEP_S, NEAR_S = 5 * MINUTE_S, 10 * MINUTE_S
#: Steps in a life's end come faster than slurmctld looks at limits (every 30 s).
ASK_AGAIN_NS = 10 * SECOND_NS


def note_parked(at: Cycle, event: ResidentSeen) -> None:
    """Take a node's word on how long this incarnation has been parked."""
    record, node, parked_ns = at.state.jobs.get(event.key.job_id), event.node, event.parked_ns
    if record is None or record.key != event.key or node not in record.places:
        return
    givings, restart = at.state.givings, record.job.restart
    giving = givings.setdefault(record.job.job_id, Giving(restart))
    if giving.restart != restart:
        giving.restart, giving.parked, giving.spent_s = restart, {}, 0
    if node not in giving.parked:
        # what was parked before we knew the job may have been given back already
        giving.parked[node] = Parked(0, 0 if record.starts else parked_ns)
    giving.parked[node].count(parked_ns)
    giving.spent_s = event.spent_ns // SECOND_NS


def give_back(at: Cycle) -> None:
    """Ask for the limits that are due; to be called once a cycle."""
    for job_id in [*at.state.givings]:
        record, giving = at.state.jobs.get(job_id), at.state.givings[job_id]
        if record is None or record.state == states.ENDED:
            del at.state.givings[job_id]
            continue
        _settle(at, record, giving)
        limit_s = record.job.time_limit_s
        if giving.asked_s or not limit_s:
            continue
        if record.state in states.RESIDENT and giving.restart == record.job.restart:
            new_s = _due_s(at, record, giving)
        elif record.state in states.WAITING and giving.given_s and record.job.state == "PENDING":
            new_s = max(MINUTE_S, limit_s - giving.given_s)
        else:
            continue
        if new_s != limit_s:
            _ask(at, record, giving, new_s)


def told(record: JobRecord, giving: Giving | None) -> Iterator[str]:
    """Say what was done to a job's limit, for `gandiva why`."""
    limit_s = record.job.time_limit_s
    if giving is None or not giving.given_s or not limit_s:
        return
    asked, spent = (limit_s - giving.given_s) // MINUTE_S, -(-giving.spent_s // MINUTE_S)
    given = max(0, limit_s // MINUTE_S - asked + spent)
    parts = [f"{asked} set for it", f"{given} given back for parked time"]
    parts += [f"{spent} used before it moved"] if spent else []
    yield f"time limit {limit_s // MINUTE_S} min: {', '.join(parts)}"


def _settle(at: Cycle, record: JobRecord, giving: Giving) -> None:
    """See in Slurm's picture what became of the last request. Anything else is a later change."""
    if not giving.asked_s:
        return
    limit_s = record.job.time_limit_s
    if limit_s == giving.from_s != giving.asked_s:
        if at.now_ns - giving.asked_ns >= ASK_AGAIN_NS:
            giving.asked_s = 0
        return
    giving.given_s += giving.asked_s - giving.from_s
    giving.asked_s = 0


def _due_s(at: Cycle, record: JobRecord, giving: Giving) -> int:
    """The limit a running job is to have now; the one it has when nothing is due."""
    job, bounds, now_s = record.job, at.state.bounds, at.slurm_ns // SECOND_NS
    limit_s = job.time_limit_s
    if bounds is None or not job.start_s:
        return limit_s
    aim_s = limit_s - giving.given_s + giving.parked_s(record.nodes) - giving.spent_s
    if giving.spent_s and aim_s < limit_s:
        return max(MINUTE_S, aim_s // MINUTE_S * MINUTE_S)
    max_s = dict(bounds.max_time_s).get(job.partition)
    if max_s is not None:
        aim_s = min(aim_s, max_s * at.settings.stretch_percent // 100)
    closes_s = first_start_s(bounds.reservations, record.nodes, now_s)
    if closes_s is not None:
        aim_s = min(aim_s, closes_s - job.start_s)
    gain_s = (aim_s - limit_s) // MINUTE_S * MINUTE_S
    is_near = job.start_s + limit_s - now_s < NEAR_S
    return limit_s + gain_s if gain_s >= (MINUTE_S if is_near else STEP_S) else limit_s


def _ask(at: Cycle, record: JobRecord, giving: Giving, new_s: int) -> None:
    limit_s = record.job.time_limit_s
    giving.asked_s, giving.from_s, giving.asked_ns = new_s, limit_s, at.now_ns
    minutes, was = new_s // MINUTE_S, limit_s // MINUTE_S
    text = f"time limit from {was} to {minutes} min: {_why(record, new_s > limit_s)}"
    action_id = f"limit:{record.key}:{at.now_ns}"
    at.actions.append(SetTimeLimit(action_id, record.key, minutes, "TimeLimit", text))


def _why(record: JobRecord, grows: bool) -> str:
    if record.state not in states.RESIDENT:
        return "requeued: as it was set at first"
    return "parked time is given back" if grows else "it goes on from an image: what it had used stays used"
