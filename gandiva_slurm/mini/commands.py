"""`gandiva mini up|down|exec`: the command group; the demo adds itself to it."""

import os
import sys
import time

import click

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_command import backend_options, chosen_backend, demo
from gandiva_slurm.mini.spec import DEFAULT_NODES, MiniSpec, parse_nodes


@click.group()
def mini() -> None:
    """A private Slurm on this machine, with fake GPUs, to try and to test with."""


@mini.command(short_help="Bring a mini cluster up.")
@backend_options
@click.option("--nodes", default=DEFAULT_NODES, show_default=True, help="TYPE:NODESxGPUS[,...]")
@click.option("--quantum", default=1.0, show_default=True, help="length of a time slice, seconds")
@click.option("--daemons/--no-daemons", default=True, help="start gandivactld and gandivad too")
@click.option("--packing/--no-packing", default=False, help="let jobs share a GPU at a time where both gain")
def up(backend: str | None, suite: str, nodes: str, quantum: float, daemons: bool, packing: bool) -> None:
    """Bring a mini cluster up (its name: $GANDIVA_MINI, else mini)."""
    began = time.monotonic()
    where = chosen_backend(backend, suite)
    spec = MiniSpec(clusters.current_name(), parse_nodes(nodes), quantum, daemons, packing, where)
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
    """Run COMMAND inside, as USER; stdin, output and exit code pass through."""
    found = MiniCluster.attach()
    sys.stdout.flush()
    words = found.command(command, user)
    os.execvpe(words[0], words, dict(found.environment(user)))


mini.add_command(demo)
