"""What must always hold of jobs on the move, as `invariants` has it for the rest."""

from __future__ import annotations

from gandiva_slurm.engine.state.records import EngineState, JobRecord
from gandiva_slurm.engine.state.sizes import may_have
from gandiva_slurm.model import job as states

#: States in which a place may be kept for a job.
_KEEPS = (states.HELD, *states.BOUND_ELSEWHERE)


def moves_are_sound(state: EngineState) -> list[str]:
    """What moves has a whole target, or leaves for nowhere; what is requeued for a move has one."""
    found = []
    for record in state.jobs.values():
        moves = record.state in states.BOUND_ELSEWHERE
        may_lack = record.state in (states.HELD, states.CHECKPOINTING)
        if moves != bool(record.target) and not may_lack:
            found.append(f"job {record.key} is {record.state} with target {record.target}")
        if moves and not record.travels.is_moving:
            found.append(f"job {record.key} is {record.state} and does not count as moving")
        if record.target and not _is_whole(record):
            found.append(f"job {record.key} is to have {record.target}, asked for {record.options.gpus}")
    return found


def _is_whole(record: JobRecord) -> bool:
    parts = [*record.target.values()]
    are_even = len({*map(len, parts)}) == 1
    return are_even and all(
        len(set(gpus)) == len(gpus) and may_have(record, len(gpus), len(parts)) for gpus in parts
    )
