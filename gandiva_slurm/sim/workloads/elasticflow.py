"""ElasticFlow's traces: job_id,submission_time,duration,num_gpu in seconds, rows in any order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import Row, read_table

NEEDS = ("job_id", "submission_time", "duration", "num_gpu")
KNOWS = ("num_iteration", "model_name", "deadline", "batch_size", "user")


def read(path: Path) -> Iterator[tuple[Row, Spec]]:
    """Yield the rows with their jobs. Times are whole seconds, a run time is rounded and at least one."""
    for number, row in enumerate(read_table(path, NEEDS, KNOWS)):
        model, batch = row.text("model_name"), row.text("batch_size")
        yield (
            row,
            Spec(
                job_id=number,
                name=row.text("job_id", str(number)),
                user=row.text("user"),
                size=row.whole("num_gpu", 1),
                submit_ns=int(row.number("submission_time")) * 10**9,
                length_ns=max(1, round(row.number("duration"))) * 10**9,
                steps=row.whole("num_iteration") if row.text("num_iteration") else 0,
                model=f"{model} (batch size {batch})" if model and batch else model,
            ),
        )
