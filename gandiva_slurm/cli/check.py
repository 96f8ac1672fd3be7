"""`gandiva check`: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

import click

from gandiva_slurm.cli.client import to_json

ERROR = "error"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def check(config: str | None, as_json: bool) -> int:
    """Check configuration, Slurm and daemons; exit 1 if something is wrong."""
    # Imported by name: most commands never need Slurm's adapters.
    checks = importlib.import_module("gandiva_slurm.slurm.check")
    settings = importlib.import_module("gandiva_slurm.config").load_config(config)
    findings = [dataclasses.asdict(finding) for finding in asyncio.run(checks.run_checks(settings))]
    if as_json:
        click.echo(to_json({"findings": findings}))
    else:
        for line in report(findings):
            click.echo(line)
    return int(any(finding["level"] == ERROR for finding in findings))


def report(findings: Iterable[dict[str, Any]]) -> Iterable[str]:
    """One line a finding, worst first, and a last line that sums up."""
    rows = sorted(findings, key=lambda row: row["level"] != ERROR)
    for row in rows:
        yield f"{row['level']}: {row['text']}"
    errors = sum(row["level"] == ERROR for row in rows)
    yield f"{errors} errors, {len(rows) - errors} warnings" if rows else "no fault found"
