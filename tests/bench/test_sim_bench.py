"""How fast the simulator is, in loops (`loops`).

Gavel's simulator took 18.8 s for 1,000 Poisson jobs under its gandiva at 360 s rounds, and more than 480 s
for 300 jobs that all come at once, on two cores; that was measured elsewhere and is no part of this run.
"""

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.policy import gandiva, gandiva_fair
from gandiva_slurm.policy.baselines import fifo
from gandiva_slurm.policy.port import Cluster, Policy, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous
from tests.bench.loops import measured
from tests.sim.mixed import CLUSTER, W1, W1C, S, settings, workload


def poisson(count: int) -> list[Spec]:
    """W1 gone on: its jobs in turn, arriving by chance as often as its own."""
    rows, _ = workload(W1)
    mean_s = rows[-1].submit_ns / S / len(rows)
    draw, at_s, specs = random.Random(1), 0.0, []
    for number in range(count):
        at_s += draw.expovariate(1 / mean_s)
        specs.append(replace(rows[number % len(rows)], job_id=number, submit_ns=round(at_s * S)))
    return specs


def at_once(count: int) -> list[Spec]:
    """W1c's jobs in turn, all at the start."""
    rows, _ = workload(W1C)
    return [replace(rows[number % len(rows)], job_id=number) for number in range(count)]


def by_engine(told: PolicySettings) -> Policy:
    """gandiva_fair's plans, carried out by the daemons' engine."""
    world = SlurmWorld(told, gandiva_fair.make(told))
    world.handle = inspect.unwrap(Engine.handle)  # without the tests' own checks
    return world


@pytest.mark.parametrize(
    ("specs", "make", "quantum_s", "limit"),
    [
        (poisson(1000), gandiva.make, 360, 3),
        (poisson(1000), gandiva.make, 60, 8),
        (poisson(1000), by_engine, 60, 16),
        (at_once(300), gandiva.make, 360, 3.5),
        (at_once(300), gandiva.make, 60, 9),
    ],
    ids=["poisson-360", "poisson-60", "poisson-60-by-the-engine", "at-once-360", "at-once-60"],
)
def test_mixed_cluster(
    specs: Sequence[Spec], make: Callable[[PolicySettings], Policy], quantum_s: int, limit: float
) -> None:
    told = settings(quantum_s)
    scene = Scene(specs, CLUSTER, workload(W1)[1])
    _, took = measured(lambda: simulate(scene, make(told)))
    print(f"\n{len(specs)} jobs, quantum {quantum_s} s: {took}, limit {limit} loops")
    assert took.loops <= limit


def test_fifo_of_ten_thousand() -> None:
    lengths_s = [100 + n * 37 % 500 for n in range(10_000)]
    specs = [
        Spec(n, str(n), "all", 1 + n % 4, n * 10 * S, length_ns=length_s * S)
        for n, length_s in enumerate(lengths_s)
    ]
    scene = Scene(specs, Cluster([("v100", 4)] * 9), Homogeneous())
    _, took = measured(lambda: simulate(scene, fifo.make(settings())))
    print(f"\nfifo, {len(specs)} jobs: {took}, limit 4 loops")
    assert took.loops <= 4
