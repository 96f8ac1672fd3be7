"""What bounds a job's time besides its own limit: its partition's MaxTime, and reservations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reservation:
    """A reservation of whole nodes, or of a part of them; times in unix seconds."""

    name: str
    nodes: tuple[str, ...]
    start_s: int
    end_s: int


@dataclass(frozen=True)
class Bounds:
    """`max_time_s` has the partitions with a finite MaxTime."""

    max_time_s: tuple[tuple[str, int], ...] = ()
    reservations: tuple[Reservation, ...] = ()
