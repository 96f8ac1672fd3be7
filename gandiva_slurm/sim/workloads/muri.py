"""Muri's traces: every time in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import Row, read_table

NEEDS = ("job_id", "num_gpu", "submit_time", "duration")
KNOWS = (
    "iterations", "model_name", "batch_size", "interval", "iteration_time", "resource_time_0",
    "resource_time_1", "resource_time_2", "resource_time_3", "priority",
)  # fmt: skip
_MS = 10**6


def read(path: Path) -> Iterator[tuple[Row, Spec]]:
    """Yield the rows with their jobs; a run time is at least a millisecond."""
    for number, row in enumerate(read_table(path, NEEDS, KNOWS)):
        yield (
            row,
            Spec(
                job_id=number,
                name=row.text("job_id", str(number)),
                user="",
                size=row.whole("num_gpu", 1),
                submit_ns=row.ns("submit_time", _MS),
                length_ns=max(_MS, row.ns("duration", _MS)),
                steps=row.whole("iterations") if row.text("iterations") else 0,
                model=row.text("model_name"),
            ),
        )
