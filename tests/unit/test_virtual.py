"""Virtual clusters in gandiva_fair: each on its own cells, idle GPUs lent out and taken back at once."""

from __future__ import annotations

import random

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.port import OPPORTUNISTIC, Cluster, JobView, Plan, PolicySettings, View
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.deal import members_of, spec_for
from gandiva_slurm.policy.virtual_clusters.gangs import WAIT, CellRequest
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs
from tests.sim_scenes import S, ends_s, spec

TWO = Cluster([("v100", 4), ("v100", 4)])


class Watched:
    """gandiva_fair; checks after each plan that no legal request of a virtual cluster waits."""

    name = "watched"

    def __init__(self, restart_s: float = 0) -> None:
        self.policy: GandivaFair = gandiva_fair.make(PolicySettings(60 * S, restart_ns=round(restart_s * S)))
        self.plans: list[tuple[float, Plan]] = []

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        plan = self.policy.decide(view)
        self.plans.append((view.now_ns / S, plan))
        if self.policy.vcs.names:
            self._nothing_legal_waits(view, plan)
        return plan

    def _nothing_legal_waits(self, view: View, plan: Plan) -> None:
        cells = self.policy.vcs.cells
        for job in view.jobs.values():
            is_free = not job.gpus or job.can_migrate
            if job.job_id in plan.runs or job.job_class == OPPORTUNISTIC or not is_free:
                continue
            request = CellRequest(f"{job.job_id}", job.vc, members_of(job.size, 4))
            assert cells.ask(request, may_preempt=False).kind == WAIT, job


def run(specs: list[Spec], cluster: Cluster = TWO, restart_s: float = 0) -> tuple[Outcome, Watched]:
    watched = Watched(restart_s)
    costs = Costs(restart_ns=round(restart_s * S))
    return simulate(Scene(specs, cluster, Homogeneous(), costs, is_checked=True), watched), watched


def test_a_vcs_gang_starts_at_once_whatever_others_do() -> None:
    """Sixteen small jobs of one VC cannot be spread so that the other's whole node is gone."""
    small = [spec(n, 1, length_s=3000, vc="one") for n in range(16)]
    gang = spec(16, 4, at_s=100, length_s=300, vc="two", user="v")
    outcome, watched = run([*small, gang])
    assert outcome.books.start_ns[16] == 100 * S
    assert ends_s(outcome)[16] == 400.0
    gpus = next(plan.runs[16] for at_s, plan in watched.plans if at_s == 100)
    assert len(TWO.hosts_of(gpus)) == 1


def test_idle_gpus_of_another_vc_are_borrowed() -> None:
    small = [spec(n, 1, length_s=600, vc="one") for n in range(8)]
    outcome, _ = run([*small, spec(8, 1, at_s=1000, vc="two")])
    assert ends_s(outcome)[:8] == [600.0] * 8


def test_jobs_that_name_no_vc_are_one_more() -> None:
    named = [spec(n, 1, length_s=1200, vc="one") for n in range(12)]
    others = [spec(n, 1, at_s=60, length_s=600, user="v") for n in range(12, 16)]
    outcome, _ = run([*named, *others])
    starts = [outcome.books.start_ns[row] for row in range(12, 16)]
    assert starts == [60 * S] * 4
    assert ends_s(outcome)[12:] == [660.0] * 4


def test_inside_a_vc_users_take_turns() -> None:
    jobs = [spec(n, 1, length_s=1200, vc="one", user=f"u{n % 2}") for n in range(8)]
    blocker = [spec(n, 1, length_s=5000, vc="two", user="w") for n in range(8, 12)]
    outcome, watched = run([*jobs, *blocker])
    held = {0: 0.0, 1: 0.0}
    for (at_s, plan), (end_s, _) in zip(watched.plans, watched.plans[1:], strict=False):
        for job_id in plan.runs.keys() & set(range(8)):
            held[job_id % 2] += min(end_s, 1800) - min(at_s, 1800)
    assert held[0] == pytest.approx(held[1], rel=0.05)
    assert max(ends_s(outcome)[:8]) == pytest.approx(2400, rel=0.05)


def test_nobody_names_a_vc_and_nothing_changes() -> None:
    _, watched = run([spec(n, 1, length_s=300) for n in range(12)])
    assert not watched.policy.vcs.names


def test_a_gang_larger_than_its_vc_runs_on_what_is_idle() -> None:
    outcome, _ = run([spec(0, 8, length_s=300, vc="one"), spec(1, 1, at_s=100, length_s=60, vc="two")])
    assert ends_s(outcome)[1] == 160.0
    assert ends_s(outcome)[0] > 300.0


def test_a_job_that_borrowed_keeps_its_gpus_when_it_has_a_cell() -> None:
    """Promotion to its VC's own cells moves nobody who runs."""
    jobs = [spec(n, 1, length_s=900, vc="one", at_s=n) for n in range(6)]
    outcome, _ = run([*jobs, spec(6, 1, length_s=100, at_s=6, vc="two")], restart_s=5)
    assert outcome.counts["migrations"] == 0


def test_a_vc_goes_around_a_node_that_is_down() -> None:
    from gandiva_slurm.sim.faults import Fault

    cluster = Cluster([("v100", 4)] * 3)
    jobs = [spec(0, 4, length_s=600, vc="one"), spec(1, 4, length_s=600, vc="two")]
    faults = [Fault(100 * S, 0, True), Fault(2000 * S, 0, False)]
    watched = Watched()
    outcome = simulate(Scene(jobs, cluster, Homogeneous(), Costs(), faults=faults, is_checked=True), watched)
    assert ends_s(outcome) == [600.0, 600.0]


@pytest.mark.parametrize("seed", range(12))
def test_what_a_vc_may_claim_is_served_whatever_happens(seed: int) -> None:
    """By chance: three VCs, gangs, opportunistic and elastic jobs. Every plan is checked."""
    draw = random.Random(seed)
    at_s, specs = 0.0, []
    for number in range(40):
        at_s += draw.expovariate(1 / 60)
        size = draw.choice((1, 1, 2, 4))
        more: dict[str, object] = {"vc": draw.choice(("", "one", "two")), "user": f"u{draw.randint(0, 3)}"}
        if draw.random() < 0.2:
            more["job_class"] = OPPORTUNISTIC
        elif draw.random() < 0.3:
            more |= {"min_size": 1, "max_size": 4}
        specs.append(spec(number, size, round(at_s, 3), draw.uniform(60, 900), **more))
    cluster = Cluster([("v100", 4)] * 3 + [("k80", 4)] * 2)
    outcome, _ = run(specs, cluster, restart_s=draw.choice((0, 2)))
    assert outcome.summary()["finished"] == 40


def test_the_deal_is_that_of_hived() -> None:
    """One configuration for both: equal cells for all VCs."""
    cells = CellCluster(spec_for(TWO, ["", "one"]))
    assert {
        name: sum(len(roots) for roots in vc.roots["v100 node of 4"]) for name, vc in cells.vcs.items()
    } == {
        "": 1,
        "one": 1,
    }


def test_one_that_slurm_started_on_other_gpus_than_it_was_bound_to_stays_where_it_is() -> None:
    """It cannot be moved; its plan would be refused."""
    policy = gandiva_fair.make(PolicySettings(60 * S))
    job = JobView(1, "u", 1, 0, "m", can_migrate=False)
    rates = Homogeneous().rates
    owned = {"a": {"v100": 4}}
    (bound,) = policy.decide(View(0, TWO, {1: job}, rates, vcs=owned)).runs[1]
    job.gpus = (bound + 1,)
    assert policy.decide(View(S, TWO, {1: job}, rates, vcs=owned)).runs[1] == job.gpus
