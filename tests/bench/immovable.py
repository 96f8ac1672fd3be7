"""Jobs that cannot be moved: completion times, worst ρ and idle GPU time by how many of a workload cannot.

`python -m tests.bench.immovable [FILE.png|.svg]` prints a row for each workload and part, and draws them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.sim.draw import pyplot_of
from gandiva_slurm.sim.immovable import immovable
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.world import Costs
from tests.idle_watch import IdleWatch
from tests.sim.mixed import CLUSTER, W1, W1C, mean_jct_s, rho_of_jobs, settings, workload

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEDS = (0, 1, 2)
NAMES = {W1: "W1", W1C: "W1c"}


class Row(NamedTuple):
    """What one simulation shows."""

    mean_jct_s: float
    worst_rho: float
    idle_gpu_s: float
    cpu_s: float


def result_of(name: str, part: float, seed: int) -> Row:
    """Run a workload: a quantum of 60 s, a switch 1 s, a move 8 s, four slots."""
    specs, truth = workload(name)
    told = settings(60, 1, 8)
    costs, watched = Costs(told.switch_ns, told.restart_ns, slots=4), IdleWatch(gandiva_fair.make(told))
    began_s = time.process_time()
    outcome = simulate(Scene(immovable(specs, part, seed), CLUSTER, truth, costs), watched)
    used_s = time.process_time() - began_s
    return Row(mean_jct_s(outcome), rho_of_jobs(outcome)[1], watched.idle_gpu_s, used_s)


def mean(rows: list[Row]) -> Row:
    """Return the mean of each figure."""
    return Row(*(sum(values) / len(rows) for values in zip(*rows, strict=True)))


def draw(path: Path, found: dict[str, list[Row]]) -> None:
    """Draw all of it against the part."""
    pyplot = pyplot_of()
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4))
    for name, rows in found.items():
        first = rows[0].mean_jct_s
        axes[0].plot(PARTS, [row.mean_jct_s / first for row in rows], marker="o", label=name)
        axes[1].plot(PARTS, [row.worst_rho for row in rows], marker="o", label=name)
        axes[2].plot(PARTS, [row.idle_gpu_s / 3600 for row in rows], marker="o", label=name)
    axes[0].set(ylabel="mean completion time over that of m = 0")
    axes[1].set(ylabel="worst ρ of a job")
    axes[2].set(ylabel="GPU hours idle beside a job that could move")
    for each in axes:
        each.set(xlabel="m: part of the jobs that cannot be moved", ylim=(0, None))
        each.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(pictures: list[str]) -> None:
    """Print and draw."""
    found: dict[str, list[Row]] = {}
    for name, short in NAMES.items():
        for part in PARTS:
            row = mean([result_of(name, part, seed) for seed in (SEEDS if 0 < part < 1 else SEEDS[:1])])
            found.setdefault(short, []).append(row)
            figures = f"{row.mean_jct_s:8.0f} {row.worst_rho:6.2f} {row.idle_gpu_s:9.0f} {row.cpu_s:6.2f}"
            print(f"{short:4} {part:.2f} {figures}", flush=True)
    for picture in pictures:
        draw(Path(picture), found)


if __name__ == "__main__":
    main(sys.argv[1:])
