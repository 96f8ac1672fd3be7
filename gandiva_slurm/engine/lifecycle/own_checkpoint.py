"""How a job ends, or comes back, that was sent the signal upon which it saves itself (ADR 0045)."""

from __future__ import annotations

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note
from gandiva_slurm.model.event import JobGone
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import because


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
    bound_ns = max(own.grace_s * SECOND_NS, at.settings.move_deadline_ns)
    return at.now_ns - travels.signalled_ns <= bound_ns


def tell_moved(at: Cycle, record: JobRecord, left: JobKey) -> None:
    """Tell, for the accounts, of an incarnation that requeued itself upon its signal."""
    travels = record.travels
    if record.state == states.CHECKPOINTING and travels.signalled_ns and not travels.asked_ns:
        reason = because("MovedOut", to=record.target_text)
        at.actions.append(Note(f"moved:{left}:{at.now_ns}", left, reason.code, reason.text))
