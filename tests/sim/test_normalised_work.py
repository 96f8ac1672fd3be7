"""No user has ever done less than alone on a fluid quarter: work in GPU hours of each job's best type."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.port import Plan, Policy, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Truth
from tests.sim.mixed import CLUSTER, W1C, S, settings, workload

USERS = 4


@dataclass
class Recorded:
    """A policy, and how far each live job was at each question. Between two questions rates stand."""

    policy: Policy
    name: str = "recorded"
    rows: list[tuple[float, dict[int, float]]] = field(default_factory=list)

    def decide(self, view: View) -> Plan:
        """Write down, and pass the question on."""
        self.rows.append((view.now_ns / S, {job_id: job.progress for job_id, job in view.jobs.items()}))
        return self.policy.decide(view)

    def progress(self, job_id: int, at_s: float) -> float:
        """How far a job was, of 1; all came at the start, so who is not live has ended."""
        later = next(index for index, (time_s, _) in enumerate(self.rows) if time_s >= at_s)
        (from_s, before), (to_s, after) = self.rows[later - 1], self.rows[later]
        begun, ended = before.get(job_id, 1.0), after.get(job_id, 1.0)
        return begun + (ended - begun) * (at_s - from_s) / (to_s - from_s)


@cache
def played(quantum_s: float) -> tuple[Outcome, Recorded]:
    """W1c, once for all moments looked at."""
    specs, truth = workload(W1C)
    recorded = Recorded(GandivaFair(settings(quantum_s)))
    return simulate(Scene(specs, CLUSTER, truth), recorded), recorded


def rates(spec: Spec, truth: Truth) -> list[float]:
    """Steps a second by type; there are as many GPUs of each."""
    return [
        truth.alone(spec, spec.size, kind, True) if not spec.gpu_types or kind in spec.gpu_types else 0.0
        for kind in CLUSTER.counts
    ]


def whole_work(spec: Spec, truth: Truth) -> float:
    """All of a job: GPU seconds on its best type."""
    return spec.steps / max(rates(spec, truth)) * spec.size


def fluid_work(own: Sequence[Spec], truth: Truth, ends_s: Mapping[int, float], until_s: float) -> float:
    """What a user's jobs, all there from the start, have done alone on a fluid quarter of every type.

    `ends_s`: when each ends there. With n alive, a job of g GPUs has 9 / (n g) of its time, at most all.
    """
    gpus = CLUSTER.size / USERS
    marks = [0.0, *sorted(end_s for end_s in ends_s.values() if end_s < until_s), until_s]
    run_s = dict.fromkeys((spec.size for spec in own), 0.0)
    for from_s, to_s in itertools.pairwise(marks):
        alive = sum(ends_s[spec.job_id] > from_s for spec in own)
        for size in run_s if alive else ():
            run_s[size] += (to_s - from_s) * min(1.0, gpus / (alive * size))
    done = 0.0
    for spec in own:
        mean = sum(rates(spec, truth)) / len(CLUSTER.counts)
        done += whole_work(spec, truth) * min(1.0, run_s[spec.size] * mean / spec.steps)
    return done


@pytest.mark.parametrize("quantum_s", [60, 360])
@pytest.mark.parametrize("until_s", [3_000, 6_000, 12_000, 18_000, 30_000, 50_000])
def test_each_user_has_done_more_than_on_a_fluid_quarter(quantum_s: float, until_s: float) -> None:
    outcome, recorded = played(quantum_s)
    specs, truth = workload(W1C)
    for number in range(USERS):
        own = [spec for spec in specs if spec.user == f"user{number}"]
        mine = {spec.job_id: outcome.isolated_s[spec.job_id] for spec in own}
        due = fluid_work(own, truth, mine, until_s)
        done = sum(whole_work(spec, truth) * recorded.progress(spec.job_id, until_s) for spec in own)
        assert done >= due, f"user{number} has done {done / due:.3f} of it"


def test_the_measure_is_whole_when_all_have_ended() -> None:
    """By then the fluid quarter has done all of everybody's work, and not before."""
    outcome, _ = played(60)
    specs, truth = workload(W1C)
    last_s = max(outcome.isolated_s.values())
    everything = sum(whole_work(spec, truth) for spec in specs)
    for at_s, want in ((last_s + 1, 1.0), (last_s / 2, 0.0)):
        done = 0.0
        for number in range(USERS):
            own = [spec for spec in specs if spec.user == f"user{number}"]
            done += fluid_work(own, truth, {s.job_id: outcome.isolated_s[s.job_id] for s in own}, at_s)
        assert done == pytest.approx(everything) if want else done < everything
