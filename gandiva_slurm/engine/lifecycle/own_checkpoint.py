"""How a job ends, or comes back, that was sent the signal upon which it saves itself (ADR 0045)."""

from __future__ import annotations

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note, Unhold
from gandiva_slurm.model.event import JobGone
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import because
from gandiva_slurm.model.snapshot import OwnSignal


def is_coming_back(record: JobRecord, state: str) -> bool:
    """True for a job that ended non-zero upon the signal by which it saves itself: it is to be moved."""
    travels = record.travels
    return record.state == states.CHECKPOINTING and travels.signalled_ns > 0 and state == "FAILED"


def ended_late(at: Cycle, record: JobRecord, event: JobGone) -> bool:
    """True for one that ended non-zero upon its signal, though it was to stay: it took longer than it may.

    What it asked for itself counts, where the site gives a move less, and else the site's time.
    """
    travels, own = record.travels, record.options.own_signal
    has_stayed = record.state in states.SLICED and travels.signalled_ns > 0
    if event.state != "FAILED" or not has_stayed or own is None:
        return False
    bound_ns = _bound_ns(at, own)
    return at.now_ns - travels.signalled_ns <= bound_ns


def let_go(at: Cycle) -> None:
    """Have jobs held no longer that were signalled, stayed, and leave for it no more.

    Until then one that requeues itself late is to be started by nobody but us.
    """
    for record in at.state.jobs.values():
        travels, own = record.travels, record.options.own_signal
        if record.state not in states.SLICED or not travels.signalled_ns or own is None:
            continue
        is_over = at.now_ns - travels.signalled_ns > _bound_ns(at, own)
        is_due = at.now_ns - record.hold_asked_ns >= at.settings.retry_ns
        if is_over and is_due and record.job.is_held and record.job.state == "RUNNING":
            record.hold_asked_ns = at.now_ns
            action_id = f"unhold:{record.key}:{at.now_ns}"
            at.actions.append(Unhold(action_id, record.key, record.code, record.text))


def _bound_ns(at: Cycle, own: OwnSignal) -> int:
    """How long an end or a requeue counts as one upon its signal: its own time, or the site's."""
    return max(own.grace_s * SECOND_NS, at.settings.move_deadline_ns)


def tell_moved(at: Cycle, record: JobRecord, left: JobKey) -> None:
    """Tell, for the accounts, of an incarnation that requeued itself upon its signal."""
    travels = record.travels
    if record.state == states.CHECKPOINTING and travels.signalled_ns and not travels.asked_ns:
        reason = because("MovedOut", to=record.target_text)
        at.actions.append(Note(f"moved:{left}:{at.now_ns}", left, reason.code, reason.text))
