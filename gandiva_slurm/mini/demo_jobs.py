"""The demo's jobs: what each user submits, and what the jobs wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.cluster import MiniCluster

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
    batch: int = 64
    #: what each step waits, as for a GPU
    wait_ms: int = 0

    @property
    def arguments(self) -> list[str]:
        """What the training script is told, where it writes and when it stops aside."""
        words = ["--model", self.model, "--seed", str(self.seed), "--boundary", self.boundary]
        return [*words, "--batch", str(self.batch), "--wait-ms", str(self.wait_ms)]


#: One 2-GPU job, four 1-GPU jobs, and a 4-GPU gang that joins later: each user is due a third of the GPUs.
FIRST_JOBS = (
    DemoJob("cnn-pair", "user1", 2, "cnn", 1, launcher="torchrun", batch=32),
    DemoJob("mlp-a", "user2", 1, "mlp", 2, batch=32),
    DemoJob("lstm-b", "user2", 1, "lstm", 3, boundary="hook", batch=32),
    DemoJob("cnn-c", "user2", 1, "cnn", 4, batch=32),
    DemoJob("lstm-d", "user2", 1, "lstm", 5, batch=32),
)
LATE_JOB = DemoJob("tiny-gang", "user3", 4, "tiny", 6, launcher="srun")

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
