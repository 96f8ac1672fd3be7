"""How many GPUs a job has: what it was submitted with, or, of an elastic one, what it was resized to.

A size is that of the job's place, or of the place it is to be started on. So an elastic job that waits for
any place is again what it was submitted as, unless what it has saved can be loaded at one size only. So is
its number of nodes: one that asked for one or two has two where it has grown over both (ADR 0066).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model.snapshot import SlurmJob


def is_elastic(record: JobRecord) -> bool:
    """True when it was submitted with other sizes than one (jobs that asked for several nodes are not)."""
    if not record.options.elastic:
        return False
    low, high = record.options.sizes
    return low < high


def gpus_of(record: JobRecord) -> int:
    """Its GPUs in all."""
    if not is_elastic(record):
        return record.options.gpus
    place = record.places or record.target
    held = sum(map(len, place.values()))
    return held or record.travels.rigid_size or record.options.gpus * max(1, len(place))


def nodes_of(record: JobRecord) -> int:
    """Its nodes."""
    if record.options.max_nodes <= record.options.nodes:
        return record.options.nodes
    return len(record.places or record.target) or record.travels.rigid_nodes or record.options.nodes


def may_have(record: JobRecord, gpus: int, nodes: int) -> bool:
    """True when it may have these GPUs on each of these nodes, both by number."""
    low, high = record.options.sizes
    return low <= gpus * max(1, nodes) <= high and record.options.nodes <= nodes <= most_nodes(record)


def most_nodes(record: JobRecord) -> int:
    """The most nodes it may have."""
    return max(record.options.nodes, record.options.max_nodes)


def with_its_memory(job: SlurmJob, was: SlurmJob) -> SlurmJob:
    """Return a job as Slurm shows it, with no less memory on a node than it had, where it may have two nodes.

    Of one that waits after it was given two, Slurm 22.05 tells one node's memory as that of both.
    """
    if job.options is None or job.options.max_nodes < 2 or job.state != "PENDING":
        return job
    return replace(job, memory_mib=max(job.memory_mib, was.memory_mib))


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
        record.travels.rigid_nodes = 0 if is_any_size else nodes_of(record)


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
    over = " on one node or two" if most_nodes(record) > 1 else ""
    now = f"{gpus_of(record)}{' on two nodes' if nodes_of(record) > 1 else ''}"
    yield f"elastic: {low} to {high} GPUs{over}, submitted with {record.options.gpus}, now {now}"
    rates = record.travels.size_rates
    if len(rates) > 1:
        words = ", ".join(f"{size} {rate:.3g}/s" for size, rate in sorted(rates.items()))
        yield f"measured alone, by GPU type and size: {words}"
