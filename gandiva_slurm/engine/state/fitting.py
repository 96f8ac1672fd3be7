"""Which jobs live on a GPU, and what is known of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.policy.packing.room import CONTEXT_BYTES, need

MIB = 1 << 20


class Seat(NamedTuple):
    """A job on a GPU, and what its node says of it."""

    record: JobRecord
    seen: Measured


class Home(NamedTuple):
    """A GPU of a node."""

    node: str
    gpu: int


def seats(at: Cycle) -> dict[Home, list[Seat]]:
    """The jobs that live on each GPU, in the order of jobs."""
    found: dict[Home, list[Seat]] = {}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order):
        for node, gpus in record.places.items():
            sighting = at.state.sightings.get((node, record.key))
            if sighting is None:
                continue
            for gpu in gpus:
                found.setdefault(Home(node, gpu), []).append(Seat(record, sighting.measured))
    return found


def memory(here: Sequence[Seat], one: int, two: int) -> tuple[str, ...]:
    """What is known of the memory of a GPU that two of those there share."""
    both = [seat for seat in here if seat.record.job.job_id in (one, two)]
    told = [f"GPU memory: {_mib(min((seat.seen.card_bytes for seat in both), default=0))}"]
    for seat in here:
        job_id, peak = seat.record.job.job_id, seat.seen.peak_bytes
        if seat not in both:
            told.append(f"job {job_id}: {_mib(seat.seen.held_bytes + CONTEXT_BYTES)} while it is parked")
        elif peak:
            told.append(f"job {job_id}: {_mib(need(peak))} at most, by a peak of {_mib(peak)} so far")
    return tuple(told)


def _mib(count: int) -> str:
    return f"{-(-count // MIB)} MiB" if count else "not known"
