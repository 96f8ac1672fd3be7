"""Whether two jobs fit into the memory of their GPU at the same time; what is not known does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.state import JobRecord
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.policy.room import CONTEXT_BYTES, fits, need

MIB = 1 << 20


class Seat(NamedTuple):
    """A job on a GPU, and what its node says of it."""

    record: JobRecord
    seen: Measured


class Home(NamedTuple):
    """A GPU of a node."""

    node: str
    gpu: int


class Misfit(NamedTuple):
    """Why two are not packed: in words that stay while the matter does, and the figures."""

    why: str
    evidence: tuple[str, ...]


def seats(at: Cycle) -> dict[Home, list[Seat]]:
    """Who lives on each GPU, in the order of jobs, whether he may be packed or not."""
    found: dict[Home, list[Seat]] = {}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order):
        for node, gpus in record.places.items():
            sighting = at.state.sightings.get((node, record.key))
            if sighting is None:
                continue
            for gpu in gpus:
                found.setdefault(Home(node, gpu), []).append(Seat(record, sighting.measured))
    return found


def misfit(here: Sequence[Seat], one: int, two: int) -> Misfit | None:
    """Say why two of those on a GPU, by job id, cannot have it at the same time; None when both fit."""
    both = [seat for seat in here if seat.record.job.job_id in (one, two)]
    if not all(seat.seen.card_bytes for seat in both):
        return Misfit("how much memory their GPU has is not known", ("its node has not told it",))
    unknown = [f"job {seat.record.job.job_id}" for seat in both if not seat.seen.peak_bytes]
    if unknown:
        evidence = "it is told when a job parks, and while it is packed"
        return Misfit(f"the peak memory of {' and '.join(unknown)} is not known yet", (evidence,))
    others = [seat.seen.held_bytes for seat in here if seat not in both]
    card = min(seat.seen.card_bytes for seat in both)
    if fits(card, [seat.seen.peak_bytes for seat in both], others):
        return None
    return Misfit("both do not fit into their GPU's memory together", memory(here, one, two))


def memory(here: Sequence[Seat], one: int, two: int) -> tuple[str, ...]:
    """What is known of the memory of a GPU that two of those there share, or might."""
    both = [seat for seat in here if seat.record.job.job_id in (one, two)]
    told = [f"GPU memory: {_mib(min((seat.seen.card_bytes for seat in both), default=0))}"]
    for seat in here:
        job_id, peak = seat.record.job.job_id, seat.seen.peak_bytes
        if seat not in both:
            told.append(f"job {job_id}: {_mib(seat.seen.held_bytes + CONTEXT_BYTES)} while it is parked")
        elif peak:
            told.append(f"job {job_id}: {_mib(need(peak))} at most, by a peak of {_mib(peak)} so far")
    return tuple(told)


def ooms(here: Sequence[Seat], one: int, two: int) -> int:
    """How often either has asked for more GPU memory than there was, in its life."""
    return sum(seat.seen.ooms for seat in here if seat.record.job.job_id in (one, two))


def _mib(count: int) -> str:
    return f"{-(-count // MIB)} MiB" if count else "not known"
