"""Elastic jobs in the simulator: idle GPUs are used, and whoever waits has them back at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, Plan, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous, Oracle, Truth
from gandiva_slurm.sim.world import Costs
from tests.policy_world import could_start
from tests.sim_scenes import S, ends_s, spec

QUANTUM_S = 60
NODE = Cluster([("v100", 4)])


class Seen:
    """gandiva_fair, and what it planned when."""

    name = "seen"

    def __init__(self, restart_s: float = 0) -> None:
        self._policy = gandiva_fair.make(PolicySettings(QUANTUM_S * S, restart_ns=round(restart_s * S)))
        self.plans: list[tuple[float, Plan]] = []
        self._could_grow: list[bool] = []

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        plan = self._policy.decide(view)
        self._nobody_waits_for_what_was_lent(view, plan)
        self.plans.append((view.now_ns / S, plan))
        self._could_grow.append(any(number % 2 for number in view.jobs))
        return plan

    def _nobody_waits_for_what_was_lent(self, view: View, plan: Plan) -> None:
        """Take from all what they have beyond their size, from others what is less: nobody else would fit."""
        asked = {job_id: gpus[: view.jobs[job_id].size] for job_id, gpus in plan.runs.items()}
        small = {job_id for job_id, gpus in plan.runs.items() if len(gpus) < view.jobs[job_id].size}
        rest = Plan({job_id: gpus for job_id, gpus in asked.items() if job_id not in small})
        assert not set(could_start(view, rest)) - small

    def sizes(self, job_id: int) -> list[tuple[float, int]]:
        """When a job had another number of GPUs than before, and how many."""
        told = [(at_s, len(plan.runs.get(job_id, ()))) for at_s, plan in self.plans]
        return [now for before, now in zip([(0.0, 0), *told], told, strict=False) if before[1] != now[1]]

    def idle_gpu_s(self, gpus: int) -> float:
        """GPU seconds in which GPUs were idle while a job of odd number (an elastic one) was there."""
        idle = 0.0
        for (at_s, plan), could, (end_s, _) in zip(
            self.plans, self._could_grow, self.plans[1:], strict=False
        ):
            used = len({gpu for held in plan.runs.values() for gpu in held})
            idle += (gpus - used) * (end_s - at_s) * could
        return idle


def run(
    specs: Sequence[Spec], cluster: Cluster = NODE, restart_s: float = 0, truth: Truth | None = None
) -> tuple[Outcome, Seen]:
    """Run with every invariant checked."""
    seen = Seen(restart_s)
    costs = Costs(restart_ns=round(restart_s * S))
    return simulate(Scene(specs, cluster, truth or Homogeneous(), costs, is_checked=True), seen), seen


def elastic(job_id: int, size: int, least: int, most: int, **more: object) -> Spec:
    return spec(job_id, size, min_size=least, max_size=most, **more)


def test_it_grows_after_a_turn_of_idleness_and_not_before() -> None:
    outcome, seen = run([elastic(0, 2, 1, 4, length_s=600)])
    assert seen.sizes(0)[:2] == [(0.0, 2), (60.0, 4)]
    assert ends_s(outcome) == [60 + 540 / 2]
    assert (outcome.counts["grows"], outcome.counts["shrinks"]) == (1, 0)


def test_it_gives_back_at_once_when_somebody_comes() -> None:
    outcome, seen = run([elastic(0, 2, 1, 4, length_s=600), spec(1, 2, at_s=200, length_s=30)])
    assert seen.sizes(0)[:3] == [(0.0, 2), (60.0, 4), (200.0, 2)]
    assert outcome.books.start_ns[1] == 200 * S
    assert outcome.counts["shrinks"] == 1
    assert any("the rest is needed" in plan.notes.get(0, "") for _, plan in seen.plans)


def test_it_gives_back_no_more_than_is_needed() -> None:
    _, seen = run([elastic(0, 2, 1, 4, length_s=600), spec(1, 1, at_s=200, length_s=300)])
    assert seen.sizes(0)[:3] == [(0.0, 2), (60.0, 4), (200.0, 3)]


def test_nobody_grows_into_what_somebody_waits_for() -> None:
    """Three GPUs are too few for the gang that waits; they are kept for it all the same."""
    _, seen = run([elastic(0, 1, 1, 4, length_s=600), spec(1, 4, length_s=600, user="v")])
    assert {size for _, size in seen.sizes(0)} <= {0, 1}


def test_only_flagged_jobs_grow_and_only_on_their_node() -> None:
    two = Cluster([("v100", 4), ("v100", 4)])
    _, seen = run([spec(0, 2, length_s=600), elastic(1, 2, 2, 8, length_s=600)], two)
    assert {size for _, size in seen.sizes(0)} == {0, 2} or {size for _, size in seen.sizes(0)} == {2}
    _, seen = run([elastic(1, 2, 2, 8, length_s=600)], two)
    assert max(size for _, size in seen.sizes(1)) == 4


def test_who_cannot_be_moved_is_not_resized() -> None:
    outcome, _ = run([elastic(0, 2, 1, 4, length_s=600, can_migrate=False)])
    assert outcome.counts["grows"] == 0


def test_it_starts_small_where_its_size_does_not_fit() -> None:
    jobs = [spec(0, 3, length_s=50), elastic(1, 4, 1, 4, at_s=1, length_s=100, user="v")]
    outcome, seen = run(jobs)
    assert outcome.books.start_ns[1] == 1 * S
    assert seen.sizes(1)[0] == (1.0, 1)
    assert min(size for _, size in seen.sizes(1)[:-1]) == 1, "never below its least"


def test_it_waits_where_not_even_its_least_fits() -> None:
    outcome, _ = run([spec(0, 3, length_s=50), elastic(1, 4, 2, 4, at_s=1, length_s=100)])
    assert outcome.books.start_ns[1] > 1 * S


def test_each_time_it_has_to_give_back_it_waits_longer() -> None:
    """Somebody comes every three minutes for half a minute: an hour of it makes few resizes."""
    visits = [spec(n, 2, at_s=180 * n, length_s=30, user="v") for n in range(1, 40)]
    outcome, seen = run([elastic(0, 2, 2, 4, length_s=9000), *visits])
    until_s = 180 * 39
    resizes = [at_s for at_s, _ in seen.sizes(0) if at_s < until_s]
    assert 1 <= outcome.counts["shrinks"] <= 4
    assert len(resizes) <= 16
    starts = [outcome.books.start_ns[row] - one.submit_ns for row, one in enumerate(outcome.books.specs)]
    assert max(starts) == 0, "nobody waited"


def test_more_gpus_that_bring_nothing_are_given_back_and_not_taken_again() -> None:
    """Rates of the table: four GPUs are slower than two."""
    table = Oracle({"v100": {("m", 1): {None: 5.0}, ("m", 2): {None: 10.0}, ("m", 4): {None: 6.0}}})
    job = elastic(0, 2, 2, 4, length_s=0, model="m", steps=20_000)
    again = elastic(1, 2, 2, 4, at_s=5000, length_s=0, model="m", steps=20_000)
    outcome, seen = run([job, again], truth=table)
    tried = [at_s for at_s, size in seen.sizes(0) if size == 4]
    assert len(tried) == 1, "tried once"
    assert not [at_s for at_s, size in seen.sizes(1) if size == 4], "and known from then on"
    assert max(ends_s(outcome)) < 5000 + 2600


def crowd(seed: int, is_elastic: bool) -> list[Spec]:
    """Jobs that come by chance, half of them elastic, on a cluster that is half idle in between."""
    draw = random.Random(seed)
    at_s, specs = 0.0, []
    for number in range(60):
        at_s += draw.expovariate(1 / 400)
        size = draw.choice((1, 2, 4))
        one = spec(number, size, round(at_s, 3), draw.uniform(600, 3600), user=f"user{number % 3}")
        specs.append(replace(one, min_size=1, max_size=4) if is_elastic and number % 2 else one)
    return specs


def later_s(seed: int) -> list[float]:
    """How much later jobs start where others grow; idle GPUs are used, and jobs end sooner."""
    cluster = Cluster([("v100", 4)] * 3)
    (rigid, alone), (grown, seen) = (run(crowd(seed, flag), cluster, restart_s=5) for flag in (False, True))
    jct = {name: sum(one.jct_s()) / 60 for name, one in (("rigid", rigid), ("grown", grown))}
    idle = {"rigid": alone.idle_gpu_s(12), "grown": seen.idle_gpu_s(12)}
    print(f"\nmean JCT {jct['rigid']:.0f} s, elastic {jct['grown']:.0f} s; idle GPU s {idle}")
    assert jct["grown"] < 0.95 * jct["rigid"]
    assert idle["grown"] < 0.9 * idle["rigid"]
    assert grown.counts["grows"] > 0 and grown.counts["shrinks"] > 0
    later = sorted(
        (grown.books.start_ns[row] - rigid.books.start_ns[row]) / S for row in range(len(rigid.books.specs))
    )
    print(f"starts: {sum(later) / len(later):.1f} s later on the mean, at most {later[-1]:.0f} s")
    assert later[len(later) * 4 // 5] <= QUANTUM_S
    return later


def test_idle_gpus_are_used_and_others_start_no_later() -> None:
    """One that ran on more GPUs has had more of its user's share: who is next may change, not the mean."""
    assert sum(map(sum, map(later_s, range(4)))) <= 0
