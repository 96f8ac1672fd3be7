"""How many GPUs a job has: what it was submitted with, or, of an elastic one, what it was resized to.

A size is that of the job's place, or of the place it is to be started on. So an elastic job that waits for
any place is again what it was submitted as, unless what it has saved can be loaded at one size only.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord


def is_elastic(record: JobRecord) -> bool:
    """True when it was submitted with other sizes than one (jobs of several nodes are never resized)."""
    if not record.options.elastic:
        return False
    low, high = record.options.sizes
    return low < high


def gpus_of(record: JobRecord) -> int:
    """Its GPUs in all."""
    if not is_elastic(record):
        return record.options.gpus
    held = sum(map(len, (record.places or record.target).values()))
    return held or record.travels.rigid_size or record.options.gpus


def may_have(record: JobRecord, gpus: int) -> bool:
    """True when it may have so many GPUs on each of its nodes."""
    low, high = record.options.sizes
    return low <= gpus * max(1, record.options.nodes) <= high


def rigid(at: Cycle, record: JobRecord) -> str:
    """Why it can go on with as many ranks as it has only; "" when any number will do."""
    seen = [at.state.sightings.get((name, record.key)) for name in record.nodes]
    if all(sighting is not None and sighting.measured.is_elastic for sighting in seen):
        return ""
    return "what it saves now can be loaded by as many ranks as it has only (docs/using.md, elastic jobs)"


def lost_size(at: Cycle, record: JobRecord) -> str:
    """Why a job that has saved itself cannot have as many GPUs as it was to have; "" when it can."""
    is_resized = record.target and sum(map(len, record.target.values())) != gpus_of(record)
    return rigid(at, record) if is_resized else ""


def note_size(record: JobRecord, is_any_size: bool) -> None:
    """Keep at which size alone a job that can save itself can go on; 0: at any."""
    if is_elastic(record):
        record.travels.rigid_size = 0 if is_any_size else gpus_of(record)


def note_rate(record: JobRecord, gpu_type: str, rate: float) -> None:
    """Keep what a job was measured at, alone: types are compared at the size it asked for."""
    size = gpus_of(record)
    if size == record.options.gpus:
        record.travels.rates[gpu_type] = rate
    if is_elastic(record):
        record.travels.size_rates[f"{gpu_type}:{size}"] = rate


def told(record: JobRecord) -> Iterator[str]:
    """Say what is known of an elastic job's size, for `gandiva why`."""
    if not is_elastic(record):
        return
    low, high = record.options.sizes
    yield f"elastic: {low} to {high} GPUs, submitted with {record.options.gpus}, now {gpus_of(record)}"
    rates = record.travels.size_rates
    if len(rates) > 1:
        words = ", ".join(f"{size} {rate:.3g}/s" for size, rate in sorted(rates.items()))
        yield f"measured alone, by GPU type and size: {words}"
