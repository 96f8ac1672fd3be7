"""What the guards against cheats cost those who do not cheat: two honest trainings take turns on one GPU.

In turn with and without: trusted jobs are neither frozen nor in a control group of their own, as before there
were guards. Both in one run, for the machine's speed drifts. Needs root.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace

import pytest

from tests.bench.limits import judge, table  # noqa: F401  (prints what was judged)
from tests.node.harness import HERE, NodeHarness, a_planned_job
from tests.skips import NO_ROOT

HONEST = [str(HERE / "scripts/cheat.py"), "train"]
ROUNDS = int(os.environ.get("GANDIVA_BENCH_ROUNDS", "5"))
QUANTUM_S, TURNS, WARM = 0.5, 20, 2
JOBS = (1, 2)
TICK_S = 0.01
#: What freezing may add to half of the parks and resumes, ms; and to one in a hundred, on a machine that does
#: other things as well. How much of the work without guards is done at the least.
MOST_MS, MOST_P99_MS, LEAST_WORK = 5.0, 25.0, 0.98


@dataclass
class Cost:
    """Milliseconds of starts, parks and resumes, and the part of the time in which somebody worked."""

    start_ms: list[float] = field(default_factory=list)
    park_ms: list[float] = field(default_factory=list)
    resume_ms: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)

    def start(self, node: NodeHarness) -> None:
        """Start both jobs: the first has its GPU at once, and works as soon as it may."""
        begin_ns = time.monotonic_ns()
        for job in JOBS:
            node.start_job(job, HONEST)
        first_ns = node.wait(lambda: ticks_of(node, JOBS[0])[0], 60)
        self.start_ms.append((first_ns - begin_ns) / 1e6)

    def add(self, node: NodeHarness) -> None:
        """Look at a number of turns of both jobs."""
        node.wait(lambda: all(node.resident(job).suspends >= WARM for job in JOBS), 60)
        begin_ns, done = time.monotonic_ns(), [node.resident(job).suspends for job in JOBS]
        goals = dict(zip(JOBS, (count + TURNS for count in done), strict=True))
        node.wait(lambda: all(node.resident(job).suspends >= goals[job] for job in JOBS), 120)
        end_ns = time.monotonic_ns()
        events = [event for event in node.events() if begin_ns <= event["mono_ns"] < end_ns]
        self.park_ms += [event["over_ms"] for event in events if event["event"] == "release"]
        self.resume_ms += [event["resume_ms"] for event in events if event["event"] == "running"]
        ticks = sum(begin_ns <= when < end_ns for job in JOBS for when in ticks_of(node, job))
        self.work.append(ticks * TICK_S / ((end_ns - begin_ns) / 1e9))


def ticks_of(node: NodeHarness, job: int) -> list[int]:
    """When a job has worked, monotonic ns, ten milliseconds each."""
    data = (node.out / f"work.{job}").read_bytes()
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]


def part(values: list[float], hundredths: int) -> float:
    """A percentile."""
    return sorted(values)[min(len(values) - 1, len(values) * hundredths // 100)]


@pytest.mark.timeout(900)
def test_guards_cost_the_honest_next_to_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    costs = {"without": Cost(), "with": Cost()}
    for number in range(2 * ROUNDS):
        name = ("without", "with")[number % 2]
        with NodeHarness(quantum_s=QUANTUM_S) as node:
            jobs = [a_planned_job(job, f"user{job}", (0,)) for job in JOBS]
            node.plan(*[replace(job, is_trusted=name == "without") for job in jobs])
            costs[name].start(node)
            costs[name].add(node)
    for name, cost in costs.items():
        for what, values in (("park", cost.park_ms), ("resume", cost.resume_ms)):
            for hundredths in (50, 99):
                judge(f"{what} {name} guards, p{hundredths}, ms", part(values, hundredths), 0, "{:.1f}")
        judge(f"start {name} guards, p50, ms", part(cost.start_ms, 50), 0, "{:.0f}")
        judge(f"work {name} guards, part of the time", sum(cost.work) / len(cost.work), 0, "{:.3f}")
    plain, guarded = costs["without"], costs["with"]
    for what, one, other in (
        ("park", plain.park_ms, guarded.park_ms),
        ("resume", plain.resume_ms, guarded.resume_ms),
    ):
        judge(f"{what}: added by guards, p50, ms", part(other, 50) - part(one, 50), MOST_MS, "{:.1f}")
        judge(f"{what}: added by guards, p99, ms", part(other, 99) - part(one, 99), MOST_P99_MS, "{:.1f}")
    lost = 1 - (sum(guarded.work) / len(guarded.work)) / (sum(plain.work) / len(plain.work))
    judge("work lost by guards, part of it", lost, 1 - LEAST_WORK, "{:.3f}")
