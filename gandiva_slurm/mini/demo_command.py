"""The command `gandiva mini demo`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--backend", default="local", show_default=True, help="local: this host's Slurm packages")
@click.option("--suite", default="", help="Debian release; the back end local takes the host's")
@click.option("--json", "result", metavar="FILE", help="write the report there too (- for standard output)")
def demo(backend: str, suite: str, result: str | None) -> int:
    """Run the main job on a mini cluster of its own, and prove it; exit 1 if a check fails."""
    from gandiva_slurm.mini import demo as main_job
    from gandiva_slurm.mini.commands import check_backend

    check_backend(backend)
    # An end from outside takes the same way out as Ctrl-C: the cluster goes down.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    to_stdout = result == "-"
    report = main_job.run(
        os.environ.get("GANDIVA_MINI") or "demo", backend, lambda text: click.echo(text, err=to_stdout)
    )
    text = json.dumps(report, indent=2) + "\n"
    if to_stdout:
        click.echo(text, nl=False)
    elif result:
        Path(result).write_text(text)
    return 0 if report["ok"] else 1


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
