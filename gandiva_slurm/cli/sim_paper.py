"""`gandiva sim paper`: published tables and figures, run again, beside the papers' own numbers."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from gandiva_slurm.cli.table import Field, squeue_lines
from gandiva_slurm.output import progress, require_folder, write_result
from gandiva_slurm.sim.outcome import VERSION
from gandiva_slurm.sim.paper.catalogue import CATALOGUE, Entry, find
from gandiva_slurm.sim.paper.result import Setup, Value

_LIST = (
    Field("Name", 16, lambda row: str(row["name"]), left=True),
    Field("What", 40, lambda row: str(row["title"]), left=True),
    Field("Paper", 40, lambda row: str(row["source"]), left=True),
)
_ROWS = (
    Field("What", 40, lambda row: str(row["what"]), left=True),
    Field("Ours", 12, lambda row: _shown(row["ours"])),
    Field("Paper", 12, lambda row: _shown(row["paper"])),
    Field("Unit", 12, lambda row: str(row["unit"]), left=True),
    Field("Note", 40, lambda row: str(row["note"]), left=True),
)


@click.command(short_help="Run published tables and figures again.")
@click.argument("name", metavar="LIST|NAME")
@click.option("--seed", type=int, default=0, help="Of what is drawn by chance; 0.")
@click.option("--json", "json_", metavar="FILE|-", help="Write the result as JSON.")
def paper(name: str, seed: int, json_: str | None) -> None:
    """Run a published table or figure again, beside the paper's own numbers; LIST lists them."""
    require_folder(json_)
    if name.upper() == "LIST":
        rows = [asdict(entry) for entry in CATALOGUE]
        return write_result(json_, {"version": VERSION, "papers": rows}, _table(_LIST, rows))
    entry = find(name)
    began_s = time.perf_counter()
    with progress("done", 1) as on_progress:
        result = [asdict(row) for row in entry.run(Setup(seed, on_progress))]
    told = {
        "version": VERSION, **asdict(entry), "seed": seed, "rows": result,
        "wall_s": time.perf_counter() - began_s,
    }  # fmt: skip
    return write_result(json_, told, f"{_heading(entry, seed)}\n{_table(_ROWS, result)}")


def _heading(entry: Entry, seed: int) -> str:
    drawn = f" (seed {seed})" if entry.is_drawn else ""
    return f"{entry.source}: {entry.title}{drawn}"


def _table(fields: tuple[Field, ...], rows: list[dict[str, Any]]) -> str:
    return "\n".join(squeue_lines(fields, rows, header=True))


def _shown(value: Value) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else value
