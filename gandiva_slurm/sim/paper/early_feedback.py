"""180 GPUs, a thousand jobs in two hours: how soon each shows its first hundred mini-batches (Gandiva).

The workload is drawn: uniform arrivals, 30 to 45 minutes each, mini-batches of 0.05 to 6 s, eight models. The
other side is bin-packing first come, first served.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gandiva_slurm.policy import gandiva
from gandiva_slurm.policy.baselines import fifo
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.paper.packing import PairTruth, pair_sums
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.world import Costs

SPAN_S, JOBS, QUANTUM_S, SWITCH_S = 7200, 1000, 60, 0.5
CLUSTER = Cluster([("p40", 4)] * 45)
_S = 10**9


@dataclass
class TwoHours:
    """A policy, what was done of all work in the first two hours, and which pairs it ran how often."""

    policy: Policy
    lengths_s: Mapping[int, float]
    name: str = "two hours"
    done_s: float = 0.0
    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    _live: set[int] = field(default_factory=set)
    _seen: set[int] = field(default_factory=set)

    @property
    def counts(self) -> dict[str, int]:
        """What the policy itself tells."""
        return getattr(self.policy, "counts", {})

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        self._live = set(view.jobs)
        self._seen |= self._live
        if not self.done_s and view.now_ns >= SPAN_S * _S:
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
    """Draw the thousand jobs."""
    draw = random.Random(seed)
    models = sorted(pair_sums())
    specs: list[Spec] = []
    for at_s in sorted(draw.uniform(0, SPAN_S) for _ in range(JOBS)):
        length_s = draw.uniform(30 * 60, 45 * 60)
        minibatch_s = math.exp(draw.uniform(math.log(0.05), math.log(6)))
        number = len(specs)
        specs.append(
            Spec(
                number, str(number), "all", 1, round(at_s * _S), length_ns=round(length_s * _S),
                steps=round(length_s / minibatch_s), model=draw.choice(models),
            )
        )  # fmt: skip
    return specs


def both(setup: Setup) -> tuple[tuple[Outcome, TwoHours], tuple[Outcome, TwoHours]]:
    """Run one drawn workload by `gandiva` and by `fifo`."""
    specs = workload(setup.seed)
    settings = PolicySettings(QUANTUM_S * _S, round(SWITCH_S * _S))
    scene = Scene(specs, CLUSTER, PairTruth(pair_sums()), Costs(round(SWITCH_S * _S)))
    lengths_s = {spec.job_id: spec.length_ns / _S for spec in specs}
    results: list[tuple[Outcome, TwoHours]] = []
    for make in (gandiva.make, fifo.make):
        policy = TwoHours(make(settings), lengths_s)
        on_finish = None if results else (lambda finished: setup.tell(finished, JOBS))
        results.append((simulate(scene, policy, on_finish=on_finish), policy))
    return results[0], results[1]


def run(setup: Setup) -> list[Row]:
    """Compare them with the paper's cluster."""
    paper = published("gandiva")["early"]
    (ours, mine), (theirs, other) = both(setup)
    told, base = ours.summary(), theirs.summary()
    early_s, late_s = (one["avg_first_100_minibatches_s"] for one in (told, base))
    pairs = f"{told['packs_tried']} pairs of models tried, {told['packs_kept']} kept"
    return [
        Row("first 100 mini-batches, gandiva", round(early_s), paper["gandiva_s"], "s", "mean"),
        Row("first 100 mini-batches, fifo", round(late_s), paper["fifo_s"], "s"),
        Row("sooner", round(late_s / early_s, 1), paper["ratio"], "x"),
        Row("work done in two hours", round(100 * (mine.done_s / other.done_s - 1)),
            paper["more_minibatches_pct"], "% more", pairs),
        Row("makespan", round(base["makespan_s"] / told["makespan_s"], 2), None, "x shorter"),
        Row("average JCT", round(told["avg_jct_s"] / base["avg_jct_s"], 2), None, "of fifo's"),
    ]  # fmt: skip
