"""180 GPUs, a thousand jobs in two hours: how soon each shows its first hundred mini-batches (Gandiva).

The paper's cluster gave 498 s where bin-packing first come, first served gave 2,203 s (4.4 times), and ran
26 % more mini-batches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from gandiva_slurm.policy import gandiva
from gandiva_slurm.policy.baselines import fifo
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, Rates, View
from gandiva_slurm.sim.job import RATE, Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import S, mean_jct_s

#: What two jobs of one model come to on one P40, of one alone (papers: +412 % is memory-bound; capped at 2).
PAIRS = {
    "VAE": 2.0, "SuperRes": 2.0, "RHN": 1.46, "SCRNN": 1.39, "MI-LSTM": 1.17, "LSTM": 0.84, "ResNet50": 0.87,
    "ResNeXt50": 0.89,
}  # fmt: skip
SPAN_S, JOBS, QUANTUM_S, SWITCH_S = 7200, 1000, 60, 0.5
SEEDS = range(5)
CLUSTER = Cluster([("p40", 4)] * 45)


class PairTruth:
    """A step is a second of work; each keeps half of what its pair with itself comes to."""

    def __init__(self) -> None:
        self.rates: Rates = self  # type: ignore[assignment]

    def work(self, spec: Spec) -> int:
        return spec.length_ns * RATE

    def alone(self, spec: Spec, size: int, gpu_type: str, is_local: bool = True) -> float:
        return 1.0

    def packed(self, spec: Spec, other: Spec, gpu_type: str) -> float:
        return PAIRS[spec.model] / 2


@dataclass
class TwoHours:
    """A policy, what was done of all work in the first two hours, and which pairs it ran how long."""

    policy: Policy
    lengths_s: dict[int, float]
    name: str = "two hours"
    done_s: float = 0.0
    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    _live: set[int] = field(default_factory=set)
    _seen: set[int] = field(default_factory=set)

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        self._live = set(view.jobs)
        self._seen |= self._live
        if not self.done_s and view.now_ns >= SPAN_S * S:
            ended = sum(self.lengths_s[job_id] for job_id in self._seen - self._live)
            self.done_s = ended + sum(job.progress * self.lengths_s[job.job_id] for job in view.jobs.values())
        plan = self.policy.decide(view)
        hosts: dict[tuple[int, ...], int] = {}
        for job_id, gpus in plan.runs.items():
            host = hosts.setdefault(gpus, job_id)
            if host != job_id:
                models = sorted((view.jobs[host].model, view.jobs[job_id].model))
                self.pairs[models[0], models[1]] = self.pairs.get((models[0], models[1]), 0) + 1
        return plan


def workload(seed: int) -> list[Spec]:
    """Uniform arrivals over two hours, 30 to 45 minutes each, mini-batches of 0.05 to 6 s."""
    draw = random.Random(seed)
    specs = []
    for at_s in sorted(draw.uniform(0, SPAN_S) for _ in range(JOBS)):
        length_s = draw.uniform(30 * 60, 45 * 60)
        minibatch_s = math.exp(draw.uniform(math.log(0.05), math.log(6)))
        number = len(specs)
        specs.append(
            Spec(
                number, str(number), "all", 1, round(at_s * S), length_ns=round(length_s * S),
                steps=round(length_s / minibatch_s), model=draw.choice(sorted(PAIRS)),
            )
        )  # fmt: skip
    return specs


@cache
def run(seed: int, make: Callable[[PolicySettings], Policy]) -> tuple[Outcome, TwoHours]:
    """One seed under one policy."""
    specs = workload(seed)
    settings = PolicySettings(QUANTUM_S * S, round(SWITCH_S * S))
    policy = TwoHours(make(settings), {spec.job_id: spec.length_ns / S for spec in specs})
    scene = Scene(specs, CLUSTER, PairTruth(), Costs(round(SWITCH_S * S)))
    return simulate(scene, policy), policy


@pytest.mark.parametrize("seed", SEEDS)
def test_first_hundred_minibatches_come_soon(seed: int) -> None:
    ours, theirs = (run(seed, make)[0].summary() for make in (gandiva.make, fifo.make))
    early, late = (told["avg_first_100_minibatches_s"] for told in (ours, theirs))
    assert early <= 350
    assert late >= 6 * early


@pytest.mark.parametrize("seed", SEEDS)
def test_more_is_done_in_the_same_time(seed: int) -> None:
    (ours, mine), (theirs, other) = (run(seed, make) for make in (gandiva.make, fifo.make))
    assert mine.done_s >= 1.18 * other.done_s
    assert theirs.summary()["makespan_s"] >= 1.22 * ours.summary()["makespan_s"]
    assert mean_jct_s(ours) <= 1.10 * mean_jct_s(theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pair_that_loses_is_run_again(seed: int) -> None:
    _, watched = run(seed, gandiva.make)
    losing = {pair: count for pair, count in watched.pairs.items() if sum(PAIRS[m] for m in pair) / 2 < 1.0}
    assert watched.pairs.keys() - losing.keys()
    # Plans of one quantum: jobs come and go meanwhile, some seven a minute.
    assert all(count <= 20 for count in losing.values()), losing
