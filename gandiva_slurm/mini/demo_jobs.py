"""The demo's jobs: what each user submits, and the same training run alone, without Slurm."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.errors import GandivaError

TRAIN = "gandiva_slurm.mini.workloads.train"
#: Inside the cluster, where every node sees it; a job looks for it after each step.
STOP_FILE = "/home/gandiva-demo-stop"
GPU_TYPE = "v100"


@dataclass(frozen=True)
class DemoJob:
    """One training job: whose, how big, what it trains, and how Gandiva finds its boundaries."""

    name: str
    user: str
    gpus: int
    model: str
    seed: int
    boundary: str = "steps"
    launcher: str = "python"

    @property
    def arguments(self) -> list[str]:
        """What the training script is told, where it writes and when it stops aside."""
        return ["--model", self.model, "--seed", str(self.seed), "--boundary", self.boundary]


#: One 2-GPU job, four 1-GPU jobs, and a 4-GPU gang that joins later: each user is due a third of the GPUs.
FIRST_JOBS = (
    DemoJob("cnn-pair", "user1", 2, "cnn", 1, launcher="torchrun"),
    DemoJob("mlp-a", "user2", 1, "mlp", 2),
    DemoJob("lstm-b", "user2", 1, "lstm", 3, boundary="hook"),
    DemoJob("cnn-c", "user2", 1, "cnn", 4),
    DemoJob("lstm-d", "user2", 1, "lstm", 5),
)
LATE_JOB = DemoJob("mlp-gang", "user3", 4, "mlp", 6, launcher="srun")

_SCRIPT = """\
#!/bin/bash
#SBATCH --partition=gandiva --gandiva --job-name={name} --output=%x.out
#SBATCH --gres=gpu:{gpu_type}:{gpus} --ntasks={tasks} --mem=2G
{setup}{launch} {arguments} --out {name} --stop-file {stop_file}{end}
"""
#: srun numbers the ranks by itself.
_SRUN = "srun sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python -m {train}"
_SRUN_SETUP = """\
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=$SLURM_NTASKS
"""


def script_of(job: DemoJob, stop_file: str = STOP_FILE) -> str:
    """The batch script as its user would write it."""
    launch, setup, tasks, end = f"python -m {TRAIN}", "", 1, ""
    if job.launcher == "torchrun":
        launch = f"torchrun --standalone --nproc_per_node {job.gpus} -m {TRAIN}"
    if job.launcher == "srun":
        launch, setup, tasks, end = _SRUN.format(train=TRAIN), _SRUN_SETUP, job.gpus, "'"
    return _SCRIPT.format(
        name=job.name, gpu_type=GPU_TYPE, gpus=job.gpus, tasks=tasks, setup=setup, launch=launch, end=end,
        arguments=" ".join(job.arguments), stop_file=stop_file,
    )  # fmt: skip


def submit(cluster: MiniCluster, job: DemoJob, stop_file: str = STOP_FILE) -> int:
    """sbatch it as its user; returns the job id."""
    done = cluster.exec(["sbatch", "--parsable"], user=job.user, input=script_of(job, stop_file))
    return int(done.stdout.strip().partition(";")[0])


def home_of(cluster: MiniCluster, job: DemoJob) -> Path:
    """The directory the job writes into, as this host sees it."""
    return cluster.path(f"/home/{job.user}")


@dataclass(frozen=True)
class Reference:
    """A run of the same script alone: no Slurm, no Gandiva, the same number of steps and threads."""

    job: DemoJob
    steps: int
    out: Path

    def command(self, python: str = sys.executable) -> list[str]:
        """The words that run it."""
        launch = [python, "-m", TRAIN]
        if self.job.gpus > 1:
            gang = ["--standalone", "--nproc_per_node", str(self.job.gpus)]
            launch = [python, "-m", "torch.distributed.run", *gang, "-m", TRAIN]
        return [*launch, *self.job.arguments, "--steps", str(self.steps), "--out", str(self.out)]


#: Starts one, with what it prints at the path `out` + ".log".
Starter = Callable[[Reference], "subprocess.Popen[bytes]"]


def start_here(reference: Reference) -> subprocess.Popen[bytes]:
    """Start it on this machine, with this interpreter."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GANDIVA", "SLURM", "PYTHONPATH"))
    }
    with open(f"{reference.out}.log", "wb") as log:
        return subprocess.Popen(
            reference.command(), env=clean | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip


def start_inside(cluster: MiniCluster) -> Starter:
    """Start them in the cluster, outside every job, with the interpreter and the PyTorch that the jobs have.

    They write into their user's home, where commands inside begin.
    """

    def start(reference: Reference) -> subprocess.Popen[bytes]:
        at_home = dataclasses.replace(reference, out=Path(reference.out.name))
        words = at_home.command("python")
        with open(f"{reference.out}.log", "wb") as log:
            return cluster.popen(
                ["env", "OMP_NUM_THREADS=1", *words], user=reference.job.user, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    return start


def run_references(
    references: Iterable[Reference], at_once: int, deadline_s: float, say: Callable[[str], None],
    start: Starter = start_here,
) -> None:  # fmt: skip
    """Run them, biggest first, as many ranks at once as there are processors; GandivaError when one fails."""
    waiting = sorted(references, key=lambda item: -item.job.gpus)
    running: dict[subprocess.Popen[bytes], Reference] = {}
    ends_s = time.monotonic() + deadline_s
    try:
        while waiting or running:
            busy = sum(item.job.gpus for item in running.values())
            if waiting and (not running or busy + waiting[0].job.gpus <= at_once):
                reference = waiting.pop(0)
                running[start(reference)] = reference
                continue
            for process in [process for process in running if process.poll() is not None]:
                _finish(process, running.pop(process), say)
            if time.monotonic() > ends_s:
                raise GandivaError(
                    f"the runs alone took longer than {deadline_s:.0f} s; is this machine busy?"
                )
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _finish(process: subprocess.Popen[bytes], reference: Reference, say: Callable[[str], None]) -> None:
    if process.returncode != 0:
        tail = Path(f"{reference.out}.log").read_text(errors="replace")[-800:]
        raise GandivaError(f"the run alone of {reference.job.name} ended with {process.returncode}: {tail}")
    say(f"  {reference.job.name}: {reference.steps} steps alone")


def read_losses(prefix: Path, ranks: int) -> list[list[str]]:
    """The losses of each rank, as written: hexadecimal, bit by bit. A rank that wrote nothing has none."""
    return [_lines(Path(f"{prefix}.{rank}.loss")) for rank in range(ranks)]


def read_steps(prefix: Path, ranks: int) -> list[list[tuple[int, int]]]:
    """When each rank's steps ran: (began, ended) in CLOCK_MONOTONIC nanoseconds."""
    return [_spans(_lines(Path(f"{prefix}.{rank}.steps"))) for rank in range(ranks)]


def read_timed_steps(prefix: Path) -> list[tuple[int, int, int]]:
    """The first rank's steps: (began, ended, processor time), nanoseconds."""
    lines = [line.split() for line in _lines(Path(f"{prefix}.0.steps")) if not line.startswith("#")]
    return [(int(began), int(ended), int(cpu)) for began, ended, cpu in lines]


def _lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def _spans(lines: Sequence[str]) -> list[tuple[int, int]]:
    return [
        (int(began), int(ended))
        for began, ended, _ in (line.split() for line in lines if not line.startswith("#"))
    ]
