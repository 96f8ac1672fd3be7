"""Trainings that are to be moved, beside jobs that make and take their room."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gandiva_slurm.node import procs
from tests.cluster.fleet import Fleet, said, set_down, wait_for

#: Of each node, by type.
GPUS = {"v100": 1, "k80": 2}
MOVE_S = 60.0
#: Until a job that was told to stop has had its turn.
END_S = 60.0


class Crowd:
    """A training of user1 that shares a node's GPUs with a job of user2, who has the other node's, too."""

    def __init__(self, fleet: Fleet, name: str, script: str, kind: str = "v100", *flags: str) -> None:
        self.fleet, self.name = fleet, name
        wait_all_up(fleet)
        flags = (f"--gandiva-gpu-types={kind}", "--gandiva-pack=never", f"--job-name={name}", *flags)
        count, gpus = f"exec python light.py {name}.count {name}.stop", GPUS[kind]
        others = [fleet.submit("user2", count, *flags, gpus=gpus) for _ in range(2)]
        for job in others:
            fleet.wait_running(job)
        self.job = self.submit(script, *flags, gpus=gpus)
        fleet.wait_running(self.job)
        self.home = self.node()
        (self.elsewhere,) = (job for job in others if self.node(job) != self.home)
        self.target = self.node(self.elsewhere)

    def submit(self, script: str, *flags: str, gpus: int) -> int:
        """Submit the training; return its job."""
        return self.fleet.submit("user1", script, *flags, gpus=gpus)

    def node(self, job: int = 0) -> str:
        """Where Slurm has the training, or another job."""
        return self.fleet.mini.exec(["squeue", "-h", "-j", str(job or self.job), "-o", "%N"]).stdout.strip()

    def make_room(self) -> None:
        """End the job on the other node: there the training would have a GPU to itself."""
        self.fleet.mini.exec(["scancel", str(self.elsewhere)])

    def file(self, kind: str) -> Path:
        """One of a light training's files."""
        return self.fleet.home("user1", f"{kind}.{self.job}")

    def lines(self) -> list[str]:
        """What a light training has written."""
        return rows(self.fleet, f"loss.{self.job}")

    def trains(self, more: int = 50) -> None:
        """Wait until it has done `more` mini-batches more."""
        was = len(self.lines())
        wait_for(lambda: len(self.lines()) > was + more, f"{self.name} to train")

    def wait_moved(self) -> None:
        """Wait until Slurm runs it on the other node."""
        wait_for(lambda: self.node() == self.target, f"{self.name} to run on {self.target}", MOVE_S)

    def codes(self) -> list[str]:
        """The reasons in its story, oldest first."""
        told = said(self.fleet.mini, "why", str(self.job), "--story")
        return re.findall(r"^    \S+T\S+  .*? ([A-Z][A-Za-z]+): ", told, re.MULTILINE)

    def runs(self) -> list[str]:
        """Slurm's accounting of each of its runs, "STATE NODE"."""
        words = ["sacct", "-D", "-X", "-n", "-P", "-j", str(self.job), "-o", "State,NodeList"]
        return self.fleet.mini.exec(words).stdout.replace("|", " ").split("\n")[:-1]

    def cost(self) -> tuple[int, float]:
        """What acct says that its one move has lost, in mini-batches, and how long its save took."""
        return cost(self.fleet, self.job)

    def lose_node(self) -> None:
        """Its node dies, its daemons and slurmstepds, then all of its jobs, and Slurm is told so."""
        mini = self.fleet.mini
        jobs = mini.exec(["squeue", "-h", "-w", self.home, "-o", "%A"]).stdout.split()
        for daemon in ("slurmd", "gandivad"):
            mini.kill(f"{daemon}:{self.home}")
        heads = [pid for pid in mini.processes() if procs.title(pid).startswith(_stepds(jobs))]
        for pid in (*heads, *(proc.pid for proc in [*procs.below(heads)])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        set_down(mini, self.home)
        self.fleet.note_lost(map(int, jobs))

    def lost(self) -> int:
        """What acct says that its lost node cost it, in mini-batches, when it tells it."""
        told: list[dict[str, Any]] = []

        def is_told() -> bool:
            told[:] = self.fleet.ask("acct", "-a", "-j", str(self.job))["jobs"]
            return [row["restarts"] for row in told] == [1] and told[0]["lost_steps"] is not None

        wait_for(is_told, lambda: f"acct to tell what job {self.job} lost: {told}")
        assert told[0]["migrations"] == 0, told
        return int(told[0]["lost_steps"])

    def check_losses(self) -> None:
        """Let it train on to its end: its losses are those of a training that nobody touched."""
        self.trains(20)
        self.file("stop").touch()
        self.fleet.wait_ended(self.job, "COMPLETED", deadline_s=END_S)
        *found, end = self.lines()
        loss = 1
        for number, line in enumerate(found):
            loss = loss * 48271 % 2147483647
            assert line == f"{number} {loss}"
        assert end == "end"

    def wait_runs(self, *runs: str) -> None:
        """Wait until Slurm's accounting shows these runs, and no other; it lags behind a job's end."""
        wait_for(lambda: self.runs() == list(runs), f"sacct to show {runs}")


def wait_all_up(fleet: Fleet) -> None:
    """Wait until jobs may be placed on every node."""
    wait_for(lambda: all(node["state"] == "up" for node in fleet.ask("nodes")["nodes"]), "all nodes", 60)


def _stepds(jobs: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"slurmstepd: [{job}." for job in jobs)


def cost(fleet: Fleet, job: int) -> tuple[int, float]:
    """What acct says that a job's one move has lost, in mini-batches, and how long its save took.

    Its nodes tell it some time after the job's end.
    """
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        told[:] = fleet.ask("acct", "-a", "-j", str(job))["jobs"]
        moves = [(row["restarts"], row["migrations"]) for row in told]
        return moves == [(1, 1)] and not told[0]["lost_steps_why"] and not told[0]["ckpt_why"]

    wait_for(is_told, lambda: f"acct to tell what the move of job {job} cost: {told}")
    return told[0]["lost_steps"], told[0]["ckpt_s"]


def rows(fleet: Fleet, name: str) -> list[str]:
    """The lines of a file of user1."""
    path = fleet.home("user1", name)
    return path.read_text().splitlines() if path.exists() else []
