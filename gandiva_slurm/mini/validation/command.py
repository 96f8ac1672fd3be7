"""The command `gandiva mini validate`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from gandiva_slurm.mini.demo_command import backend_options, chosen_backend
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.output import require_folder


@click.command(short_help="Compare a mini cluster with its simulation.")
@backend_options
@click.option("--json", "result", metavar="FILE", help="write the report there too (- for standard output)")
@click.option("--plot", metavar="FILE", help="draw both there: FILE.png or FILE.svg")
@click.option("--strict", is_flag=True, help="exit 2 where the machine was too busy to judge a limit")
def validate(backend: str | None, suite: str, result: str | None, plot: str | None, strict: bool) -> int:
    """Run trainings of three users on a mini cluster and in the simulator; exit 1 if the two differ.

    The simulator has the costs measured in this run. Wants a quiet machine: what another load changes is not
    judged on a busy one.
    """
    from rich.console import Console

    from gandiva_slurm.mini import demo_guard, demo_verdict
    from gandiva_slurm.mini.demo_screen import Left, Screen
    from gandiva_slurm.mini.validation import plan, play
    from gandiva_slurm.sim.draw import require_drawing

    require_folder(result)
    require_folder(plot)
    if plot:
        require_drawing(Path(plot))
    name = os.environ.get("GANDIVA_MINI") or "validate"
    spec = MiniSpec(
        name, parse_nodes(plan.NODES), plan.QUANTUM_S, backend=chosen_backend(backend, suite),
        client_wait_s=plan.CLIENT_WAIT_S, policy=plan.POLICY,
    )  # fmt: skip

    def whole() -> int:
        screen = Screen(Console(stderr=result == "-"), Left({}))
        report = play.run(spec, plan.LONG, screen, Path(plot) if plot else None)
        text = json.dumps(report, indent=2) + "\n"
        if result == "-":
            click.echo(text, nl=False)
        elif result:
            Path(result).write_text(text)
        return demo_verdict.exit_code(report, strict)

    return demo_guard.guarded(name, whole, lambda text: click.echo(text, err=True))
