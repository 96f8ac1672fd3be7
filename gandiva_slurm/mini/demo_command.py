"""The command `gandiva mini demo`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.mini.spec import BACKEND_VARIABLE, BACKENDS, SUITES, backend_text, default_backend
from gandiva_slurm.output import require_folder

Command = Callable[..., Any]


def backend_options(command: Command) -> Command:
    """Give a command `--backend` and `--suite`."""
    releases = ", ".join(f"{suite} ({version})" for suite, version in SUITES.items())
    asked = "local: this machine's Slurm packages; docker: containers"
    suite = click.option("--suite", default="", help=f"with docker, the Debian release (Slurm): {releases}")
    backend = click.option("--backend", type=click.Choice(BACKENDS),
                           help=f"{asked} [default: ${BACKEND_VARIABLE}, else local]")
    return backend(suite(command))


def chosen_backend(backend: str | None, suite: str) -> str:
    """The two options as MiniSpec takes them."""
    return backend_text(backend, suite) if backend else default_backend(suite)


@click.command(short_help="Run the main job on a cluster of its own.")
@backend_options
@click.option("--json", "result", metavar="FILE", help="write the report there too (- for standard output)")
def demo(backend: str | None, suite: str, result: str | None) -> int:
    """Run the main job on a mini cluster of its own, and prove it; exit 1 if a check fails."""
    from gandiva_slurm.mini import demo as main_job

    where = chosen_backend(backend, suite)
    # An end from outside takes the same way out as Ctrl-C: the cluster goes down.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    to_stdout = result == "-"
    require_folder(result)
    report = main_job.run(
        os.environ.get("GANDIVA_MINI") or "demo", where, lambda text: click.echo(text, err=to_stdout)
    )
    text = json.dumps(report, indent=2) + "\n"
    if to_stdout:
        click.echo(text, nl=False)
    elif result:
        Path(result).write_text(text)
    return 0 if report["ok"] else 1


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
