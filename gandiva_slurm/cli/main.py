"""`gandiva`: the command users and operators type. Sub-commands are imported when they are called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from gandiva_slurm import __version__
from gandiva_slurm.model.errors import GandivaError

#: command -> (module, attribute, one line of help); help stands here: `gandiva --help` imports nothing.
COMMANDS = {
    "queue": (
        "gandiva_slurm.cli.queue",
        "queue",
        "Jobs, their share of the GPUs, why they wait (like squeue).",
    ),
    "acct": ("gandiva_slurm.cli.acct", "acct", "What jobs used, GPU time held included (like sacct)."),
    "share": ("gandiva_slurm.cli.share", "share", "Tickets against the GPU time users got (like sshare)."),
    "eff": ("gandiva_slurm.cli.eff", "eff", "What a job made of its GPUs, and what to change (like seff)."),
    "report": (
        "gandiva_slurm.cli.report",
        "report",
        "GPU time of a week or month by account and user (like sreport).",
    ),
    "why": ("gandiva_slurm.cli.why", "why", "Why a job is where it is, and what will change it."),
    "when": (
        "gandiva_slurm.cli.when",
        "when",
        "When a job's next turn, start and end will be.",
    ),
    "update": ("gandiva_slurm.cli.update", "update", "Change a job's priority or class."),
    "nodes": ("gandiva_slurm.cli.nodes", "nodes", "Nodes, their GPUs and who holds what (like sinfo)."),
    "metrics": ("gandiva_slurm.cli.metrics", "metrics", "Serve figures of the cluster to a Prometheus."),
    "web": ("gandiva_slurm.cli.web.main", "serve", "Serve a JSON API and a page to browsers, by a proxy."),
    "forecast": (
        "gandiva_slurm.cli.forecast",
        "forecast",
        "Make the forecast that `when` and `queue` show, each half minute.",
    ),
    "top": ("gandiva_slurm.cli.top", "top", "Watch GPUs, who held them of late, and the queue (like top)."),
    "check": ("gandiva_slurm.cli.check", "check", "Check this installation: configuration, Slurm, daemons."),
    "doctor": ("gandiva_slurm.cli.doctor", "doctor", "What Gandiva could do with a training script."),
    "try": ("gandiva_slurm.cli.trial", "try_", "Park and move a script at random, and compare its losses."),
    "hook": ("gandiva_slurm.cli.hook", "hook", "Find boundaries in a Python that PYTHONPATH does not reach."),
    "sim": ("gandiva_slurm.cli.sim", "sim", "Run scheduling policies on workloads, in virtual time."),
    "replay": ("gandiva_slurm.cli.replay", "replay", "Decide again what gandivactld decided, and compare."),
    "mini": ("gandiva_slurm.mini.commands", "mini", "A private Slurm with fake GPUs, to try and test."),
}
#: Exit codes: interrupted, and ended by a closed pipe (128 + SIGINT, 128 + SIGPIPE).
INTERRUPTED, CLOSED_PIPE = 130, 141
#: A full disk or quota, and a file that may not grow further: no fault of ours.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command when it is asked for."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["--help"]})
@click.option(
    "-f", "--config", metavar="FILE", help="gandiva.yaml ($GANDIVA_CONF, beside $SLURM_CONF, /etc/slurm)."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, "-V", "--version", prog_name="gandiva", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: str | None, debug: bool) -> None:
    """Share GPUs between training jobs on Slurm: what runs, who got what, and why."""
    ctx.obj = config


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 fine, 1 failed, 2 wrong use, 3 unreachable, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with cli.make_context("gandiva", args.copy()) as context:
            status = cli.invoke(context)
        if sys.stdout:  # None where the caller has closed it
            sys.stdout.flush()
    except click.exceptions.Exit as end:
        status = end.exit_code
    except click.exceptions.NoArgsIsHelpError as err:
        click.echo(err.format_message(), err=True)
        status = 2
    except click.ClickException as err:
        status = _complain(_click_sentence(err), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`| head`); keep Python from complaining about it while it shuts down.
        _drop_output()
        status = CLOSED_PIPE
    except GandivaError as err:
        status = _complain(str(err), err.exit_code, _is_debug(args))
    except Exception as err:  # the border: whatever it is, the user gets a sentence
        if isinstance(err, OSError) and err.errno in _FULL:
            _drop_output()
        status = _complain(_fault(err), 1, _is_debug(args))
    sys.exit(status if isinstance(status, int) else 0)


def _click_sentence(err: click.ClickException) -> str:
    context = getattr(err, "ctx", None)
    hint = f"; see `{context.command_path} --help`" if context else ""
    # click writes choices a line each
    return " ".join(err.format_message().split()).rstrip(".") + hint


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(err: Exception) -> str:
    if isinstance(err, OSError) and err.errno in _FULL:
        return f"cannot write what came out: {err.strerror}; next: make room, or write elsewhere"
    return f"{type(err).__name__}: {err} (a fault in gandiva; `gandiva --debug ...` shows where)"


def _complain(sentence: str, status: int, debug: bool = False) -> int:
    if debug:
        traceback.print_exc()
    click.echo(f"gandiva: error: {sentence}", err=True)
    return status


def _is_debug(args: Sequence[str]) -> bool:
    """--debug counts before the sub-command only: what follows may be another program's."""
    for arg in args:
        if arg == "--debug":
            return True
        if arg in COMMANDS:
            return False
    return False
