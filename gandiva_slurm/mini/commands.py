"""`gandiva mini up|down|exec`: the command group; the demonstrations add themselves to it."""

import os
import sys
import time
from dataclasses import replace
from typing import Any

import click

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import entering, own_gpus, shares
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_command import acceptance, backend_options, chosen_backend, demo
from gandiva_slurm.mini.record import require_log_folder
from gandiva_slurm.mini.spec import CGROUPS, DEFAULT_NODES, MiniSpec, default_policy, parse_nodes
from gandiva_slurm.mini.validation.command import validate
from gandiva_slurm.model.errors import UsageError


@click.group()
def mini() -> None:
    """A private Slurm on this machine, with fake GPUs, to try and to test with."""


@mini.command(short_help="Bring a mini cluster up.")
@backend_options
@click.option("--nodes", default=DEFAULT_NODES, show_default=True, help="TYPE:NODESxGPUS[,...]")
@click.option("--real-gpus", is_flag=True, help="one node with this machine's own GPUs instead of fake ones")
@click.option("--quantum", default=1.0, show_default=True, help="length of a time slice, seconds")
@click.option("--daemons/--no-daemons", default=True, help="start gandivactld and gandivad too")
@click.option("--cgroups", type=click.Choice(CGROUPS),
              help="have Slurm put jobs into control groups: of version 1 beside 2, or of 2")
@click.option("--packing/--no-packing", default=False, help="let jobs share a GPU at a time where both gain")
@click.option("--policy", default=default_policy, metavar="NAME",
              help="what decides: gandiva_fair, fifo, tiresias, … (else $GANDIVA_MINI_POLICY)")
@click.option("--share", "asked", multiple=True, metavar="DIR",
              help="show this directory inside too, as the current one is; may be repeated")
@click.option("--keep-logs", default="", metavar="DIR", help="copy the logs there before they are removed")
def up(backend: str | None, suite: str, asked: tuple[str, ...], keep_logs: str, **what: Any) -> None:
    """Bring a mini cluster up (its name: $GANDIVA_MINI, else mini).

    The current directory and each --share are seen inside at the same path, with their own modes.
    """
    began = time.monotonic()
    real = what["real_gpus"]
    if real and what["nodes"] != DEFAULT_NODES:
        raise UsageError("--real-gpus: the one node has this machine's GPUs; next: leave --nodes out")
    nodes = (own_gpus.node(),) if real else parse_nodes(what["nodes"])
    spec = MiniSpec(clusters.current_name(), nodes, what["quantum"], what["daemons"],
                    what["packing"], chosen_backend(backend, suite), real_gpus=real)
    spec = replace(spec, cgroups=what["cgroups"] or spec.cgroups)
    spec = replace(spec, policy=what["policy"], keep_logs=require_log_folder(keep_logs) if keep_logs else "",
                   shares=shares.choose(asked, spec.backend, lambda text: click.echo(text, err=True)))
    made = MiniCluster.up(spec, lambda text: click.echo(text, err=True))
    names = ", ".join(f"{n.name} ({n.gpus} x {n.gpu_type})" if n.gpus else f"{n.name} (plain)"
                      for n in spec.all_nodes)
    click.echo(f"mini cluster {spec.name!r} is up in {time.monotonic() - began:.1f} s: {names}")
    click.echo(f"logs: {made.at.log}")
    click.echo("next: gandiva mini exec --user user1 -- sbatch -p gandiva --gres=gpu:1 ...")


@mini.command()
def down() -> None:
    """Take the mini cluster down; nothing of it stays."""
    name = clusters.current_name()
    click.echo(f"mini cluster {name!r} is down" if clusters.down() else f"no mini cluster {name!r} was up")


@mini.command(
    short_help="Run a command inside, as one of the users.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--user", default="root", show_default=True, help="root, user1, user2 or user3")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec(user: str, command: tuple[str, ...]) -> None:
    """Run COMMAND inside, as USER; stdin, output and exit code pass through.

    It starts in the current directory where that is shared and USER may write there, else in USER's home.
    """
    found = MiniCluster.attach()
    words = found.command(command, user, entering.start_words(found, command, user))
    for sentence in entering.hidden_files(found, command, user):
        click.echo(f"gandiva: {sentence}", err=True)
    sys.stdout.flush()
    os.execvpe(words[0], words, dict(found.environment(user)))


mini.add_command(demo)
mini.add_command(acceptance)
mini.add_command(validate)
