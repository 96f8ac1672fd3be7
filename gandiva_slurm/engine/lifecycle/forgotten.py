"""Requeues of ours that a slurmctld has forgotten: killed, it comes back without its last seconds (ADR 0072).

The node was told to end the job, and has; a slurmctld that knows nothing of the requeue takes that for the
job's end. What the job has saved is there. So it is requeued once more, as one that has ended.

So is what was killed by a trap while an image of it was made, which a killed criu has left in it (ADR 0054).
"""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import REQUEUED_ENDED, Requeue
from gandiva_slurm.model.event import JobGone
from gandiva_slurm.model.reason import because

#: For how long it is asked for: Slurm itself forgets what has ended (MinJobAge, 300 s by default).
ASKED_NS = 300 * SECOND_NS
#: A requeue sends SIGTERM and then SIGKILL: how Slurm tells the end of a process, and of a shell whose last
#: command it was, by either.
KILLED = {"0:15", "0:9", "143:0", "137:0"}
#: What criu has put into a process behind a system call kills it, where criu is killed in that moment.
TRAPPED = {"0:5", "133:0"}
#: A job that is parked, or leaves, dies of nothing else as often as this.
MOST_BROKEN = 3


def take_end(at: Cycle, record: JobRecord, event: JobGone) -> bool:
    """True for an end that is a requeue's: the job waits, to be requeued once more."""
    if record.travels.forgotten_ns:
        is_asked = at.now_ns - record.travels.forgotten_ns < ASKED_NS
        return event.state in REQUEUED_ENDED and is_asked and event.restart == record.job.restart
    if event.state not in REQUEUED_ENDED or not record.job.requeue:
        return False
    is_killed = event.state == "FAILED" and event.exit_code in KILLED
    was_asked = record.state == states.CHECKPOINTING and record.travels.asked_ns > 0
    # What waits to be started again does not end so; of which incarnation Slurm then takes it differs. An
    # earlier one was seen to be requeued: it has ended by nothing else.
    is_waiting = record.state in states.WAITING and record.job.restart > 0
    was_requeued = is_waiting and event.restart < record.job.restart
    is_broken = _is_broken(record, event)
    if not was_requeued and not is_broken and not (is_killed and (was_asked or is_waiting)):
        return False
    end = replace(record.job, restart=event.restart, state=event.state, exit_code=event.exit_code, nodes=())
    record.job, reason = end, because("ImageBroke" if is_broken else "Forgotten", exit=event.exit_code)
    record.travels.give_up()
    record.travels.broken += is_broken
    record.travels.forgotten_ns = at.now_ns
    if record.state == states.HELD:
        record.stay(reason, at.now_ns)
    else:
        record.move(states.HELD, reason, at.now_ns)
    return True


def _is_broken(record: JobRecord, event: JobGone) -> bool:
    """True for one that was killed with the criu that made its image: it was parked, and could do nothing."""
    travels = record.travels
    is_trapped = event.state == "FAILED" and event.exit_code in TRAPPED
    was_parked = record.state in (states.SUSPENDED, states.CHECKPOINTING) and not travels.signalled_ns
    is_this = event.restart == record.job.restart
    return is_trapped and was_parked and is_this and travels.is_imaged and travels.broken < MOST_BROKEN


def ask_again(at: Cycle) -> None:
    """Have Slurm requeue each; to be called once a cycle."""
    forgotten = [record for record in at.state.jobs.values() if record.travels.forgotten_ns]
    for record in sorted(forgotten, key=lambda record: record.order):
        travels = record.travels
        if record.state != states.HELD or record.job.state not in REQUEUED_ENDED:
            travels.forgotten_ns = 0
        elif at.now_ns - travels.asked_ns >= at.settings.retry_ns:
            travels.asked_ns = at.now_ns
            action_id = f"requeue:{record.key}:{at.now_ns}"
            at.actions.append(Requeue(action_id, record.key, record.code, record.text, has_ended=True))
