"""Whatever a policy plans within the rules, the simulator keeps its books: random workloads, random plans."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.port import Cluster, Plan, View
from gandiva_slurm.sim.faults import Fault
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.world import Costs
from tests.sim_scenes import ORACLE, S, model_spec

CLUSTER = Cluster([("fast", 2), ("fast", 1), ("slow", 2)])
#: when random plans end and everybody runs in turn, so that all jobs end
CALM_NS = 60 * S


class Restless:
    """Plans by dice: stops, moves, packs, spreads over nodes and types; later one job after the other."""

    name = "restless"

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def decide(self, view: View) -> Plan:
        """Plan anything that is allowed."""
        free = [gpu for gpu in range(view.cluster.size) if gpu not in view.down]
        runs: dict[int, tuple[int, ...]] = {}
        jobs = [*view.jobs.values()]
        if view.now_ns < CALM_NS:
            self._dice.shuffle(jobs)
        for job in jobs:
            if view.now_ns < CALM_NS and self._dice.random() < 0.3:
                continue
            if len(free) < job.size:
                self._pack(job.job_id, job.size, runs)
                continue
            stays = job.gpus and set(job.gpus) <= set(free) and self._dice.random() < 0.5
            gpus = list(job.gpus) if stays else self._dice.sample(free, job.size)
            runs[job.job_id] = tuple(sorted(gpus))
            free = [gpu for gpu in free if gpu not in gpus]
        return Plan(runs, view.now_ns + self._dice.randint(1, 5 * S))

    def _pack(self, job_id: int, size: int, runs: dict[int, tuple[int, ...]]) -> None:
        places = [*runs.values()]
        hosts = [gpus for gpus in places if len(gpus) == size and places.count(gpus) == 1]
        if hosts and self._dice.random() < 0.5:
            runs[job_id] = self._dice.choice(hosts)


jobs = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 40), st.integers(1, 150)), min_size=1, max_size=12
)


@settings(max_examples=60)
@given(
    rows=jobs, seed=st.integers(0, 10**6), costs=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    noise=st.sampled_from([0.0, 0.2]), is_failing=st.booleans(),
)  # fmt: skip
def test_books_are_kept_whatever_is_planned(
    rows: list[tuple[int, int, int]], seed: int, costs: tuple[int, int], noise: float, is_failing: bool
) -> None:
    ordered = sorted(rows, key=lambda row: row[1])
    specs = [model_spec(n, "m", steps, size, at_s) for n, (size, at_s, steps) in enumerate(ordered)]
    faults = [Fault(10 * S, 0, True), Fault(25 * S, 0, False)] if is_failing else []
    scene = Scene(
        specs, CLUSTER, ORACLE, Costs(costs[0] * S // 10, costs[1] * S // 5, noise, seed),
        faults=faults, is_checked=True,
    )  # fmt: skip
    outcome = simulate(scene, Restless(seed))
    books, summary = outcome.books, outcome.summary()
    assert summary["finished"] == len(specs)
    assert summary["users"]["u"]["gpu_s"] == summary["held_gpu_s"] == sum(books.held_halves) / 2 / S
    for row, spec in enumerate(specs):
        assert spec.submit_ns <= books.start_ns[row] <= books.end_ns[row]
        # one GPU alone does 10 steps a second, half a GPU in a pair 8
        fastest_s = spec.steps / (16.0 if spec.size == 1 else 18.0)
        if not noise:
            assert books.held_halves[row] / S >= spec.size * fastest_s * (1 - 1e-9)
    if not noise:
        assert summary["useful_gpu_s"] >= sum(
            spec.size * spec.steps / (10.0 if spec.size == 1 else 18.0) for spec in specs
        ) * (1 - 1e-9)
