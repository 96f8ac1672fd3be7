"""`gandiva update`: another priority or class for a job, as `scontrol update` would."""

from __future__ import annotations

from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import find_jobs, parse_job_id
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import CLASSES


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.argument("change")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def update(config: str | None, job: str, change: str, as_json: bool) -> None:
    """Give JOB another priority among your jobs, or make it guaranteed or opportunistic, as it runs.

    priority=N, 0 to 100: N + 1 times its tickets are its part of your share. class=opportunistic: it has
    what guaranteed jobs leave, and costs nothing of your share; class=guaranteed: it has its part of that.
    An array's id stands for all its tasks.
    """
    name, value = _read(change)
    jobs = find_jobs(config, parse_job_id(job), job, is_live=True)
    rows: list[dict[str, Any]] = query(config, "update", {"job_ids": jobs, name: value})
    if as_json:
        click.echo(to_json({"jobs": rows}))
        return
    for row in rows:
        click.echo(f"job {row['job_id']}: {name.removeprefix('job_')} {row[name]}, was {row['was']}")


def _read(change: str) -> tuple[str, Any]:
    name, _, value = change.partition("=")
    if name.lower() == "class" and value in CLASSES:
        return "job_class", value
    if name.lower() == "class":
        raise UsageError(f"class: expected {' or '.join(CLASSES)}, got {value!r}")
    if name.lower() != "priority":
        raise UsageError(
            f"{change!r}: only priority=N can be changed, 0 to 100, and class={'|'.join(CLASSES)}"
        )
    if not value.isascii() or not value.isdigit() or len(value) > 3:
        raise UsageError(f"priority: expected a whole number from 0 to 100, got {value!r}")
    return "priority", int(value)
