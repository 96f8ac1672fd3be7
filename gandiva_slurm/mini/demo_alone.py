"""The jobs' training scripts once more, alone: without Slurm and Gandiva, to compare them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gandiva_slurm.mini import probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_jobs import DemoJob
from gandiva_slurm.model.errors import GandivaError

ALONE = "gandiva_slurm.mini.workloads.alone"
#: Beside jobs they get about a third of what a job's rank gets, until they are told to hurry.
NICE = 5


@dataclass(frozen=True)
class Reference:
    """A run of a job's script alone: a number of steps, written at `out` (as this host sees it)."""

    job: DemoJob
    steps: int
    out: Path

    def told(self, out: str) -> dict[str, object]:
        """What workloads/alone.py is told, where `out` is the path as it sees it."""
        words = [*replace(self.job, wait_ms=0).arguments, "--steps", str(self.steps), "--out", out]
        return {"name": self.job.name, "ranks": self.job.gpus, "arguments": words}


#: Starts them all, as many ranks at once as the number says; their output goes to the file.
Starter = Callable[[Sequence[Reference], int, Path], "subprocess.Popen[bytes]"]


def start_here(references: Sequence[Reference], at_once: int, log: Path) -> subprocess.Popen[bytes]:
    """Start them on this machine, with this interpreter."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GANDIVA", "SLURM", "PYTHONPATH"))
    }
    words = _words(sys.executable, at_once, [item.told(str(item.out)) for item in references])
    with log.open("wb") as out:
        return subprocess.Popen(
            words, env=clean | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )  # fmt: skip


def start_inside(cluster: MiniCluster) -> Starter:
    """Start them in the cluster, outside every job, with the interpreter and the PyTorch that the jobs have.

    They write into their user's home.
    """

    def start(references: Sequence[Reference], at_once: int, log: Path) -> subprocess.Popen[bytes]:
        told = [item.told(f"/home/{item.job.user}/{item.out.name}") for item in references]
        words = ["nice", "-n", str(NICE), "env", "OMP_NUM_THREADS=1", *_words("python", at_once, told)]
        with log.open("wb") as out:
            return cluster.popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    return start


def _words(python: str, at_once: int, told: Sequence[dict[str, object]]) -> list[str]:
    return [python, "-m", ALONE, str(at_once), json.dumps(told)]


class Alone:
    """Runs alone that are under way; `log` gets what they print."""

    def __init__(self, references: Sequence[Reference], at_once: int, start: Starter, log: Path) -> None:
        self._log = log
        self._process = start(references, at_once, log)

    def has_ended(self) -> bool:
        """True when all have ended; GandivaError when one failed."""
        code = self._process.poll()
        if code:
            tail = self._log.read_text(errors="replace")[-800:]
            raise GandivaError(f"a run alone ended with {code}: {tail}")
        return code == 0

    def hurry(self) -> None:
        """Let those that are under way have as much of the processors as others."""
        pids = [self._process.pid]
        for pid in pids:
            pids += probe.children(pid)
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, pid, 0)

    def stop(self) -> None:
        """End them, where they have not."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def run_references(
    references: Sequence[Reference], at_once: int, deadline_s: float, log: Path, start: Starter = start_here
) -> None:
    """Run them, as many ranks at once as said; GandivaError when one fails or all take too long."""
    alone = Alone(references, at_once, start, log)
    ends_s = time.monotonic() + deadline_s
    try:
        while not alone.has_ended():
            if time.monotonic() > ends_s:
                raise GandivaError(
                    f"the runs alone took longer than {deadline_s:.0f} s; is this machine busy?"
                )
            time.sleep(0.05)
    finally:
        alone.stop()
