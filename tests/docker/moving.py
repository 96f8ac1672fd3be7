"""A training that helps in nothing, on two nodes whose criu moves it between them (ADR 0054).

It saves nothing. Where it goes is forced: a job that cannot move takes its GPU's turns, and the other
node's GPU is idle.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import LIGHT, Fleet, asked, own_cluster, wait_for
from tests.docker.conftest import require

SUITE = "docker:trixie"
OF_IMAGES = {"backend": SUITE, "process_images": True}
TRAIN = Path(__file__).parents[1] / "node/scripts/plain_train.py"
#: In a turn of 18 minutes a job moves to GPUs on which no other lives, and nowhere else.
MOVES = {"min_run_s": 2, "cost_s": 60, "deadline_s": 60}
TYPES = {"n1": "v100", "n2": "k80"}
#: A line of the story of one that a killed criu has taken along.
BROKE = re.compile(r"^ *(\S+) +\S+ -> HELD +ImageBroke:", re.MULTILINE)
#: A job of one move lives for 20 s behind it, as a rule.
MOVE_S, END_S, STEPS = 90.0, 180.0, 1300
#: A job of two moves lives for longer.
MORE_STEPS = 4000
#: The image of a job that ends within seconds behind a move is there for two minutes (ADR 0070).
GONE_S = 180.0


@contextlib.contextmanager
def two_nodes(name: str) -> Iterator[MiniCluster]:
    """Two nodes of a GPU, of two types, so that each job can be told where it is to be."""
    require(SUITE)
    with own_cluster(name, "v100:1x1,k80:1x1", 0.5, spec=OF_IMAGES, moves=MOVES) as cluster:
        cluster.path("/home/user2/light.py").write_text(LIGHT)
        cluster.path("/home/user1/train.py").write_text(TRAIN.read_text())
        yield cluster


@pytest.fixture
def moving(mini: MiniCluster) -> Iterator["Moving"]:
    """A training of user1 that can be had moved; all jobs have ended at its end."""
    found = Moving(mini)
    yield found
    for name in ("gandivad:n1", "gandivad:n2", "gandivactld", "slurmd:n1", "slurmd:n2"):
        if mini.daemon_pid(name) is None:
            mini.start_daemon(name)
        elif name.startswith("slurmd"):
            mini.kill(name, signal.SIGCONT)
    found.fleet.finish()


class Moving:
    """One training, and what makes it move."""

    def __init__(self, mini: MiniCluster) -> None:
        self.mini, self.fleet, self.job = mini, Fleet(mini), 0
        self.name = f"t{time.monotonic_ns()}"
        self._broken: set[str] = set()

    def submit(self, script: str, *flags: str, told: str = "image of its") -> None:
        """Submit the training, and wait until this is said; OUT stands for the file of its losses."""
        text = f"export GANDIVA_AUTO_ATTACH=0\n{script.replace('OUT', self.name)}"
        more = ("--gandiva-pack=never", "--requeue", "--open-mode=append", "-o", f"{self.name}.out", *flags)
        self.job = self.fleet.submit("user1", text, *more)
        self.fleet.wait_running(self.job)
        wait_for(lambda: len(self.lines()) > 30, "it to train", 90)
        wait_for(lambda: told in self.story(), lambda: f"a word on images: {self.story()}", 90)

    def node(self) -> str:
        """Where Slurm has it; "" where nowhere."""
        return self.mini.exec(["squeue", "-h", "-j", str(self.job), "-o", "%N"], check=False).stdout.strip()

    def limit_min(self) -> int:
        """Its time limit in Slurm, where that is less than an hour."""
        minutes, _ = self.mini.exec(["squeue", "-h", "-j", str(self.job), "-o", "%l"]).stdout.split(":")
        return int(minutes)

    def file(self, kind: str = "") -> Path:
        """A file of the training's: its losses, or .out."""
        return self.fleet.home("user1", f"{self.name}{kind}")

    def lines(self) -> list[str]:
        """The losses so far."""
        return self.file().read_text().splitlines() if self.file().exists() else []

    def crowd(self) -> int:
        """A job that cannot move comes to its GPU: it goes to the other one."""
        kind = f"--gandiva-gpu-types={TYPES[self.node()]}"
        script = f"exec python light.py {self.name}.c {self.name}.stop"
        return self.fleet.submit("user2", script, "--gandiva-pack=never", "--gandiva-migrate=never", kind)

    def move(self) -> int:
        """Have it moved to the other node, and train there; return how far it was when it was there."""
        home = self.node()
        other = self.crowd()
        wait_for(lambda: self.node() not in ("", home), lambda: f"it to move: {self.story()}", MOVE_S)
        self.mini.exec(["scancel", str(other)])
        was = len(self.lines())
        wait_for(lambda: len(self.lines()) > was + 20, lambda: f"it to train: {self.story()}", 60)
        return was

    def moves_by(self) -> str:
        """What `gandiva queue` says of how it moves."""
        rows = {row["job_id"]: row for row in self.fleet.ask("queue")["jobs"]}
        return str(rows[self.job]["moves_by"])

    def lost_and_by(self) -> list[object]:
        """What `gandiva acct` says of the mini-batches that its moves cost, and of how it was moved."""
        (row,) = self.fleet.ask("acct", "-a", "-j", str(self.job))["jobs"]
        return [row["lost_steps"], row["moved_by"]]

    def story(self) -> str:
        """What is known of it, for a failure."""
        told = asked(self.mini, "why", str(self.job), "--story").stdout
        return told + "\n".join(json.dumps(event) for event in self.events("image", "restore", "un"))

    def broken(self) -> int:
        """How often it has been told that a killed criu took it along: a long story loses its first lines."""
        self._broken.update(BROKE.findall(self.story()))
        return len(self._broken)

    def events(self, *words: str) -> list[dict[str, Any]]:
        """What the nodes noted of it, of kinds that have one of these words, in order."""
        found = [event for node in TYPES for event in self.fleet.events(node) if event.get("job") == self.job]
        wanted = [event for event in found if any(word in event["event"] for word in words)]
        return sorted(wanted, key=lambda event: event["mono_ns"])

    def images(self) -> list[str]:
        """What lies of it in the store."""
        root = self.mini.at.root / "images"
        return [str(path) for name in ("work", "whole") for path in (root / name).glob(f"*{self.job}.*")]

    def wait_ended(self, until_swept: bool = False) -> list[str]:
        """Hurry it to its end; return Slurm's accounting of its runs. `until_swept`: images are deleted."""
        if until_swept:  # those of one that has ended by then lie for two minutes
            wait_for(lambda: not self.images(), lambda: f"images to be deleted: {self.images()}", GONE_S)
        self.file(".moved").touch()
        over = ("GONE", "FAILED", "COMPLETED")
        wait_for(lambda: self.fleet.slurm_state(self.job) in over, lambda: f"its end: {self.story()}", END_S)
        words = ["sacct", "-D", "-X", "-n", "-P", "-j", str(self.job), "-o", "State,ExitCode"]

        def told() -> list[str]:
            return self.mini.exec(words).stdout.replace("|", " ").split("\n")[:-1]

        wait_for(lambda: "RUNNING" not in told()[-1], "its end in the accounting")
        if until_swept:
            wait_for(lambda: not self.images(), lambda: f"images to be deleted: {self.images()}", GONE_S)
        return told()

    def alone(self, workers: int = 0, steps: int = STEPS) -> list[str]:
        """The losses of the same training alone, without Slurm."""
        words = f"cd; rm -f {self.name}.alone; python train.py {self.name}.alone {steps} 0 {workers}"
        self.mini.exec(["sh", "-c", words], user="user1", check=False)
        return self.file(".alone").read_text().splitlines()

    def processes(self, node: str, script: bytes = b"train.py") -> list[dict[str, str]]:
        """/proc/PID/status of its processes on a node."""
        base = Path(f"/proc/{self.mini.pids[node]}/root/proc")
        found = []
        for entry in filter(lambda entry: entry.name.isdigit(), base.iterdir()):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if script in words and self.name.encode() in words:
                    rows = (line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                    found.append({name: value.strip() for name, value in rows})
        return found


def criu_of(mini: MiniCluster, node: str) -> int:
    """The pid on this host of a criu on a node; 0: there is none."""
    for pid in pids_of(mini, node):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "criu\n":
                return pid
    return 0


def pids_of(mini: MiniCluster, node: str, *words: str) -> list[int]:
    """The pids on this host of a node's processes that have these words in their command."""
    mine, found = os.readlink(f"/proc/{mini.pids[node]}/ns/ipc"), []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if {*map(str.encode, words)} <= {*Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")}:
                found += [int(entry)] * (os.readlink(f"/proc/{entry}/ns/ipc") == mine)
    return found


def runs_of(steps: list[int]) -> list[list[int]]:
    """Return what was done between one beginning and the next one, which is step 0."""
    begins = [0, *(at for at, step in enumerate(steps) if at and step == 0)]
    return [steps[begin:end] for begin, end in itertools.pairwise([*begins, len(steps)])]
