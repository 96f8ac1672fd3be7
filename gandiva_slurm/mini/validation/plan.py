"""What is validated: the cluster, and the jobs with the moments at which they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A fast node and a slower one.
NODES = "v100:1x8,p100:1x4"
QUANTUM_S = 3.0
POLICY = "gandiva_fair"
#: A rank that is frozen while it loads PyTorch is parked off a boundary; on a busy machine that takes long.
CLIENT_WAIT_S = 600.0
#: What a mini-batch takes on each node, ms; most of it is sleep.
PACE_MS = {"n1": 100, "n2": 125}
TRAIN = "gandiva_slurm.mini.workloads.paced"

_SCRIPT = """\
#!/bin/bash
#SBATCH --partition=gandiva --gandiva --job-name={name} --output=%x.out
#SBATCH --gres=gpu:{gpus} --mem=1G
exec python -m {train} --out {name} --steps {steps} --ranks {ranks} --seed {seed} {paces}
"""


@dataclass(frozen=True)
class PacedJob:
    """One training: whose, how big, how many mini-batches, and when it is submitted."""

    name: str
    user: str
    gpus: int
    steps: int
    #: seconds after the first
    at_s: float
    #: the only type that it asks for; "": any
    gpu_type: str = ""

    @property
    def script(self) -> str:
        """The batch script as its user would write it."""
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        return _SCRIPT.format(
            name=self.name, gpus=f"{kind}{self.gpus}", ranks=self.gpus, train=TRAIN, steps=self.steps,
            seed=sum(self.name.encode()), paces=" ".join(f"--pace {n}={pace}" for n, pace in PACE_MS.items()),
        )  # fmt: skip


def _jobs(rows: Sequence[tuple[float, int, int, float, str]]) -> tuple[PacedJob, ...]:
    """Make jobs of (moment, number of the user, GPUs, seconds alone on the fast node, GPU type)."""
    return tuple(
        PacedJob(f"job{number:02}", f"user{user}", gpus, round(length_s * 1000 / PACE_MS["n1"]), at_s, kind)
        for number, (at_s, user, gpus, length_s, kind) in enumerate(rows)
    )


#: Four gangs take turns on the slower node, then jobs that take either node move to the fast one. Drawn as
#: one on which the simulation does not hang on a hair (docs/simulator.md).
LONG = _jobs((
    (0, 1, 2, 46, "v100"), (10.7, 2, 1, 25, "v100"), (10.8, 3, 4, 20, "p100"), (12.8, 1, 4, 26, "p100"),
    (19.1, 3, 1, 50, ""), (20.2, 2, 4, 37, "p100"), (25.5, 2, 4, 34, "p100"), (27.9, 1, 1, 36, ""),
    (36.9, 2, 1, 28, "v100"), (45.2, 3, 2, 45, ""), (52.2, 1, 1, 25, ""), (60.3, 2, 1, 31, "v100"),
    (70.3, 3, 1, 33, "v100"), (80, 2, 2, 43, ""), (86.7, 1, 1, 44, ""), (94.7, 3, 1, 41, ""),
    (105.7, 1, 2, 37, ""), (111.8, 2, 1, 28, "v100"), (120.3, 3, 1, 33, ""), (129.9, 1, 1, 38, ""),
    (138.2, 2, 1, 47, ""), (147.9, 3, 1, 49, "v100"), (155.6, 3, 1, 49, "v100"), (164.5, 1, 1, 47, ""),
    (172.2, 2, 1, 47, ""), (182.9, 2, 2, 31, "v100"),
))  # fmt: skip
#: Its beginning with jobs half as long, for a test.
SHORT = _jobs((
    (0, 1, 2, 23, "v100"), (5, 2, 1, 13, "v100"), (6, 3, 4, 10, "p100"), (7, 1, 4, 13, "p100"),
    (10, 3, 1, 25, ""), (12, 2, 4, 17, "p100"), (16, 1, 1, 18, ""), (20, 2, 1, 14, "v100"),
))  # fmt: skip
