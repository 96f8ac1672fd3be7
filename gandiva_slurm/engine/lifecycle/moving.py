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

from collections.abc import Mapping

from gandiva_slurm.engine.lifecycle import own_files
from gandiva_slurm.engine.lifecycle.event_handlers import (
    ON_NODE,
    REQUEUE_PAUSE_NS,
    end_for_good,
    job_of,
)
from gandiva_slurm.engine.lifecycle.own_checkpoint import is_coming_back, let_go
from gandiva_slurm.engine.lifecycle.owners import lacks_vc, told_vc
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, EngineState, JobRecord
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.engine.state.sighting import why_unfit
from gandiva_slurm.engine.state.sizes import is_elastic, lost_size, note_rate, note_size
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue, Signal
from gandiva_slurm.model.event import ActionDone, ResidentSeen
from gandiva_slurm.model.reason import UNBORN, Reason, because
from gandiva_slurm.model.snapshot import OwnSignal

#: The longest rest after moves that failed.
LONGEST_REST_NS = 8 * 3600 * SECOND_NS

#: What is known of a job that tells nothing.
NOT_ATTACHED = "not all its ranks are attached, by gandiva.attach() or a framework that is known"
#: How a job saves itself: upon a signal, and not at all, for it goes on from its own newest file.
BY_SIGNAL, BY_SELF = "signal", "self"
#: What a node says of how a job is saved that goes on from an image of its processes (ADR 0054).
IMAGE = "image"
#: And of one that has not begun: it is requeued, and begins elsewhere.
ANEW = "anew"
#: What of a node's words says that a job has not come to train yet.
_NOT_BACK = ("WarmingUp", *UNBORN)
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
    by_ranks = is_attached(at.state, record)
    if not by_ranks and not record.options.saves_by:
        seen = [at.state.sightings.get((name, record.key)) for name in record.nodes]
        told = (sighting.measured.unmoved for sighting in seen if sighting is not None)
        return f"it cannot save itself: {next(filter(None, told), NOT_ATTACHED)}"
    dear = "" if by_ranks else own_files.too_dear(at.state, record, at.now_ns)
    if dear:
        return dear
    return "its last move failed not long ago" if record.travels.wait_until_ns > at.now_ns else ""


def is_attached(state: EngineState, record: JobRecord) -> bool:
    """True when its ranks save it, or its nodes make an image of it that it has no other way for."""
    seen = [state.sightings.get((name, record.key)) for name in record.nodes]
    if not seen or any(each is None or not each.measured.is_movable for each in seen):
        return False
    ways = {each.measured.framework for each in seen if each is not None}
    if ANEW in ways:
        return not is_elastic(record)
    return IMAGE not in ways or not (record.options.saves_by or is_elastic(record))


def is_untouched(state: EngineState, record: JobRecord) -> bool:
    """True for a resident job of which its node has just said that nothing of it has begun (ADR 0065)."""
    seen = [state.sightings.get((name, record.key)) for name in record.nodes]
    return any(each is not None and each.measured.framework == ANEW for each in seen)


def moves_by(state: EngineState, record: JobRecord) -> str:
    """How a job moves, in a word: attached, its framework's, self, signal, submitit, image, anew; "": not."""
    if why_fixed(record):
        return ""
    if not is_attached(state, record):
        return record.options.saves_by
    named = {state.sightings[name, record.key].measured.framework for name in record.nodes}
    return (named.pop() if len(named) == 1 else "") or "attached"


def own_signal(settings: EngineSettings, record: JobRecord) -> OwnSignal | None:
    """Return the signal upon which a job saves itself; it has no longer for it than the site gives a move."""
    own, most_s = record.options.own_signal, settings.move_deadline_ns // SECOND_NS
    return own._replace(grace_s=min(own.grace_s, most_s)) if own is not None else None


def begin_move(at: Cycle, record: JobRecord, target: Places, why: str, code: str = "Leaving") -> None:
    """Have a job leave for a target, which may be none; `why` is a sentence."""
    record.target = dict(target)
    own = "" if is_attached(at.state, record) else record.options.saves_by
    deadline_s = at.settings.move_deadline_ns // SECOND_NS
    if code == "Leaving" and moves_by(at.state, record) == ANEW:
        code = "ToBegin"
    reason = because(code, to=record.target_text, why=why, deadline_s=deadline_s)
    record.move(states.CHECKPOINTING, reason, at.now_ns)
    record.travels.begin(at.now_ns)
    record.travels.by = BY_SIGNAL if own == "submitit" else own
    if moves_by(at.state, record) == ANEW:
        record.travels.by = ANEW


def note_resident(at: Cycle, event: ResidentSeen) -> None:
    """Take a node's word on a job's rate, and on whether it has left."""
    record = at.state.jobs.get(event.key.job_id)
    if record is None or record.key != event.key or event.node not in record.places:
        return
    travels, home = record.travels, at.state.nodes.get(event.node)
    travels.peak_bytes = max(travels.peak_bytes, event.measured.peak_bytes)
    if event.measured.rate_alone > 0 and home is not None:
        note_rate(record, home.node.gpu_type, event.measured.rate_alone)
    if event.measured.framework != ANEW and (event.measured.is_movable or record.options.saves_by):
        note_size(record, event.measured.is_movable and event.measured.is_elastic)
    if event.has_left and record.state == states.CHECKPOINTING:
        at.left.add((event.key.job_id, event.node))
    if event.has_floor and record.state == states.CHECKPOINTING:
        at.ready.add((event.key.job_id, event.node))
    trains = event.reason not in _NOT_BACK if travels.by else event.measured.is_movable
    is_back = trains and record.state in states.SLICED and not travels.is_moving
    if travels.left_ns and is_back:
        measured_ns = at.now_ns - travels.left_ns if event.move_ns < 0 else event.move_ns
        # How long one that had not begun waited for its first turn is no cost of a move.
        travels.cost_ns, travels.left_ns = travels.cost_ns if travels.by == ANEW else measured_ns, 0


def note_outcome(at: Cycle, event: ActionDone) -> None:
    """A requeue that Slurm refused is asked for again, until the deadline; a signal is not sent again."""
    record = at.state.jobs.get(job_of(event.action_id))
    if event.error and record is not None and event.action_id in (_requeue_id(record), _signal_id(record)):
        record.travels.error = event.error


def watch_moves(at: Cycle) -> None:
    """Take each move one step on, or give it up; to be called once a cycle."""
    let_go(at)
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


def _lose_target(at: Cycle, record: JobRecord, lost: str) -> None:
    """Its target was lost after the requeue: no failure of the move's, it goes on from what it saved."""
    record.travels.give_up()
    then = "it is placed anywhere, and goes on from what it saved"
    record.move(states.HELD, because("TargetLost", to=record.target_text, node=lost, then=then), at.now_ns)
    record.retry_ns = at.now_ns + REQUEUE_PAUSE_NS


def _watch_leaving(at: Cycle, record: JobRecord) -> None:
    travels, has_ended = record.travels, is_coming_back(record, record.job.state)
    if record.job.state not in ON_NODE and not has_ended:
        return  # being requeued, or ending: the next picture says which
    why = _hopeless(at, record)
    if why and has_ended:  # it is over, as it would have been without us
        end_for_good(at, record)
    elif why:
        _stay_here(at, record, why)
    elif _has_left(at, record):
        _ask_requeue(at, record)
    elif travels.by == BY_SIGNAL and not travels.signalled_ns and _has_turn(at, record):
        _ask_signal(at, record)


def _hopeless(at: Cycle, record: JobRecord) -> str:
    """Why a job that leaves is to stay after all; "" while there is hope."""
    travels, own = record.travels, own_signal(at.settings, record)
    has_left = _has_left(at, record)
    # A signal cannot be taken back: what was sent one comes back, wherever it is then placed. For moments,
    # behind a start of slurmctld, all nodes are down.
    is_signalled = travels.signalled_ns > 0 and (not has_left or is_coming_back(record, record.job.state))
    down = [name for name in record.nodes if name not in at.state.nodes or at.state.nodes[name].is_down]
    if down and not is_signalled:
        return f"its node {','.join(down)} is down"
    if not travels.asked_ns and has_left and lost_size(at, record):
        return lost_size(at, record)
    if travels.asked_ns:
        is_late = at.now_ns - travels.left_ns >= at.settings.start_deadline_ns
        waited_s = at.settings.start_deadline_ns // SECOND_NS
        return f"not requeued within {waited_s} s{_colon(travels.error)}" if is_late else ""
    closed = lost_target(at, record)
    if closed and not is_signalled:
        return f"{closed} takes no jobs now"
    if lacks_vc(at, record) and not is_signalled:
        return f"gandiva.yaml has no {told_vc(record.vc)} any more"
    if travels.by == ANEW and not has_left and moves_by(at.state, record) != ANEW:
        return "it has begun"
    if travels.signalled_ns and own is not None and not has_left:
        if travels.error:
            return f"SIG{own.name} could not be sent: {travels.error}"
        is_late = at.now_ns - travels.signalled_ns >= own.grace_s * SECOND_NS
        late = f"it neither requeued itself nor ended within {own.grace_s} s of SIG{own.name}"
        return late if is_late else ""
    if at.now_ns - record.since_ns >= at.settings.move_deadline_ns and not has_left:
        seen = [at.state.sightings.get((name, record.key)) for name in record.nodes]
        told = ", ".join(sighting.detail for sighting in seen if sighting is not None and sighting.detail)
        waited_s = at.settings.move_deadline_ns // SECOND_NS
        return f"it had not saved itself within {waited_s} s{_colon(told)}"
    return ""


def _has_left(at: Cycle, record: JobRecord) -> bool:
    """True when each of its nodes has just said that all of it there has saved itself, and is parked.

    A job that goes on from its own newest file may leave at any time, one that saves itself upon a signal
    when it has ended, or has written its file and lives on.
    """
    if record.travels.by in (BY_SIGNAL, BY_SELF):
        has_ended = is_coming_back(record, record.job.state)
        return record.travels.by == BY_SELF or has_ended or own_files.has_saved(at.state, record)
    return all((record.job.job_id, node) in at.left for node in record.nodes)


def _has_turn(at: Cycle, record: JobRecord) -> bool:
    """True when each of its nodes has just said that the job has its turn there, and keeps it."""
    return all((record.job.job_id, node) in at.ready for node in record.nodes)


def _ask_requeue(at: Cycle, record: JobRecord) -> None:
    travels = record.travels
    travels.left_ns = travels.left_ns or at.now_ns
    if travels.asked_ns and at.now_ns - travels.asked_ns < at.settings.retry_ns:
        return  # asked again without an error, too: a controller may have died before it could ask
    has_ended = is_coming_back(record, record.job.state)
    record.stay(_leaves(at, record, has_ended), at.now_ns)
    travels.asked_ns, travels.error = at.now_ns, ""
    at.actions.append(Requeue(_requeue_id(record), record.key, record.code, record.text, has_ended))


def _leaves(at: Cycle, record: JobRecord, has_ended: bool) -> Reason:
    to, by = record.target_text, record.travels.by
    if has_ended:
        return because("EndedToMove", to=to, exit=record.job.exit_code)
    unfit = why_unfit(at.state.sightings, record.key, record.nodes)
    if unfit:
        return because("Unrestored", why=unfit)
    if by == ANEW:
        return because("NotBegun", to=to)
    if by != BY_SELF:
        is_image = not by and moves_by(at.state, record) == IMAGE
        return because("Imaged" if is_image else "Saved", to=to)
    age_s = own_files.age_s(at.state, record, at.now_ns)
    return because("GoesBack", to=to, age="" if age_s is None else f", {age_s} s old")


def _ask_signal(at: Cycle, record: JobRecord) -> None:
    """Have a job save itself: it has its turn, and keeps it."""
    own = own_signal(at.settings, record)
    assert own is not None
    facts = {"signal": f"SIG{own.name}", "to": record.target_text, "grace_s": own.grace_s}
    record.stay(because("Signalled", **facts), at.now_ns)
    record.travels.signalled_ns = record.travels.left_ns = at.now_ns
    what = (own.name, own.to_batch, record.code, record.text)
    at.actions.append(Signal(_signal_id(record), record.key, *what))


def _watch_requeued(at: Cycle, record: JobRecord) -> None:
    closed = lost_target(at, record)
    if closed:
        _lose_target(at, record, closed)
    elif at.now_ns - record.since_ns >= at.settings.start_deadline_ns:
        waited_s = at.settings.start_deadline_ns // SECOND_NS
        fall_back(at, record, f"it could not be started within {waited_s} s: {record.text}")


def _stay_here(at: Cycle, record: JobRecord, why: str) -> None:
    """Give a move up before the requeue: the job goes on where it is.

    A target that is lost is no failure of the move's: for moments all nodes are, behind a start of slurmctld.
    """
    to, lost, then = record.target_text, lost_target(at, record), "it goes on where it is"
    if lost:
        record.travels.give_up()
        reason = because("TargetLost", to=to, node=lost, then=then)
    else:
        reason = because("MoveFailed", to=to, why=why, then=then, wait_s=_count_failure(at, record))
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


def _signal_id(record: JobRecord) -> str:
    return f"signal:{record.key}:{record.travels.signalled_ns}"


def _colon(words: str) -> str:
    return f": {words}" if words else ""
