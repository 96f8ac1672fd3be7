"""What must always hold of jobs on the move, as `invariants` has it for the rest."""

from __future__ import annotations

from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.engine.sizes import may_have
from gandiva_slurm.engine.state import EngineState, JobRecord
from gandiva_slurm.model import job as states

#: States in which a place may be kept for a job.
_KEEPS = (states.HELD, *states.BOUND_ELSEWHERE)


def moves_are_sound(state: EngineState, settings: EngineSettings, is_led: bool = False) -> list[str]:
    """What moves has a target, whole and for itself alone; nothing moves more often than it may.

    Where a policy decides (`is_led`) a job may leave for nowhere, and as often as that is planned. What comes
    in its stead starts when it has left: what is kept for that does not count yet.
    """
    found = []
    for record in state.jobs.values():
        moves = record.state in states.BOUND_ELSEWHERE
        may_lack = record.state == states.HELD or (is_led and record.state == states.CHECKPOINTING)
        if moves != bool(record.target) and not may_lack:
            found.append(f"job {record.key} is {record.state} with target {record.target}")
        if moves and not record.travels.is_moving:
            found.append(f"job {record.key} is {record.state} and does not count as moving")
        if record.target and not _is_whole(record):
            found.append(f"job {record.key} is to have {record.target}, asked for {record.options.gpus}")
        if not is_led and len(record.travels.moved_ns) > settings.moves_per_hour:
            found.append(f"job {record.key} was moved {len(record.travels.moved_ns)} times within an hour")
    return found if is_led else [*found, *kept_slots_are_bounded(state, settings.slots_per_gpu)]


def kept_slots_are_bounded(state: EngineState, slots_per_gpu: int) -> list[str]:
    """No GPU has more residents than slots, those on their way to it included, where we placed them all."""
    there: dict[tuple[str, int], dict[int, JobRecord]] = {}
    for record in state.jobs.values():
        parts = [*record.places.items()]
        if record.state in states.BOUND_ELSEWHERE:
            parts += record.target.items()
        for name, gpus in parts:
            for gpu in gpus:
                there.setdefault((name, gpu), {})[record.job.job_id] = record
    return [
        f"GPU {gpu} of {node} is for {len(records)} jobs, {slots_per_gpu} slots: {sorted(records)}"
        for (node, gpu), records in sorted(there.items())
        if len(records) > slots_per_gpu and all(record.starts for record in records.values())
    ]


def _is_whole(record: JobRecord) -> bool:
    parts = [*record.target.values()]
    is_right = all(len(set(gpus)) == len(gpus) and may_have(record, len(gpus)) for gpus in parts)
    return len(parts) == record.options.nodes and is_right
