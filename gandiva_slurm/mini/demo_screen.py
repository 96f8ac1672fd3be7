"""What a demonstration shows while it runs: one live screen, or plain lines where there is no terminal."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gandiva_slurm.mini.demo_guard import program
from gandiva_slurm.mini.demo_live import Picture

WIDTH = 100
BAR = 44
LINE_EVERY_S = 5.0
COLOURS = {"user1": "cyan", "user2": "green", "user3": "magenta"}
TITLE = "three users with equal tickets share four fake GPUs of a private Slurm"


class Left:
    """How long it will take still: what the phases take on a quiet machine, times how slow this one was."""

    def __init__(self, phases: Mapping[str, float]) -> None:
        self._phases = dict(phases)
        self._before_s = self._took_s = 0.0
        self._now, self._since_s = "", time.monotonic()

    def begin(self, phase: str, length_s: float | None = None) -> None:
        """The phase before has ended; this one takes `length_s`, where that is known better by now."""
        if self._now in self._phases:
            self._took_s += time.monotonic() - self._since_s
            self._before_s += self._phases.pop(self._now)
        if length_s is not None:
            self._phases[phase] = length_s
        self._now, self._since_s = phase, time.monotonic()

    def slowness(self) -> float:
        """How many times longer than on a quiet machine it took so far; at least 1."""
        return max(1.0, self._took_s / self._before_s) if self._before_s else 1.0

    def seconds(self) -> float:
        """An estimate, seconds."""
        now_s = self._phases.get(self._now, 0.0) * self.slowness() - (time.monotonic() - self._since_s)
        rest_s = sum(length for phase, length in self._phases.items() if phase != self._now)
        return max(now_s, 0.0) + rest_s * self.slowness()


class Screen:
    """Plain lines: what is said, and every few seconds how things stand."""

    def __init__(self, console: Console, left: Left) -> None:
        self.console, self.left = console, left
        self.phase = ""
        self.picture: Picture | None = None
        self._due_s = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is to be put back."""

    def say(self, text: str) -> None:
        """Say something that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, phase: str, length_s: float | None = None) -> None:
        """A phase begins; its length in seconds, where that is known."""
        self.left.begin(phase, length_s)
        self.phase = phase
        self.say(f"== {phase}")

    def show(self, picture: Picture) -> None:
        """Show how things stand."""
        self.picture = picture
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LINE_EVERY_S
            self.say(line_of(picture, self.left.seconds()))


class LiveScreen(Screen):
    """One screen that changes in place; what is said stays above it."""

    def __enter__(self) -> Screen:
        self._live = Live(
            get_renderable=self.renderable, console=self.console, refresh_per_second=4, transient=True
        )  # fmt: skip
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, phase: str, length_s: float | None = None) -> None:
        """A phase begins; the screen's last line tells it."""
        self.left.begin(phase, length_s)
        self.phase = phase

    def show(self, picture: Picture) -> None:
        """Show how things stand, from the next refresh on."""
        self.picture = picture

    def renderable(self) -> RenderableType:
        """What the screen shows now."""
        return panel_of(self.picture, self.phase, self.left.seconds())


def screen_for(console: Console, phases: Mapping[str, float]) -> Screen:
    """The live screen on a terminal, plain lines elsewhere."""
    kind = LiveScreen if console.is_terminal and not console.is_dumb_terminal else Screen
    return kind(console, Left(phases))


def line_of(picture: Picture, left_s: float) -> str:
    """The picture in one line."""
    gpus = " ".join(f"{gpu}:{picture.holders.get(gpu, '-')}" for gpu in range(4))
    shares = ", ".join(f"{user} {100 * share:.0f} %" for user, (share, _) in picture.shares.items())
    return f"  GPUs {gpus} | GPU time {shares} | about {left_s:.0f} s left"


def panel_of(picture: Picture | None, phase: str, left_s: float) -> RenderableType:
    """The picture as a panel of `WIDTH` columns."""
    parts: list[RenderableType] = []
    if picture is not None:
        parts = [_gpus(picture), Text(), _jobs(picture), Text(), *_shares(picture.shares), Text()]
    parts.append(Text.assemble((f"now: {phase}", "bold"), f"; about {left_s:.0f} s left"))
    return Panel(Group(*parts), title=TITLE, width=WIDTH, padding=(1, 2))


def _gpus(picture: Picture) -> Table:
    """Which job holds which GPU now."""
    user_of = {row.name: row.user for row in picture.jobs}
    table = Table.grid(padding=(0, 1), expand=True)
    cells = []
    for gpu in range(4):
        name = picture.holders.get(gpu, "")
        colour = COLOURS.get(user_of.get(name, ""), "default")
        cells.append(Panel(Text(name or "free", colour if name else "dim"), title=f"GPU {gpu}",
                           border_style=colour))  # fmt: skip
        table.add_column(ratio=1)
    table.add_row(*cells)
    return table


def _jobs(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("JOB", "USER", "GPUS", "STATE", "STEPS", "PARKS"):
        table.add_column(heading, justify="right" if heading in ("GPUS", "STEPS", "PARKS") else "left")
    for row in picture.jobs:
        state = Text(row.state.ljust(13), "bold" if row.state == "trains" else "dim")
        name = Text(row.name, COLOURS.get(row.user, "default"))
        table.add_row(name, row.user, str(row.gpus), state, str(row.steps), str(row.parks))
    return table


def _shares(shares: Mapping[str, tuple[float, float]]) -> Iterator[Text]:
    """A bar a user; the tick is what is due."""
    for user, (share, due) in shares.items():
        full, tick = round(share * BAR), min(round(due * BAR), BAR - 1)
        marks = ["█" if at < full else "·" for at in range(BAR)]
        marks[tick] = "┃" if tick >= full else "▓"
        yield Text.assemble(
            f"{user} ", ("".join(marks), COLOURS.get(user, "default")),
            f" {100 * share:5.1f} % of the GPU time, {100 * due:.1f} % due",
        )  # fmt: skip


def save_picture(path: Path, picture: Picture, phase: str, left_s: float) -> None:
    """Write the screen as an SVG picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(panel_of(picture, phase, left_s))
    # Without rich's fonts, which a viewer would fetch from another site.
    svg = console.export_svg(title="make demo")
    path.write_text(re.sub(r"@font-face {.*?}\s*", "", svg, flags=re.DOTALL))


def next_steps(name: str, is_up: bool) -> list[str]:
    """What to try next on the cluster, or how to keep it."""
    if not is_up:
        return ["what to try next: make demo KEEP=1 leaves this cluster up for jobs of your own"]
    start = f"GANDIVA_MINI={name} {program()} mini"
    return [
        "the cluster is up; what to try next:",
        f"  {start} exec --user user1 -- sbatch -p gandiva --gandiva --gres=gpu:v100:1 < YOUR-SCRIPT.sh",
        f"  {start} exec --user user1 -- gandiva queue",
        f"  {start} exec --user user1 -- gandiva why JOBID",
        f"and at the end: {start} down",
    ]
