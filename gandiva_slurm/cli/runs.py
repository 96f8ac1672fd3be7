"""The runs of a script that is tried: where each starts, what it computes, how it ends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from gandiva_slurm.cli import scratch, stand_in
from gandiva_slurm.cli.lone import LoneNode
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.client.trial import BEGIN, SAVED
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.snapshot import JobOptions

#: So many losses are compared behind the first park, and behind the last move, however late these come.
BEHIND = 20
#: In each line of torchrun's log.
_LAUNCHERS = "torch/distributed/elastic/"

Losses = dict[int, list[str]]


@dataclass
class Trial:
    """A script to be tried: how far, and where its files go."""

    script: Script
    path: Path
    steps: int
    deadline_s: float
    chance: random.Random
    #: how it saves itself, where its ranks do not
    options: JobOptions = field(default_factory=JobOptions)
    parks: int = 0
    refused: list[str] = field(default_factory=list)
    moves: int = 0
    #: how its ranks save it, "" where they do not
    by: str = ""
    #: why it is not
    unmoved: str = ""
    is_a_try: bool = False
    #: whether an image of its processes could be made, "" while it was not looked
    image: str = ""
    #: The run alone that came far enough for the comparison.
    alone: str = "alone"
    #: It ended by itself: there is no more to compare with.
    has_ended_alone: bool = False

    def start(self, node: LoneNode, name: str, is_served: bool = True) -> None:
        """Start the script for the run `name`: one with checkpoints of its own in a copy of its directory."""
        env = slurm_env(self.script) if self.script.is_batch or self.options.saves_by else {}
        if not self.options.saves_by:
            node.start(self.script.command, is_served, None, env)
            return
        here, there = Path.cwd(), self.directory(name)
        if not there.exists():
            scratch.copy(here, there, self.path)
        command = [
            str(there / Path(word).relative_to(here)) if Path(word).is_relative_to(here) else word
            for word in self.script.command
        ]
        node.start(command, is_served, there, {**env, "SLURM_SUBMIT_DIR": str(there), "PWD": str(there)})

    def directory(self, name: str) -> Path:
        """Where a script with checkpoints of its own runs."""
        return self.path / f"{name}.directory"

    def losses(self, name: str) -> Losses:
        """What each rank has computed in a run, losses as text."""
        files = [path for path in self.path.glob(f"{name}.*") if path.suffix[1:].isdigit()]
        return {int(path.suffix[1:]): losses_of(path.read_text()) for path in files}

    def is_enough(self, name: str) -> bool:
        """True when every rank has come as far as asked."""
        return self.has_computed(name, self.steps)

    def has_computed(self, name: str, count: int) -> bool:
        """True when every rank has computed `count` losses."""
        losses = self.losses(name)
        return bool(losses) and min(map(len, losses.values())) >= count

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


def losses_of(text: str) -> list[str]:
    """Return what a rank has computed over its lives, as it was noted (client/trial.py).

    What each life does again before a training that is saved (a Tuner's tries, say) counts once.
    """
    found: list[str] = []
    before: list[str] = []
    for life in text.split(BEGIN)[1:]:
        lines = life.splitlines()
        again = list(takewhile(lambda line: not line.endswith(SAVED), lines))
        if not found:
            before = again
        elif again == before[: len(again)]:
            lines = lines[len(again) :]
        found += [line.removesuffix(SAVED) for line in lines]
    return found


def slurm_env(script: Script) -> dict[str, str]:
    """Return what Slurm tells a job of itself, as far as scripts look for it."""
    number, tasks = str(stand_in.JOB_ID), str(script.tasks)
    found = {"SLURM_JOB_ID": number, "SLURM_JOBID": number, "SLURM_SUBMIT_DIR": str(Path.cwd())}
    if script.is_batch:
        found |= {"SLURM_NTASKS": tasks, "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}
    return found


def run_alone(trial: Trial, name: str, count: int = 0) -> None:
    """Run the script as it is, to `count` losses (0: as many as asked); GandivaError when it fails."""
    count = count or trial.steps
    with LoneNode(trial.path, name) as node:
        trial.start(node, name, is_served=False)
        node.wait(lambda: trial.has_computed(name, count), trial.deadline_s)
        check_end(trial, node, name, count)
        trial.has_ended_alone = node.status is not None
    if not trial.losses(name):
        raise GandivaError(
            "no loss was seen: the script calls no backward(), or its Python does not heed PYTHONPATH "
            "(python -I, or the script sets it anew); next: see `gandiva doctor`"
        )


def train_on(trial: Trial, node: LoneNode, stride: tuple[int, int]) -> None:
    """Let it pass some boundaries more, drawn from `stride`."""
    seqs = node.seqs()
    until = (max(seqs) if seqs else 0) + trial.chance.randint(*stride)
    node.wait(lambda: node.is_over() or max(node.seqs(), default=0) >= until, trial.deadline_s)


def check_end(trial: Trial, node: LoneNode, name: str, count: int = 0) -> None:
    """GandivaError where it failed, or took too long for `count` losses (0: as many as asked)."""
    if node.status not in (None, 0):
        raise GandivaError(f"the script ended with exit code {node.status} ({name}):\n{trial.tail(name)}")
    if node.status is None and not trial.has_computed(name, count or trial.steps):
        raise GandivaError(f"the script was not done within --deadline {trial.deadline_s:g} s ({name})")
