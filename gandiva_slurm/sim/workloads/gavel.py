"""Gavel's traces: tab-separated, no header, ten columns, or the seven of its Philly-derived ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import Row, read_lines

TEN = (
    "job_type", "command", "working_dir", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
    "priority_weight", "slo", "arrival_s",
)  # fmt: skip
SEVEN = (
    "job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_s", "scale_factor",
)  # fmt: skip
_COLUMNS = {len(TEN): TEN, len(SEVEN): SEVEN}


def read(path: Path) -> Iterator[tuple[Row, Spec]]:
    """Yield the rows with their jobs, in the order of the file; jobs are numbered from 0."""
    for number, line in enumerate(read_lines(path)):
        cells = line.split("\t")
        if len(cells) not in _COLUMNS:
            raise UsageError(f"{path}:{number + 1}: {len(cells)} tab-separated fields; a trace has 10 or 7")
        row = Row(str(path), number + 1, dict(zip(_COLUMNS[len(cells)], cells, strict=True)))
        yield (
            row,
            Spec(
                job_id=number,
                name=str(number),
                user="",
                size=row.whole("scale_factor", 1),
                submit_ns=row.ns("arrival_s", 10**9),
                steps=row.whole("total_steps", 1),
                model=row.text("job_type"),
            ),
        )
