"""The screen of `gandiva top` by textual: the same looks, with keys to sort, filter, ask why and cancel."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from gandiva_slurm.cli.client import query
from gandiva_slurm.cli.queue import FIELDS
from gandiva_slurm.cli.share import FIELDS as OF_SHARES
from gandiva_slurm.cli.table import Row, choose_fields, printable, sacct_lines
from gandiva_slurm.cli.top import COLUMNS, Wish
from gandiva_slurm.cli.why import explain
from gandiva_slurm.model.errors import GandivaError, UsageError

ORDERS = ("state", "user", "gpus", "newest")
#: How long a command of Slurm's may take, in seconds, and what is read of a job's output, in bytes.
SLURM_S, TAIL_BYTES = 10.0, 1 << 14
#: Lines of the pane below the queue, and what it has of shares.
PANE_LINES = 7
SHARES = "Account%16,User,Tickets,GpuTime,EffectvShare,ServedFair"


@dataclass(frozen=True)
class Screenful:
    """What came of a look: the lines above the queue, its rows, and how many jobs are meant."""

    head: Sequence[str]
    gpus: Sequence[str]
    rows: Sequence[Row] = ()
    total: int = 0


#: Look now: by a wish, for a screen of (columns, lines); GandivaError says why it could not.
Looker = Callable[[Wish, tuple[int, int]], Screenful]
#: What to write into the pane below for a job: by its row.
Teller = Callable[[Row], Sequence[str]]


class Question(ModalScreen[bool]):
    """Asks before a job is cancelled: y does it, any other key does not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Show the question alone."""
        yield Static(Text(f"{self.text}\n\ny: yes    any other key: no"), id="question")

    def on_key(self, event: Any) -> None:
        """Take the answer."""
        event.stop()
        self.dismiss(event.key == "y")


class TopScreen(App[None]):
    """GPUs and their time lines, the queue, and a pane below for one job or all shares."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head, #gpus, #pane { height: auto; }
    #pane { max-height: 8; border-top: solid $accent; }
    #jobs { height: 1fr; }
    #match { height: 1; border: none; display: none; }
    Question { align: center middle; }
    #question { width: auto; height: auto; padding: 1 3; border: heavy $warning; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "match", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("m", "mine", "mine"),
        Binding("w", "tell('why')", "why"),
        Binding("o", "tell('output')", "output"),
        Binding("t", "tell('shares')", "shares"),
        Binding("c", "cancel", "cancel"),
        Binding("q", "quit", "quit"),
        Binding("escape", "close", "close", show=False),
    ]

    def __init__(self, look: Looker, tell: Mapping[str, Teller], wish: Wish, delay_s: float) -> None:
        super().__init__()
        self.look, self.tell, self.wish, self.delay_s = look, tell, wish, delay_s
        self.fields = choose_fields(COLUMNS, FIELDS)
        self.rows: list[Row] = []
        self.notice, self.telling = "", ""
        #: whose jobs are shown where not only the caller's are
        self.users = wish.users

    def compose(self) -> ComposeResult:
        """From the top: figures, GPUs, the queue, the filter while it is written, a pane, the keys."""
        yield Static(id="head")
        yield Static(id="gpus")
        yield DataTable(id="jobs", cursor_type="row", zebra_stripes=True)
        yield Input(id="match", placeholder="a job, user, account, partition, state, reason", compact=True)
        with Vertical(id="pane"):
            yield Static(id="told")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        table = self.query_one("#jobs", DataTable)
        for one in self.fields:
            table.add_column(one.name, key=one.name)
        table.focus()
        self.query_one("#pane").display = False
        self.again()

    def again(self) -> None:
        """Look now; what is still under way is not waited for."""
        size = self.size.width, self.size.height
        self.run_worker(partial(self._look, self.wish, size), thread=True, exclusive=True, group="look")

    def _look(self, wish: Wish, size: tuple[int, int]) -> None:
        began_s = time.monotonic()
        try:
            found: Screenful | str = self.look(wish, size)
        except GandivaError as err:
            found = str(err)
        took_s = time.monotonic() - began_s
        self.call_from_thread(self._show, wish, found, took_s)

    def _show(self, wish: Wish, found: Screenful | str, took_s: float) -> None:
        # A long queue makes it slower, not dearer.
        self.set_timer(max(self.delay_s, 10 * took_s), self.again, name="again")
        if wish is not self.wish:
            return
        if isinstance(found, str):
            self._head([f"! what is shown is old: {found}"])
            return
        more = found.total - len(found.rows)
        notes = [self.notice, f"by {wish.order}"] + ([f"with {wish.match!r}"] if wish.match else [])
        notes += [f"{more} jobs more (gandiva queue)"] if more > 0 else []
        self._head([*found.head, "; ".join(filter(None, notes))])
        self.query_one("#gpus", Static).update(_text(found.gpus))
        self._fill(found.rows)
        if self.telling in ("output", "shares"):
            self.action_tell(self.telling)

    def _head(self, lines: Sequence[str]) -> None:
        self.query_one("#head", Static).update(_text(lines))

    def _fill(self, rows: Sequence[Row]) -> None:
        """Put the rows into the table; the cursor stays on its job."""
        table = self.query_one("#jobs", DataTable)
        chosen = self.chosen()
        self.rows = list(rows)
        table.clear()
        for row in rows:
            table.add_row(*(Text(printable(one.show(row))) for one in self.fields))
        places = [place for place, row in enumerate(rows) if chosen and row["job_id"] == chosen["job_id"]]
        table.move_cursor(row=places[0] if places else min(table.cursor_row, max(0, len(rows) - 1)))

    def chosen(self) -> Row | None:
        """Return the row under the cursor; None: there is none."""
        place = self.query_one("#jobs", DataTable).cursor_row
        return self.rows[place] if 0 <= place < len(self.rows) else None

    def ask_anew(self, wish: Wish) -> None:
        """Look by another wish at once."""
        self.wish = wish
        self.again()

    def action_sort(self) -> None:
        """Take the next order."""
        following = ORDERS[(ORDERS.index(self.wish.order) + 1) % len(ORDERS)]
        self.ask_anew(replace(self.wish, order=following))

    def action_mine(self) -> None:
        """Show the caller's own jobs alone, or those of before again."""
        mine = [getpass.getuser()]
        self.ask_anew(replace(self.wish, users=self.users if self.wish.users == mine else mine))

    def action_match(self) -> None:
        """Write a filter."""
        entry = self.query_one("#match", Input)
        entry.display = True
        entry.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter by what was written."""
        event.input.display = False
        self.query_one("#jobs", DataTable).focus()
        self.ask_anew(replace(self.wish, match=event.value.strip()))

    def action_close(self) -> None:
        """Close the filter, or else the pane."""
        entry = self.query_one("#match", Input)
        if entry.display:
            entry.display = False
            self.query_one("#jobs", DataTable).focus()
            return
        self.telling = ""
        self.query_one("#pane").display = False

    def action_tell(self, what: str) -> None:
        """Fill the pane below: why, the job's own output, or all users' shares."""
        row = self.chosen()
        if row is None:
            return
        self.telling = what
        self.run_worker(partial(self._tell, what, row), thread=True, exclusive=True, group="tell")

    def _tell(self, what: str, row: Row) -> None:
        try:
            lines = list(self.tell[what](row))
        except GandivaError as err:
            lines = [str(err)]
        self.call_from_thread(self._told, what, lines)

    def _told(self, what: str, lines: Sequence[str]) -> None:
        if what != self.telling:
            return
        self.query_one("#told", Static).update(_text(lines[:PANE_LINES]))
        self.query_one("#pane").display = True

    def action_cancel(self) -> None:
        """Cancel the chosen job, once asked."""
        row = self.chosen()
        if row is None:
            return
        text = printable(f"Cancel job {row['job_id']} ({row['name']}) of {row['user']}?")

        def answered(is_meant: bool | None) -> None:
            if is_meant:
                self.run_worker(partial(self._cancel, row["job_id"]), thread=True, group="cancel")

        self.push_screen(Question(text), answered)

    def _cancel(self, job_id: int) -> None:
        try:
            slurm("scancel", str(job_id))
            self.notice = f"job {job_id} is cancelled"
        except GandivaError as err:
            self.notice = printable(str(err))
        self.call_from_thread(self.again)


def own_tellers(config: str | None) -> dict[str, Teller]:
    """Return what fills the pane: a job's why, users' shares with those most behind first, a job's output."""

    def why(row: Row) -> list[str]:
        return list(explain(query(config, "why", {"job_id": row["job_id"]}), str(row["job_id"]), False))

    def shares(row: Row) -> list[str]:
        rows = query(config, "share", {})["users"]
        behind = sorted(rows, key=lambda row: (row["served_fair"] is None, row["served_fair"]))
        return list(sacct_lines(choose_fields(SHARES, OF_SHARES), behind, True))

    return {"why": why, "output": tail_of, "shares": shares}


def slurm(*words: str) -> str:
    """Run a command of Slurm's as the caller, and return what it says; GandivaError: it did not work."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=SLURM_S
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise GandivaError(f"{words[0]}: {err}") from err
    if done.returncode:
        raise GandivaError(f"{words[0]}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout


def tail_of(row: Row) -> list[str]:
    """Return the last lines of a job's output, read as the caller; UsageError: it cannot be read here."""
    told = slurm("scontrol", "show", "job", str(row["job_id"]))
    path = next((line.strip()[7:] for line in told.splitlines() if line.strip().startswith("StdOut=")), "")
    if not path:
        raise UsageError(f"Slurm names no output of job {row['job_id']}")
    try:
        # Another user's job may name a pipe, which would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = (file.read(TAIL_BYTES) or b"").decode(errors="replace")
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    # A progress bar goes back to its line's beginning: what is seen of it is the last.
    lines = [line.rpartition("\r")[2] or line for line in text.replace("\r\n", "\n").split("\n") if line]
    return [f"{path}:", *lines[1 - PANE_LINES :]]


def _text(lines: Sequence[str]) -> Text:
    """Return lines as they are: no markup, no control characters."""
    return Text("\n".join(printable(line) for line in lines), no_wrap=True, overflow="ellipsis")
