"""How fast a job goes where it is, beside whom it is: by what was measured, else as it went before."""

from __future__ import annotations

from gandiva_slurm.engine.state.records import EngineState, JobRecord

#: What each of two on a GPU keeps of its speed where nobody has measured them; packs stay from 0.525 on.
UNMEASURED_PAIR = 0.55


def speed(state: EngineState, record: JobRecord, mate: JobRecord | None, types: dict[int, str]) -> float:
    """Return the part of its work that a job does in a unit of time, 1 where it was first seen, alone.

    `mate` is on the same GPUs; `types` remembers on which GPU type each job was first seen.
    """
    home = state.nodes.get(record.nodes[0]) if record.nodes else None
    if home is None:
        return 0.0
    kind, gpus = home.node.gpu_type, sum(map(len, record.places.values()))
    first = types.setdefault(record.job.job_id, kind)
    is_local, pace = len(record.places) == 1, 1.0
    here = state.rates.alone(record.model, gpus, kind, is_local)
    there = state.rates.alone(record.model, gpus, first, is_local)
    if here and there:
        pace = here / there
    if mate is None or mate.job.job_id not in state.on or mate.places != record.places:
        return pace
    pair = state.rates.packed(record.model, mate.model, kind)
    return pace * (min(1.0, pair[0] / here) if pair and here else UNMEASURED_PAIR)
