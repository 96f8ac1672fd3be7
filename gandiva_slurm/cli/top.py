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
from gandiva_slurm.cli.jobids import parse_users, require_users
from gandiva_slurm.cli.number import Number
from gandiva_slurm.cli.queue import FIELDS
from gandiva_slurm.cli.table import Row, choose_fields, printable, squeue_lines
from gandiva_slurm.model.errors import GandivaError, PeerError

COLUMNS = "JobID,User,State,GPUs,Node(GPUs),Share,Rate,Parked,When,Reason"
#: Letters of jobs on the time lines; the next job after the last has the first again.
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
IDLE, UNKNOWN = ".", "?"
#: Looks that a time line keeps, and the part of the screen that GPUs may take.
MOST_LOOKS, GPU_PART = 200, 2
#: Its rest, in times of what a look took: a long queue makes it slower, not dearer.
RESTS = 10

Gpu = tuple[str, int]
#: Jobs asked for at most: gandivactld answers with no more.
MOST_ROWS = 500


@dataclass(frozen=True)
class Wish:
    """What is asked for at a look: an order, a text in a name of the job's, users (None: all)."""

    order: str = "state"
    match: str = ""
    users: Sequence[str] | None = None


@dataclass(frozen=True)
class Found:
    """The first jobs, and how many there are of those meant, by state."""

    rows: Sequence[Row] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


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


def heads(history: History, counts: Mapping[str, int], trouble: str, now_s: float) -> list[str]:
    """Return what is said first: the time, GPUs held, jobs by state, and what is wrong."""
    held = sum(who not in ("-", "down", "silent") for who in history.holders.values())
    told = " ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no jobs"
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    head = [f"{clock}  {held} of {len(history.holders)} GPUs held; {told}"]
    return head + ([f"! {trouble}"] if trouble else [])


def frame(history: History, found: Found, trouble: str, size: tuple[int, int], now_s: float) -> list[str]:
    """Return the lines of a screen of (columns, lines): a head, GPUs with their time lines, the queue."""
    width, height = size
    head = heads(history, found.counts, trouble, now_s)
    gpus = list(gpu_lines(history, width, max(2, height // GPU_PART - len(head))))
    room = max(0, height - len(head) - len(gpus) - 2)
    shown, total = found.rows[:room], sum(found.counts.values())
    jobs = list(squeue_lines(choose_fields(COLUMNS, FIELDS), shown, True))
    if total > len(shown):
        jobs[-1:] = [f"... {total - len(shown) + 1} jobs more (gandiva queue)"]
    return [printable(line)[:width] for line in (*head, *gpus, "", *jobs)][:height]


def gpu_lines(history: History, width: int, most: int) -> Iterator[str]:
    """Yield a line for each GPU, `most` at most: its name, which job held it look by look, which does now."""
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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-d", "--delay", type=Number(1, 60), default=2.0, help="Seconds between two looks.")
@click.option("-u", "--user", "users", metavar="NAMES", help="Only these users' jobs.")
@click.option("--me", is_flag=True, help="Only my own jobs.")
@click.option("--once", is_flag=True, help="One look, as lines (so, too, where the output is no terminal).")
@click.pass_obj
def top(config: str | None, delay: float, users: str | None, me: bool, once: bool) -> None:
    """Watch GPUs, who held them of late, and the queue. Ctrl-C or q ends it."""
    names = [getpass.getuser()] if me else parse_users(users)
    history = History()
    found = look(config, history, Wish(users=names), MOST_ROWS)
    if not found.rows:
        require_users(names)
    if once or not sys.stdout.isatty():
        for line in frame(history, found, "", (200, 1_000_000), time.time()):
            click.echo(line.rstrip())
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(config, history, names, delay)


def look(config: str | None, history: History, wish: Wish, most: int) -> Found:
    """Ask for the first jobs by a wish, and add who holds the GPUs to the history."""
    users = None if wish.users is None else list(wish.users)
    args = {"order": wish.order, "match": wish.match, "users": users, "most": max(1, min(most, MOST_ROWS))}
    told = query(config, "top", args)
    try:
        history.take(query(config, "nodes", {}))
    except PeerError:
        raise
    except GandivaError:  # Slurm's PrivateData hides nodes
        history.take([])
    return Found(told["rows"], told["counts"])


def _watch(config: str | None, history: History, users: Sequence[str] | None, delay_s: float) -> None:
    """Show screen after screen: with keys where textual is installed, else plain."""
    try:
        from gandiva_slurm.cli.top_screen import Screenful, TopScreen, own_tellers
    except ImportError:
        watch_plainly(config, history, users, delay_s)
        return

    def screenful(wish: Wish, size: tuple[int, int]) -> Screenful:
        found = look(config, history, wish, size[1])
        gpus = list(gpu_lines(history, size[0], max(2, size[1] // GPU_PART - 2)))
        head = heads(history, found.counts, "", time.time())
        return Screenful(head, gpus, found.rows, sum(found.counts.values()))

    TopScreen(screenful, own_tellers(config), Wish(users=users), delay_s).run()


def watch_plainly(config: str | None, history: History, users: Sequence[str] | None, delay_s: float) -> None:
    """Show screen after screen, without keys."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    found, trouble = Found(), ""
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            size = shutil.get_terminal_size()
            began_s = time.monotonic()
            try:
                found, trouble = look(config, history, Wish(users=users), size.lines), ""
            except PeerError as err:
                trouble = f"what is shown is old: {err}"
            took_s = time.monotonic() - began_s
            lines = frame(history, found, trouble, (size.columns, size.lines), time.time())
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(max(delay_s, RESTS * took_s))
