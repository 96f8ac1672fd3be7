"""`gandiva top`: the GPUs and who held them of late, and the queue, looked at again and again."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from gandiva_slurm.cli.client import query
from gandiva_slurm.cli.jobids import by_job_id, parse_users, require_users
from gandiva_slurm.cli.number import Number
from gandiva_slurm.cli.queue import FIELDS
from gandiva_slurm.cli.table import Row, choose_fields, printable, squeue_lines
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import GandivaError, PeerError

COLUMNS = "JobID,User,State,GPUs,Node(GPUs),Share,Rate,Parked,Reason"
#: Jobs that hold GPUs are shown first, then those that live beside them, then those that wait.
_ORDER = (states.RUNNING, states.RESUMING, states.SUSPENDING, states.CHECKPOINTING, states.SUSPENDED)
#: Letters of jobs on the time lines; the next job after the last has the first again.
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
IDLE, UNKNOWN = ".", "?"
#: Looks that a time line keeps, and the part of the screen that GPUs may take.
MOST_LOOKS, GPU_PART = 200, 2
#: Its rest, in times of what a look took: a long queue makes it slower, not dearer.
RESTS = 10

Gpu = tuple[str, int]


@dataclass
class History:
    """What was seen: the letters of those who held each GPU, a look after the other."""

    lines: dict[Gpu, deque[str]] = field(default_factory=dict)
    letters: dict[int, str] = field(default_factory=dict)
    holders: dict[Gpu, str] = field(default_factory=dict)

    def take(self, nodes: Sequence[Row]) -> None:
        """Add a look."""
        self.holders = {}
        for node in nodes:
            for one in node["holders"]:
                gpu = node["node"], one["gpu"]
                self.lines.setdefault(gpu, deque(maxlen=MOST_LOOKS)).append(self._letter(node, one))
                self.holders[gpu] = self._who(node, one)
        for gone in self.lines.keys() - self.holders.keys():
            del self.lines[gone]
        shown = {letter for line in self.lines.values() for letter in line}
        self.letters = {job: letter for job, letter in self.letters.items() if letter in shown}

    def _letter(self, node: Row, one: Mapping[str, Any]) -> str:
        if node["state"] not in ("up", "drain"):
            return UNKNOWN
        job_id = one.get("job_id")
        if not job_id:
            return "#" if one.get("state") else IDLE  # held by one that is not to be seen
        if job_id not in self.letters:
            taken = Counter(self.letters.values())
            self.letters[job_id] = min(LETTERS, key=lambda letter: (taken[letter], LETTERS.index(letter)))
        return self.letters[job_id]

    def _who(self, node: Row, one: Mapping[str, Any]) -> str:
        if node["state"] not in ("up", "drain"):
            return str(node["state"])
        if not one.get("job_id"):
            return "held" if one.get("state") else "-"
        mate = f"+{one['packed_with']}" if one.get("packed_with") else ""
        return f"{self.letters.get(one['job_id'], '')} {one['job_id']}({one['user']}){mate}"


def frame(
    history: History, rows: Sequence[Row], trouble: str, size: tuple[int, int], now_s: float
) -> list[str]:
    """Return the lines of a screen of (columns, lines): a head, GPUs with their time lines, the queue."""
    width, height = size
    held = sum(who not in ("-", "down", "silent") for who in history.holders.values())
    counts = Counter(row["state"] for row in rows)
    told = " ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no jobs"
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    head = [f"{clock}  {held} of {len(history.holders)} GPUs held; {told}"]
    head += [f"! {trouble}"] if trouble else []
    gpus = list(_gpu_lines(history, width, max(2, height // GPU_PART - len(head))))
    room = max(0, height - len(head) - len(gpus) - 2)
    jobs = list(squeue_lines(choose_fields(COLUMNS, FIELDS), rows[:room], True))
    if len(rows) > room:
        jobs[-1:] = [f"... {len(rows) - room + 1} jobs more (gandiva queue)"]
    return [printable(line)[:width] for line in (*head, *gpus, "", *jobs)][:height]


def _gpu_lines(history: History, width: int, most: int) -> Iterator[str]:
    gpus = sorted(history.lines)
    shown = gpus if len(gpus) <= most else gpus[: most - 1]
    names = {gpu: f"{gpu[0]}:{gpu[1]}" for gpu in shown}
    left = max(map(len, names.values()), default=0)
    room = max(8, width // 2 - left)
    for gpu in shown:
        line = "".join(history.lines[gpu])[-room:]
        yield f"{names[gpu].ljust(left)} {line.rjust(room)} {history.holders[gpu]}"
    if len(gpus) > len(shown):
        yield f"... {len(gpus) - len(shown)} GPUs more (gandiva nodes)"


def in_order(rows: Sequence[Row], users: Sequence[str] | None) -> list[Row]:
    """Return the jobs that have not ended, of these users, those that hold GPUs first."""
    alive = [row for row in rows if row["state"] != states.ENDED and (users is None or row["user"] in users)]
    rank = {state: number for number, state in enumerate(_ORDER)}
    return sorted(alive, key=lambda row: (rank.get(row["state"], len(rank)), by_job_id(row)))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-d", "--delay", type=Number(1, 60), default=2.0, help="Seconds between two looks.")
@click.option("-u", "--user", "users", metavar="NAMES", help="Only these users' jobs.")
@click.option("--me", is_flag=True, help="Only my own jobs.")
@click.option("--once", is_flag=True, help="One look, as lines (so, too, where the output is no terminal).")
@click.pass_obj
def top(config: str | None, delay: float, users: str | None, me: bool, once: bool) -> None:
    """Watch GPUs, who held them of late, and the queue. Ctrl-C ends it."""
    names = [getpass.getuser()] if me else parse_users(users)
    history = History()
    rows = _look(config, history, names)
    if not rows:
        require_users(names)
    if once or not sys.stdout.isatty():
        for line in frame(history, rows, "", (200, 1_000_000), time.time()):
            click.echo(line.rstrip())
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(config, history, rows, names, delay)


def _look(config: str | None, history: History, users: Sequence[str] | None) -> list[Row]:
    rows = in_order(query(config, "queue", {}), users)
    try:
        history.take(query(config, "nodes", {}))
    except PeerError:
        raise
    except GandivaError:  # Slurm's PrivateData hides nodes
        history.take([])
    return rows


def _watch(
    config: str | None, history: History, rows: list[Row], users: Sequence[str] | None, delay_s: float
) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    trouble = ""
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            size = shutil.get_terminal_size()
            lines = frame(history, rows, trouble, (size.columns, size.lines), time.time())
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            began_s = time.monotonic()
            try:
                rows, trouble = _look(config, history, users), ""
            except PeerError as err:
                trouble = f"what is shown is old: {err}"
            time.sleep(max(delay_s, RESTS * (time.monotonic() - began_s)))
