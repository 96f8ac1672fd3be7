"""`gandiva try -- python train.py`: park and move it at random, without Slurm, and compare its losses."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import click

from gandiva_slurm.cli.lone import LoneNode, why_unmoved
from gandiva_slurm.cli.number import Number
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire.page import KIND_RUN, W_KIND

#: Boundaries between two parks, and how long one lasts.
STRIDE, PARK_S = (1, 8), 0.05
MOVES = 2
#: A job that is being moved must have trained so many boundaries since its start.
MOVE_AFTER = (2, 12)
#: So many losses are compared behind the first park, and behind the last move, however late these come.
BEHIND = 20
#: A script that refuses to be parked is asked so often.
REFUSALS = 5

#: In each line of torchrun's log.
_LAUNCHERS = "torch/distributed/elastic/"

Losses = dict[int, list[str]]


@dataclass
class Trial:
    """A script to be tried: how far, and where its files go."""

    command: Sequence[str]
    path: Path
    steps: int
    deadline_s: float
    chance: random.Random
    parks: int = 0
    refused: list[str] = field(default_factory=list)
    moves: int = 0
    is_attached: bool = False
    #: why it is not
    unmoved: str = ""
    #: The run alone that came far enough for the comparison.
    alone: str = "alone"

    def losses(self, name: str) -> Losses:
        """What each rank has computed in a run, losses as text."""
        files = [path for path in self.path.glob(f"{name}.*") if path.suffix[1:].isdigit()]
        return {int(path.suffix[1:]): path.read_text().split() for path in files}

    def is_enough(self, name: str) -> bool:
        """True when every rank has come as far as asked."""
        losses = self.losses(name)
        return bool(losses) and min(map(len, losses.values())) >= self.steps

    def compare_behind(self, name: str) -> None:
        """Compare some losses from here on: on a busy machine a script trains far before it is parked."""
        here = max(map(len, self.losses(name).values()), default=0)
        self.steps = max(self.steps, here + BEHIND)

    def tail(self, name: str) -> str:
        """The last lines that the script printed, not those that torchrun says of its workers behind them."""
        said = (self.path / f"{name}.log").read_text(errors="replace")
        lines = said.splitlines()
        own = list(takewhile(lambda line: _LAUNCHERS not in line, lines))
        return "\n".join((own or lines)[-5:])


@click.command(
    "try", context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True}
)
@click.option(
    "--steps", type=click.IntRange(1), default=100, show_default=True,
    help="Compare so many losses; then end the script.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of where it is parked and moved.")
@click.option(
    "--deadline", type=Number(1, 86400), default=600.0, show_default=True,
    help="Seconds for each run of the script.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def try_(steps: int, seed: int, deadline: float, command: tuple[str, ...]) -> int:
    """Run COMMAND alone, parked at random, and (if it is attached) moved; compare its losses bit for bit.

    Exit 0: the losses are the same. 1: they are not, or it cannot be parked; the sentence says which rule.
    """
    with tempfile.TemporaryDirectory(prefix="gandiva-try-") as path:
        trial = Trial(command, Path(path), steps, deadline, random.Random(seed))
        run_alone(trial, "alone")
        click.echo(f"alone:   {_count(trial.losses('alone'))}")
        run_parked(trial)
        click.echo(f"parked:  {_count(trial.losses('parked'))}, {trial.parks} parks")
        verdict = compare(trial, "parked")
        if trial.is_attached and not verdict:
            run_moved(trial)
            click.echo(f"moved:   {_count(trial.losses('moved'))}, {trial.moves} moves")
            verdict = compare(trial, "moved")
        if not trial.is_attached:
            click.echo(f"moved:   no: {trial.unmoved}")
        click.echo(verdict or "the losses are identical, bit for bit")
        return int(bool(verdict))


def run_alone(trial: Trial, name: str) -> None:
    """Run the script as it is; GandivaError when it fails or computes no loss."""
    with LoneNode(trial.path, name) as node:
        node.start(trial.command, is_served=False)
        node.wait(lambda: trial.is_enough(name), trial.deadline_s)
        _check_end(trial, node, name)
    if not trial.losses(name):
        raise GandivaError(
            "no loss was seen: the script calls no backward(), or its Python does not heed PYTHONPATH "
            "(python -I, or the script sets it anew); next: see `gandiva doctor`"
        )


def run_parked(trial: Trial) -> None:
    """Run it again, parked every few boundaries."""
    with LoneNode(trial.path, "parked") as node:
        node.start(trial.command)
        node.wait(node.is_training, trial.deadline_s)
        if not node.is_training():
            _check_end(trial, node, "parked")
            raise GandivaError(
                "no boundary was found: no optimizer of torch steps here; next: write "
                "`for batch in gandiva.steps(loader)` or `gandiva.step()` at the end of a mini-batch"
            )
        while node.status is None and not node.is_over() and not _is_parked_enough(trial):
            _train_on(trial, node, STRIDE)
            if node.is_over() or not node.park(False, trial.deadline_s):
                _note_refusal(trial, node)
                continue
            trial.parks += 1
            if trial.parks == 1:
                trial.compare_behind("parked")
            trial.is_attached |= any(view[W_KIND] == KIND_RUN for view in node.views())
            trial.unmoved = why_unmoved(node)
            _pause(node, trial.chance.random() * PARK_S)
            node.resume(trial.deadline_s)
        node.wait(lambda: trial.is_enough("parked"), trial.deadline_s)
        _check_end(trial, node, "parked")


def _is_parked_enough(trial: Trial) -> bool:
    return trial.is_enough("parked") and (trial.parks > 0 or len(trial.refused) >= REFUSALS)


def run_moved(trial: Trial) -> None:
    """Run it again; let it save itself, kill it, and start it anew, a few times."""
    for life in range(MOVES + 1):
        with LoneNode(trial.path, "moved", restart=life) as node:
            node.start(trial.command)
            node.wait(node.is_training, trial.deadline_s)
            _train_on(trial, node, MOVE_AFTER)
            if life < MOVES and _save(trial, node):
                trial.moves += 1
                trial.compare_behind("moved")
                continue
            node.wait(lambda: trial.is_enough("moved"), trial.deadline_s)
            _check_end(trial, node, "moved")
            return


def _save(trial: Trial, node: LoneNode) -> bool:
    """Let it save itself, its ranks asked as often as it takes; False when it ends before."""
    while not node.is_over() and node.status is None:
        if node.park(True, trial.deadline_s):
            return True
        errors = [text for text in map(error_text, node.views()) if text]
        if errors:
            raise GandivaError(f"it could not save itself: {errors[0]}")
    return False


def compare(trial: Trial, name: str) -> str:
    """Return "" when a run computed what the script computes alone; else which rule is broken."""
    got = trial.losses(name)
    _run_alone_as_far(trial, name, got)
    want = trial.losses(trial.alone)
    place = first_difference(want, got, trial.steps)
    if not place:
        if name == "parked" and not trial.parks:
            return f"it could not be parked: {trial.refused[-1] if trial.refused else 'it ended too soon'}"
        return ""
    if name == "moved":  # Alone and parked were the same: it is deterministic.
        return f"moved it computes something else ({place}): {_WHY_MOVED}"
    run_alone(trial, "again")
    if first_difference(want, trial.losses("again"), trial.steps):
        return (
            f"the script is not deterministic: two runs alone differ too ({place}); "
            "next: seed its generators, torch.use_deterministic_algorithms(True)"
        )
    return f"parked it computes something else ({place}): does it train by the clock, or in other threads?"


def _run_alone_as_far(trial: Trial, name: str, got: Losses) -> None:
    """Run it alone once more where it was ended before what is to be compared now."""
    alone = trial.losses(trial.alone)
    if any(len(alone.get(rank, ())) < min(trial.steps, len(values)) for rank, values in got.items()):
        trial.alone = f"alone-{name}"
        run_alone(trial, trial.alone)
        click.echo(f"alone:   {_count(trial.losses(trial.alone))}, for the comparison")


_WHY_MOVED = (
    "something that it trains on is not saved; next: give attach() every model, optimizer, scheduler and "
    "loader, on_save() the rest, and count by run.batch; a Trainer's train() wants last_checkpoint()"
)


def first_difference(want: Losses, got: Losses, steps: int) -> str:
    """Where two runs part, in words; "" where they do not within the first `steps` losses."""
    if want.keys() != got.keys():
        return f"ranks {sorted(want)} and {sorted(got)}"
    for rank in sorted(want):
        ours, theirs = want[rank][:steps], got[rank][:steps]
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"loss {number} of rank {rank}: {float.fromhex(one)!r}, {float.fromhex(other)!r}"
        if len(ours) != len(theirs):
            return f"rank {rank}: {len(ours)} losses, {len(theirs)}"
    return ""


def _train_on(trial: Trial, node: LoneNode, stride: tuple[int, int]) -> None:
    seqs = node.seqs()
    until = (max(seqs) if seqs else 0) + trial.chance.randint(*stride)
    node.wait(lambda: node.is_over() or max(node.seqs(), default=0) >= until, trial.deadline_s)


def _pause(node: LoneNode, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        node.look()


def _note_refusal(trial: Trial, node: LoneNode) -> None:
    if node.gang is not None and node.gang.last_error:
        trial.refused.append(node.gang.last_error)


def _check_end(trial: Trial, node: LoneNode, name: str) -> None:
    if node.status not in (None, 0):
        raise GandivaError(f"the script ended with exit code {node.status} ({name}):\n{trial.tail(name)}")
    if node.status is None and not trial.is_enough(name):
        raise GandivaError(f"the script was not done within --deadline {trial.deadline_s:g} s ({name})")


def _count(losses: Losses) -> str:
    counts = sorted({len(values) for values in losses.values()})
    return f"{counts[-1] if counts else 0} losses on {len(losses)} rank{'s' * (len(losses) != 1)}"
