"""A move by the script's own checkpoint, tried: interrupted as by Slurm, started again, losses compared.

    life 0:  start ── trains ── its signal ─ it saves, and requeues itself or ends ─┐   (signal)
                          └──── SIGTERM, 30 s later SIGKILL ────────────────────────┤   (self)
    life 1:  start again, in the same directory, SLURM_RESTART_COUNT=1 ◄────────────┘

Where the second life goes on is told by its losses: they are those of the run alone from some mini-batch on.
Where they are not, by the mini-batches that its optimizer has counted, as `gandiva acct` tells it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

import click

from gandiva_slurm.cli import scratch
from gandiva_slurm.cli.lone import LoneNode
from gandiva_slurm.cli.runs import Losses, Trial, check_end, run_alone, train_on
from gandiva_slurm.model.snapshot import OwnSignal

#: Between SIGTERM and SIGKILL of a requeue (Slurm's KillWait, unless told otherwise).
KILL_WAIT_S = 30.0
#: Its two lives.
FIRST, SECOND = "interrupted", "restarted"


class Left(NamedTuple):
    """How the first life ended: in words, and why there is no second one ("": there is)."""

    told: str
    stays: str = ""


class Place(NamedTuple):
    """Where a run's losses are found in another's: from its loss `at` on `same` of `of` are the same."""

    at: int
    same: int
    of: int


def run_own(trial: Trial) -> str:
    """Interrupt it, start it again, and compare; return the verdict, "" where it went on as it should."""
    how, began_ns = trial.options.saves_by, time.time_ns()
    with LoneNode(trial.path, FIRST) as node:
        trial.start(node, FIRST)
        node.wait(node.is_training, trial.deadline_s)
        trained = trial.chance.randint((trial.steps + 1) // 2, trial.steps)
        node.wait(lambda: trial.has_computed(FIRST, trained) or node.is_over(), trial.deadline_s)
        train_on(trial, node, (1, 1))
        is_over = node.status is not None or node.is_over()
        if is_over:
            node.wait(lambda: node.status is not None, trial.deadline_s)
        check_end(trial, node, FIRST, trained)
        if is_over:
            return "it ended before it could be interrupted; next: fewer --steps, or a longer training"
        left = interrupt(trial, node)
        _, reached = node.stand()
    click.echo(f"moved:   {how}: {left.told}")
    if left.stays:
        return f"it would not be moved: {left.stays}"
    wrote = scratch.written_since(trial.directory(FIRST), began_ns)
    with LoneNode(trial.path, SECOND, restart=1) as node:
        trial.start(node, FIRST)
        node.wait(lambda: trial.is_enough(SECOND), trial.deadline_s)
        check_end(trial, node, SECOND)
        begun, _ = node.stand()
    return _judge(trial, wrote, begun, reached)


def interrupt(trial: Trial, node: LoneNode) -> Left:
    """Have it leave as a real move would."""
    own = trial.options.own_signal
    if own is None:
        _end(node)
        return Left(f"ended after {_done(trial)} mini-batches, as by a requeue")
    to = "its batch shell" if own.to_batch else "its steps" if trial.script.is_batch else "its processes"
    begin, sent = time.monotonic(), f"SIG{own.name} to {to} after {_done(trial)} mini-batches"
    if not _send(trial, node, own):
        return Left(
            f"{sent}: there is none",
            f"it starts no step by srun, so nobody hears SIG{own.name}; next: "
            f"#SBATCH --signal=B:{own.name}@{own.grace_s} for the batch shell, or srun before the training",
        )
    node.wait(lambda: bool(node.called("requeue")) or node.has_ended(), own.grace_s)
    left = _left(trial, node, own)
    if node.called("requeue"):
        _end(node)
    return left._replace(told=f"{sent}; {left.told} within {time.monotonic() - begin:.1f} s")


_TRAP = "; a shell runs its trap when what it waits for has ended, so: `python train.py & wait`"


def _send(trial: Trial, node: LoneNode, own: OwnSignal) -> bool:
    number = signal.Signals[f"SIG{own.name}"]
    if own.to_batch:
        return node.send(number, [node.pid], to_all=False)
    return node.send(number, node.tasks() if trial.script.is_batch else [node.pid])


def _left(trial: Trial, node: LoneNode, own: OwnSignal) -> Left:
    """Say what became of a script upon its signal."""
    number, status = signal.Signals[f"SIG{own.name}"], node.status
    if node.called("requeue"):
        return Left("it called scontrol requeue")
    if status is None:
        return Left(
            "it did not end",
            f"it neither ended nor called scontrol requeue within its {own.grace_s} s; next: save and end "
            f"sooner, or more time, as in signal:{own.name}@{2 * own.grace_s}{_TRAP if own.to_batch else ''}",
        )
    if status == 0:
        resubmits = " (it called sbatch: that is another job)" if node.called("sbatch") else ""
        return Left(
            "it ended with exit code 0",
            f"to Slurm a job that ends 0 has ended, and is not run again{resubmits}; next: scontrol requeue "
            "$SLURM_JOB_ID once it has saved itself, or end with another exit code",
        )
    if status in (-number, 128 + number):
        return Left("it has no handler and ended by it")
    return Left(f"it ended with exit code {status}")


def _end(node: LoneNode) -> None:
    """End it as Slurm ends what it requeues: SIGTERM, and later SIGKILL."""
    node.ask_to_end()
    until = time.monotonic() + KILL_WAIT_S
    while not node.has_ended() and time.monotonic() < until:
        node.look()
    node.end()


def _done(trial: Trial) -> int:
    return max(map(len, trial.losses(FIRST).values()))


def _judge(trial: Trial, wrote: Sequence[str], begun: int, reached: int) -> str:
    """Say where it went on, and return what is wrong with that; -1: its optimizer has not counted so far."""
    again = trial.losses(SECOND)
    if not again:
        return "started again it computed no loss; next: see that it goes on from its own file"
    # As far as the second life can have come, wherever it went on.
    done = _done(trial)
    most = done + min(trial.steps, max(map(len, again.values())))
    if not trial.has_computed(trial.alone, most) and not trial.has_ended_alone:
        trial.alone = "alone-restarted"
        run_alone(trial, trial.alone, most)
    place = find_place(trial.losses(trial.alone), again, trial.steps)
    if isinstance(place, str):
        click.echo(f"         {_by_count(begun, reached)}")
        return place
    lost = done - place.at
    if place.at == 0:
        saw = ", ".join(wrote[:3]) or "no file"
        return (
            f"started again it began anew, all {done} mini-batches are lost: in its directory it had written "
            f"{saw}; next: let it save before, and look for its newest file when it starts, or more --steps"
        )
    again_told = f"did {lost} again" if lost > 0 else "did none again"
    click.echo(f"         started again it went on behind mini-batch {place.at} and {again_told}")
    return "" if place.same == place.of else _PARTS_LATER.format(place.at + place.same)


def _by_count(begun: int, reached: int) -> str:
    """Say where it went on by what its optimizer has counted, for its losses do not tell."""
    if min(begun, reached) < 0:
        return "started again, where it went on cannot be told: its optimizer counts no steps"
    if not begun:
        return f"started again its optimizer began anew: all {reached} mini-batches are lost"
    again = f"did {reached - begun} again" if reached > begun else "did none again"
    return f"started again its optimizer went on behind mini-batch {begun} and {again}"


_PARTS_LATER = (
    "from mini-batch {} on it computes something else than alone: its own checkpoint leaves something out; "
    "next: save optimizer, scheduler, random generators and the place in the pass over the data with it"
)
_NOWHERE = (
    "started again it computes losses that the run alone has nowhere: "
    "it is not the same to the last bit; next: save optimizer, scheduler, random generators and the place in "
    "the pass over the data with its own checkpoint, or gandiva.attach()"
)


def find_place(want: Losses, got: Losses, steps: int) -> Place | str:
    """Say where in `want` the run `got` begins, on all ranks; in words where that cannot be told."""
    if want.keys() != got.keys():
        return f"it has ranks {sorted(got)}, and {sorted(want)} alone"
    found: list[Place] = []
    for rank, losses in sorted(got.items()):
        places = _places(want[rank], losses[:steps])
        if not places:
            return _NOWHERE
        if len(places) > 1:
            return "its losses repeat, so they do not tell where it went on; next: data that differ"
        found += places
    if len({place.at for place in found}) > 1:
        return f"its ranks went on from different mini-batches: {', '.join(str(place.at) for place in found)}"
    return min(found, key=lambda place: place.same - place.of)


def _places(want: Sequence[str], got: Sequence[str]) -> list[Place]:
    """Return where most of `got` is found; several where it cannot be told."""
    places = [_place(want, got, at) for at in range(len(want)) if got and want[at] == got[0]]
    most = max((place.same for place in places), default=0)
    return [place for place in places if place.same == most]


def _place(want: Sequence[str], got: Sequence[str], at: int) -> Place:
    pairs = list(zip(want[at:], got, strict=False))
    same = next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return Place(at, same, len(pairs))
