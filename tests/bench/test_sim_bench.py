"""How fast the simulator is, and one decision on a large cluster: CPU seconds.

Gavel's simulator took 18.8 s for 1,000 Poisson jobs under its gandiva at 360 s rounds, and more than 480 s
for 300 jobs that all come at once, on two cores; that was measured elsewhere and is no part of this run.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.baselines import fifo
from gandiva_slurm.policy.port import Cluster, JobView, Policy, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from tests.sim.mixed import CLUSTER, W1, W1C, S, settings, workload

USERS, MODELS = 50, 26


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


def cpu_s(act: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    act()
    return time.process_time() - start


@pytest.mark.parametrize(
    ("specs", "quantum_s", "limit_s"),
    [(poisson(1000), 360, 4), (poisson(1000), 60, 12), (at_once(300), 360, 5), (at_once(300), 60, 15)],
    ids=["poisson-360", "poisson-60", "at-once-360", "at-once-60"],
)
def test_mixed_cluster(specs: Sequence[Spec], quantum_s: int, limit_s: float) -> None:
    told = settings(quantum_s)
    scene = Scene(specs, CLUSTER, workload(W1)[1])
    took_s = cpu_s(lambda: simulate(scene, gandiva_fair.make(told)))
    print(f"\n{len(specs)} jobs, quantum {quantum_s} s: {took_s:.2f} s, limit {limit_s} s")
    assert took_s <= limit_s


def test_fifo_of_ten_thousand() -> None:
    lengths_s = [100 + n * 37 % 500 for n in range(10_000)]
    specs = [
        Spec(n, str(n), "all", 1 + n % 4, n * 10 * S, length_ns=length_s * S)
        for n, length_s in enumerate(lengths_s)
    ]
    scene = Scene(specs, Cluster([("v100", 4)] * 9), Homogeneous())
    took_s = cpu_s(lambda: simulate(scene, fifo.make(settings())))
    print(f"\nfifo, {len(specs)} jobs: {took_s:.2f} s, limit 2 s")
    assert took_s <= 2


def test_one_decision_on_a_large_cluster() -> None:
    """Users' stride, types, seats and pairs by model: time grows hardly faster than the cluster."""
    small, large = decision_s(10_000, 5_000), decision_s(100_000, 50_000)
    told = f"{small:.2f} s at 10,000 GPUs, {large:.2f} s at 100,000, {large / small:.1f} times as long"
    print(f"\none decision: {told}")
    assert small <= 0.5
    assert large <= 6
    assert large <= 15 * small


class Table:
    """Rates by chance, the same for the same question."""

    def __init__(self, draw: random.Random) -> None:
        factor = {"v100": 3, "p100": 2, "k80": 1}
        self._alone = {(str(m), t): f * draw.uniform(1, 10) for m in range(MODELS) for t, f in factor.items()}
        pairs = [(a, b, t) for a in range(MODELS) for b in range(a, MODELS) for t in factor]
        self._pairs = {(str(a), str(b), t): draw.uniform(0.4, 1.6) / 2 for a, b, t in pairs}

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self._alone[model, gpu_type] * size**0.9

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        part = self._pairs.get((model, other, gpu_type)) or self._pairs[other, model, gpu_type]
        return part * self._alone[model, gpu_type], part * self._alone[other, gpu_type]


def decision_s(gpus: int, jobs: int) -> float:
    """CPU seconds of the slowest of three decisions in a row, the first with nothing placed."""
    draw = random.Random(1)
    cluster = Cluster([(gpu_type, 4) for gpu_type in ("v100", "p100", "k80") for _ in range(gpus // 12)])
    policy: Policy = gandiva_fair.make(PolicySettings(60 * S))
    live = {}
    for n in range(jobs):
        user, model = f"u{draw.randrange(USERS)}", str(draw.randrange(MODELS))
        live[n] = JobView(n, user, draw.choice([1, 1, 1, 2, 4, 4]), n, model)
    view, slowest = View(0, cluster, live, Table(draw)), 0.0
    for _ in range(3):
        start = time.process_time()
        plan = policy.decide(view)
        slowest = max(slowest, time.process_time() - start)
        for job_id, gpus_now in plan.runs.items():
            live[job_id].gpus = gpus_now
        for job_id, job in live.items():
            job.is_running = job_id in plan.runs
        view.now_ns += 60 * S
    return slowest
