"""The commands `gandiva mini demo` and `gandiva mini acceptance`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.mini.spec import (
    BACKEND_VARIABLE,
    BACKENDS,
    SUITES,
    MiniSpec,
    backend_text,
    default_backend,
    parse_nodes,
)
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
@click.option("--keep", is_flag=True, help="leave the cluster up, to go on with")
@click.option("--picture", metavar="FILE", hidden=True, help="write the live screen there, as SVG")
def demo(backend: str | None, suite: str, result: str | None, keep: bool, picture: str | None) -> int:
    """Run the main job on a mini cluster of its own, and prove it; exit 1 if a check fails.

    Judged is what must always hold; times and ratios are told.
    """
    from gandiva_slurm.mini.demo_plan import DEMO

    require_folder(picture)
    where, at = chosen_backend(backend, suite), Path(picture) if picture else None
    return _guarded(where, result, lambda spec, err: _run(spec, DEMO, err, keep, at))


@click.command(short_help="Run the main job with limits on times and ratios, too.")
@backend_options
@click.option("--json", "result", metavar="FILE", help="write the report there too (- for standard output)")
@click.option("--strict", is_flag=True, help="exit 2 where the machine was too busy to judge a limit")
def acceptance(backend: str | None, suite: str, result: str | None, strict: bool) -> int:
    """Run the main job at length and judge its times and ratios, too; exit 1 if a check fails.

    Wants a quiet machine: a limit on time that fails on a busy one is not judged.
    """
    from gandiva_slurm.mini.demo_plan import ACCEPTANCE

    where = chosen_backend(backend, suite)
    return _guarded(where, result, lambda spec, err: _run(spec, ACCEPTANCE, err), strict)


def _guarded(
    backend: str, result: str | None, work: Callable[[MiniSpec, bool], dict[str, Any]], strict: bool = False
) -> int:
    """Do the work where it can be ended at any moment, write its report; returns the exit code."""
    from gandiva_slurm.mini import demo, demo_guard, demo_verdict

    require_folder(result)
    to_stdout = result == "-"
    name = os.environ.get("GANDIVA_MINI") or "demo"
    spec = MiniSpec(
        name, parse_nodes(demo.NODES), demo.QUANTUM_S, backend=backend, client_wait_s=demo.CLIENT_WAIT_S
    )

    def whole() -> int:
        report = work(spec, to_stdout)
        text = json.dumps(report, indent=2) + "\n"
        if to_stdout:
            click.echo(text, nl=False)
        elif result:
            Path(result).write_text(text)
        return demo_verdict.exit_code(report, strict)

    return demo_guard.guarded(name, whole, lambda text: click.echo(text, err=True))


def _run(
    spec: MiniSpec, plan: Any, to_stderr: bool, keep: bool = False, picture: Path | None = None
) -> dict[str, Any]:
    from rich.console import Console

    from gandiva_slurm.mini import demo, demo_screen

    screen = demo_screen.screen_for(Console(stderr=to_stderr), plan.phases())
    screen.say(demo.banner())
    report = demo.run(spec, plan, screen, keep, picture)
    for line in demo_screen.next_steps(spec.name, keep):
        screen.say(line)
    return report
