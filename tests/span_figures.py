"""What the record of spans and the nodes' logs say of a run: parks, how long they took, overlaps, shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.engine import invariants
from tests.records import Held, holds_of

#: What a park may take beside its mini-batches.
ALLOWED_MS = 100.0


@dataclass(frozen=True)
class Parks:
    """The parks of a run, one line each."""

    rows: Sequence[dict[str, Any]]

    @property
    def good(self) -> list[dict[str, Any]]:
        """Those that ended with all GPUs given back."""
        return [row for row in self.rows if row["outcome"] == "off" and not row["error"]]

    @property
    def failed(self) -> list[str]:
        """Why the others did not."""
        return [f"{row['outcome']}: {row['error']}" for row in self.rows if row not in self.good]

    @property
    def took_ms(self) -> list[float]:
        """From the first order until all parts had released, ascending."""
        return sorted(_released_ms(row) for row in self.good)

    @property
    def excess_ms(self) -> list[float]:
        """What each took beyond its margin and one mini-batch more, ascending."""
        return sorted(_released_ms(row) - (row["margin"] + 1) * row["step_ms"] for row in self.good)

    def __str__(self) -> str:
        took, excess = self.took_ms, self.excess_ms
        misses = sum(row["reaims"] for row in self.rows)
        return (
            f"{len(self.rows)} parks, {len(self.failed)} failed, {misses} aims repeated; "
            f"took p50 {at(took, 50):.0f} p99 {at(took, 99):.0f} max {took[-1]:.0f} ms; "
            f"beyond (margin + 1) mini-batches p50 {at(excess, 50):.0f} p99 {at(excess, 99):.0f} ms"
        )


def parks_of(record: Iterable[dict[str, Any]], job_id: int = 0) -> Parks:
    """The parks in a controller's record."""
    rows = [line for line in record if line["event"] == "span" and line["to"] == "out"]
    return Parks([row for row in rows if job_id in (0, row["job"])])


def overlaps(events: dict[str, list[dict[str, Any]]]) -> list[str]:
    """GPUs held twice, by the nodes' own logs."""
    return [text for lines in events.values() for text in invariants.no_gpu_held_twice(holds_of(lines))]


def held_s(holds: Iterable[Held], window_ns: tuple[int, int]) -> dict[str, float]:
    """GPU-seconds of each user within a window."""
    found: dict[str, float] = {}
    for hold in holds:
        part = min(hold.t1_ns, window_ns[1]) - max(hold.t0_ns, window_ns[0])
        found[hold.user] = found.get(hold.user, 0.0) + max(0, part) * len(hold.gpus) / 1e9
    return found


def at(ascending: Sequence[float], percent: int) -> float:
    """A percentile, the smallest value that so many do not exceed; 0 of none."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)] if ascending else 0.0


def _released_ms(row: dict[str, Any]) -> float:
    return next((ms for stage, ms in row["stages"] if stage == "FREE"), row["took_ms"])
