"""A job on the move: told to leave, saved, requeued, started on the place kept for it (ADR 0024).

    RUNNING … → CHECKPOINTING        its node is told that it leaves; it saves itself in its next turn
    CHECKPOINTING → (has left)       Slurm is asked to requeue it
    → REQUEUED                       Slurm shows a newer incarnation pending; its target is kept
    → STARTING → RUNNING             as any start, on the target

Each step has a deadline. Before the requeue a move that fails leaves the job running where it is; after it,
the job is an ordinary held one and goes wherever it fits. Whoever requeues it on the way, it goes on to its
target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gandiva_slurm.engine.lifecycle.event_handlers import ON_NODE, REQUEUE_PAUSE_NS, job_of
from gandiva_slurm.engine.lifecycle.owners import lacks_vc, told_vc
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.engine.state.sizes import lost_size, note_rate, note_size
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue
from gandiva_slurm.model.event import ActionDone, ResidentSeen
from gandiva_slurm.model.reason import because

#: The longest rest after moves that failed.
LONGEST_REST_NS = 8 * 3600 * SECOND_NS

#: What is known of a job that tells nothing.
NOT_ATTACHED = "not all its ranks are attached, by gandiva.attach() or a framework that is known"
#: Nodes, each with GPUs there.
Places = Mapping[str, tuple[int, ...]]

_ON_THE_WAY = (*states.BOUND_ELSEWHERE, states.STARTING)


def why_fixed(record: JobRecord) -> str:
    """Why a job, as it was submitted, can never be moved; "" when it can."""
    if record.options.migrate == "never":
        return "it was submitted with --gandiva-migrate=never"
    if not record.job.batch or not record.job.requeue:
        return "Slurm cannot requeue it (a batch job without --no-requeue it can)"
    return ""


def why_bound(at: Cycle, record: JobRecord) -> str:
    """Why a resident job cannot go on anywhere else now; "" when it can."""
    fixed = why_fixed(record)
    if fixed:
        return fixed
    if lacks_vc(at, record):
        return f"gandiva.yaml has no {told_vc(record.vc)} any more: it would not be started again"
    homes = [at.state.nodes.get(name) for name in record.nodes]
    down = [name for name, home in zip(record.nodes, homes, strict=True) if home is None or home.is_down]
    if down:
        return f"its node {','.join(down)} is down"
    silent = [name for name, home in zip(record.nodes, homes, strict=True) if not home or not home.has_daemon]
    if silent:
        return f"gandivad on {','.join(silent)} does not answer"
    seen = [at.state.sightings.get((name, record.key)) for name in record.nodes]
    if not all(sighting is not None and sighting.measured.is_movable for sighting in seen):
        told = (sighting.measured.unmoved for sighting in seen if sighting is not None)
        return f"it cannot save itself: {next(filter(None, told), NOT_ATTACHED)}"
    return "its last move failed not long ago" if record.travels.wait_until_ns > at.now_ns else ""


def begin_move(
    at: Cycle,
    record: JobRecord,
    target: Places,
    why: str,
    code: str = "Leaving",
) -> None:
    """Have a job leave for a target, which may be none; `why` is a sentence."""
    record.target = dict(target)
    deadline_s = at.settings.move_deadline_ns // SECOND_NS
    reason = because(code, to=record.target_text, why=why, deadline_s=deadline_s)
    record.move(states.CHECKPOINTING, reason, at.now_ns)
    record.travels.begin(at.now_ns)


def note_resident(at: Cycle, event: ResidentSeen) -> None:
    """Take a node's word on a job's rate, and on whether it has left."""
    record = at.state.jobs.get(event.key.job_id)
    if record is None or record.key != event.key or event.node not in record.places:
        return
    travels, home = record.travels, at.state.nodes.get(event.node)
    travels.peak_bytes = max(travels.peak_bytes, event.measured.peak_bytes)
    if event.measured.rate_alone > 0 and home is not None:
        note_rate(record, home.node.gpu_type, event.measured.rate_alone)
    if event.measured.is_movable:
        note_size(record, event.measured.is_elastic)
    if event.has_left and record.state == states.CHECKPOINTING:
        at.left.add((event.key.job_id, event.node))
    is_back = event.measured.is_movable and record.state in states.SLICED and not travels.is_moving
    if travels.left_ns and is_back:
        travels.cost_ns, travels.left_ns = at.now_ns - travels.left_ns, 0


def note_outcome(at: Cycle, event: ActionDone) -> None:
    """A requeue that Slurm refused is asked for again, until the deadline."""
    record = at.state.jobs.get(job_of(event.action_id))
    if event.error and record is not None and event.action_id == _requeue_id(record):
        record.travels.error = event.error


def watch_moves(at: Cycle) -> None:
    """Take each move one step on, or give it up; to be called once a cycle."""
    moving = sorted(
        (record for record in at.state.jobs.values() if record.travels.is_moving),
        key=lambda record: record.order,
    )
    for record in moving:
        if record.state == states.CHECKPOINTING:
            _watch_leaving(at, record)
        elif record.state == states.REQUEUED:
            _watch_requeued(at, record)
        elif record.state in states.SLICED:
            record.travels.arrive()
        elif record.state not in _ON_THE_WAY:
            _count_failure(at, record)  # it was taken back to be placed anywhere, or has ended


def fall_back(at: Cycle, record: JobRecord, why: str) -> None:
    """Give a move up after the requeue: the job is placed as any held one."""
    to, wait_s = record.target_text, _count_failure(at, record)
    reason = because("MoveFailed", to=to, why=why, then="it is placed anywhere", wait_s=wait_s)
    record.move(states.HELD, reason, at.now_ns)
    record.retry_ns = at.now_ns + REQUEUE_PAUSE_NS  # it may be placed where it was


def told(record: JobRecord, now_ns: int) -> Iterator[str]:
    """Say what is known of a job's moves, for `gandiva why`."""
    travels = record.travels
    if record.target:
        yield f"kept for it: {record.target_text}"
    lately = travels.lately(now_ns)
    if lately:
        cost = f", the last one cost {travels.cost_ns / SECOND_NS:.1f} s" if travels.cost_ns else ""
        yield f"moves in the last hour: {len(lately)}{cost}"
    if travels.wait_until_ns > now_ns:
        wait_s = (travels.wait_until_ns - now_ns) // SECOND_NS
        yield f"moves that failed in a row: {travels.failures}, none for {wait_s} s"
    if len(travels.rates) > 1:
        rates = ", ".join(f"{kind} {rate:.3g}/s" for kind, rate in sorted(travels.rates.items()))
        yield f"measured alone: {rates}"


def _watch_leaving(at: Cycle, record: JobRecord) -> None:
    if record.job.state not in ON_NODE:
        return  # being requeued, or ending: the next picture says which
    why = _hopeless(at, record)
    if why:
        _stay_here(at, record, why)
    elif _has_left(at, record):
        _ask_requeue(at, record)


def _hopeless(at: Cycle, record: JobRecord) -> str:
    """Why a job that leaves is to stay after all; "" while there is hope."""
    travels = record.travels
    down = [name for name in record.nodes if name not in at.state.nodes or at.state.nodes[name].is_down]
    if down:
        return f"its node {','.join(down)} is down"
    if not travels.asked_ns and _has_left(at, record) and lost_size(at, record):
        return lost_size(at, record)
    if travels.asked_ns:
        is_late = at.now_ns - travels.left_ns >= at.settings.start_deadline_ns
        waited_s = at.settings.start_deadline_ns // SECOND_NS
        return f"not requeued within {waited_s} s{_colon(travels.error)}" if is_late else ""
    closed = lost_target(at, record)
    if closed:
        return f"{closed} takes no jobs now"
    if lacks_vc(at, record):
        return f"gandiva.yaml has no {told_vc(record.vc)} any more"
    if at.now_ns - record.since_ns >= at.settings.move_deadline_ns and not _has_left(at, record):
        seen = [at.state.sightings.get((name, record.key)) for name in record.nodes]
        told = ", ".join(sighting.detail for sighting in seen if sighting is not None and sighting.detail)
        waited_s = at.settings.move_deadline_ns // SECOND_NS
        return f"it had not saved itself within {waited_s} s{_colon(told)}"
    return ""


def _has_left(at: Cycle, record: JobRecord) -> bool:
    """True when each of its nodes has just said that all of it there has saved itself, and is parked."""
    return all((record.job.job_id, node) in at.left for node in record.nodes)


def _ask_requeue(at: Cycle, record: JobRecord) -> None:
    travels = record.travels
    travels.left_ns = travels.left_ns or at.now_ns
    if travels.asked_ns and at.now_ns - travels.asked_ns < at.settings.retry_ns:
        return  # asked again without an error, too: a controller may have died before it could ask
    record.stay(because("Saved", to=record.target_text), at.now_ns)
    travels.asked_ns, travels.error = at.now_ns, ""
    at.actions.append(Requeue(_requeue_id(record), record.key, record.code, record.text))


def _watch_requeued(at: Cycle, record: JobRecord) -> None:
    closed = lost_target(at, record)
    if closed:
        fall_back(at, record, f"{closed} takes no jobs now")
    elif at.now_ns - record.since_ns >= at.settings.start_deadline_ns:
        waited_s = at.settings.start_deadline_ns // SECOND_NS
        fall_back(at, record, f"it could not be started within {waited_s} s: {record.text}")


def _stay_here(at: Cycle, record: JobRecord, why: str) -> None:
    """Give a move up before the requeue: the job goes on where it is."""
    to, wait_s = record.target_text, _count_failure(at, record)
    reason = because("MoveFailed", to=to, why=why, then="it goes on where it is", wait_s=wait_s)
    record.move(states.RUNNING, reason, at.now_ns)


def _count_failure(at: Cycle, record: JobRecord) -> int:
    """Note that a move failed; return for how many seconds none is tried."""
    rest_ns = record.travels.fail(at.now_ns, at.settings.failed_rest_ns, LONGEST_REST_NS)
    return rest_ns // SECOND_NS


def lost_target(at: Cycle, record: JobRecord) -> str:
    """Name the nodes of its target that take no jobs."""
    nodes = {name: at.state.nodes.get(name) for name in record.target}
    return ",".join(name for name, node in nodes.items() if node is None or not node.is_open)


def _requeue_id(record: JobRecord) -> str:
    return f"requeue:{record.key}:{record.travels.asked_ns}"


def _colon(words: str) -> str:
    return f": {words}" if words else ""
