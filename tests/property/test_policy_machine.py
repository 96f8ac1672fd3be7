"""gandiva_fair in the simulated cluster, whatever happens: arrivals, failures, priorities, classes, VCs.

After every step: each GPU has one job or one pair, gangs are whole, what cannot move has not moved, nobody is
lost, nobody waits for what is idle or was only lent, and a second policy asked the same says the same. Where
slots and host memory are bounded: no more live on a GPU or node than it holds.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.memory import kept, recalled
from gandiva_slurm.policy.packing.classes import KEEPS
from gandiva_slurm.policy.port import GUARANTEED, OPPORTUNISTIC, Cluster, Plan, Policy, PolicySettings, View
from gandiva_slurm.policy.virtual_clusters.deal import members_of
from gandiva_slurm.policy.virtual_clusters.gangs import WAIT, CellRequest
from gandiva_slurm.sim.checks import gangs_are_whole, no_gpu_given_twice
from gandiva_slurm.sim.job import Job, Spec
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.world import Costs, World
from tests.policy_world import could_start
from tests.sim_scenes import S

#: DEAR_S: what a move costs where turns are cut into slices.
QUANTUM_S, DEAR_S = 60, 30
SHAPE, PARTS = [("v100", 4), ("v100", 4), ("k80", 4)], [(2, 4), (2, 4), (4, 4)]


def _table(speed: float) -> dict[Any, Any]:
    """`a` and `b` pack well, `a` and `c` badly; gangs of four are no faster than those of two for `c`."""
    pairs = {("a", "b"): (0.99, 0.7), ("b", "b"): (0.7, 0.7), ("a", "a"): (0.6, 0.6), ("a", "c"): (0.5, 0.6)}
    both = {**pairs, **{(b, a): (y, x) for (a, b), (x, y) in pairs.items()}}
    table: dict[Any, Any] = {}
    for model in "abc":
        shared = {
            (other, 1): [speed * mine, speed * theirs]
            for (one, other), (mine, theirs) in both.items()
            if one == model
        }
        table[model, 1] = {None: speed, **shared}
        table[model, 2] = {None: 1.9 * speed}
        table[model, 4] = {None: (1.9 if model == "c" else 3.6) * speed}
    return table


TRUTH = Oracle({
    "v100": _table(2.0), "k80": _table(1.0),
    "v100_unconsolidated": _table(1.2), "k80_unconsolidated": _table(0.5),
})  # fmt: skip
#: Kinds of jobs; a wide one is elastic, and may have two nodes.
KINDS = (
    "plain", "plain", "elastic", "wide", "opportunistic", "vc", "bound", "cell", "unpacked", "confined",
)  # fmt: skip


class PolicyMachine(RuleBasedStateMachine):
    """One cluster; time passes by rule."""

    #: jobs that a GPU has room for, and a node's memory; 0: any
    slots, memory_mib = 0, 0
    #: what the site says of virtual clusters
    owned: ClassVar[dict[str, dict[str, int]]] = {}

    @initialize(restart_s=st.sampled_from((0, 0, 3, DEAR_S)))
    def begin(self, restart_s: int) -> None:
        """Start an empty cluster."""
        self.cluster = Cluster(SHAPE, PARTS, [self.memory_mib] * len(SHAPE))
        self.world = World(self.cluster, TRUTH, Costs(0, restart_s * S, slots=self.slots))
        told = PolicySettings(QUANTUM_S * S, restart_ns=restart_s * S)
        self.policy: GandivaFair = gandiva_fair.make(told)
        self.twin: Policy = gandiva_fair.make(told)
        self.is_dear = restart_s == DEAR_S
        self.plan = Plan({})
        self.arrived = self.ended = 0
        self.decide()

    # -- what happens

    @rule(
        size=st.sampled_from((1, 1, 1, 2, 4)),
        minutes=st.integers(1, 20),
        user=st.sampled_from("uvw"),
        model=st.sampled_from("abc"),
        kind=st.sampled_from(KINDS),
        vc=st.sampled_from(("one", "two")),
    )
    def arrive(self, size: int, minutes: int, user: str, model: str, kind: str, vc: str) -> None:
        """A job comes."""
        if len(self.world.jobs) >= 14:
            return
        more: dict[str, Any] = {
            "elastic": {"min_size": 1, "max_size": 4},
            "wide": {"min_size": 1, "max_size": 8, "cell": "node"},
            "opportunistic": {"job_class": OPPORTUNISTIC},
            "vc": {"vc": vc},
            "bound": {"can_migrate": False},
            "cell": {"cell": "switch" if size < 4 else "node"},
            "unpacked": {"can_pack": False},
            "confined": {"hosts": frozenset({0, 2} if size < 4 else {1})},
        }.get(kind, {})
        number = self.arrived
        more["memory_mib"] = self.memory_mib and 10 * size
        spec = Spec(number, str(number), user, size, self.world.now_ns, 0, 60 * minutes, model, **more)
        comer = Job(spec, TRUTH.work(spec), None, self.world)
        comer.max_nodes = 1 + (kind == "wide")
        self.world.admit(comer)
        self.arrived += 1
        self.decide()

    @rule(seconds=st.sampled_from((1, 7, 30, 60, 300, 1200)))
    def wait(self, seconds: int) -> None:
        """Time passes; jobs end, and the policy is asked when it wanted to be."""
        self.advance(self.world.now_ns + seconds * S)

    @precondition(lambda self: len(self.world.down) < 8)
    @rule(host=st.integers(0, 2))
    def break_node(self, host: int) -> None:
        """A node fails."""
        if self.world.down.isdisjoint(self.cluster.hosts[host].gpus):
            self.world.set_host(host, True)
            self.decide()

    @precondition(lambda self: self.world.down)
    @rule()
    def mend_node(self) -> None:
        """The first node that is down is back."""
        self.world.set_host(self.cluster.host_of[min(self.world.down)], False)
        self.decide()

    @precondition(lambda self: self.world.jobs)
    @rule(pick=st.integers(0, 13), priority=st.sampled_from((0, 10, 50, 100)))
    def change_priority(self, pick: int, priority: int) -> None:
        """An owner changes the priority of a job."""
        jobs = [*self.world.jobs.values()]
        jobs[pick % len(jobs)].priority = priority
        self.decide()

    @precondition(lambda self: self.world.jobs)
    @rule(pick=st.integers(0, 13), vc=st.sampled_from(("", "one", "three")))
    def change_vc(self, pick: int, vc: str) -> None:
        """A job goes to another virtual cluster."""
        jobs = [*self.world.jobs.values()]
        jobs[pick % len(jobs)].vc = vc
        self.decide()

    # -- the world

    def advance(self, until_ns: int) -> None:
        """Go from one thing that happens to the next."""
        while True:
            ends = [end_ns for job in self.world.running.values() if (end_ns := job.end_ns()) is not None]
            wakes = [self.plan.wake_ns] if self.plan.wake_ns is not None else []
            now_ns = min([*ends, *wakes, until_ns])
            self.world.now_ns = now_ns
            for job in [job for job in self.world.running.values() if job.end_ns() == now_ns]:
                self.world.finish(job)
                self.ended += 1
            self.decide()
            if now_ns >= until_ns:
                return

    def decide(self) -> None:
        """Ask both policies, and make the plan true; PolicyError: it cannot be."""
        world = self.world
        view = world.view()
        view.vcs = self.owned
        before = {job_id: (job.gpus, job.is_running) for job_id, job in world.jobs.items()}
        self.plan = self.policy.decide(view)
        twin = recalled(kept(self.twin), self.twin, world.cluster)
        assert twin.decide(view) == self.plan, "the same events, the same plan, also after a restart"
        self.twin = twin
        assert before == {job_id: (job.gpus, job.is_running) for job_id, job in world.jobs.items()}
        for job_id, gpus in self.plan.runs.items():
            job = world.jobs[job_id]
            assert job.can_migrate or not job.gpus or job.gpus == gpus, "who cannot move has not moved"
        world.apply(self.plan)
        came = {job_id: gpus for job_id, gpus in self.plan.runs.items() if job_id not in world.refused}
        self.plan = Plan(came, self.plan.wake_ns)
        self.view = View(world.now_ns, world.cluster, dict(world.jobs), copy.copy(world.rates), world.down)

    # -- what must hold

    @invariant()
    def gpus_are_whole_and_single(self) -> None:
        """One job or one pair a GPU; gangs whole, on GPUs that are up and of a type they accept."""
        world = self.world
        assert no_gpu_given_twice(self.plan.runs) == []
        assert gangs_are_whole(self.plan.runs, world.jobs, world.cluster, world.down) == []
        assert {job.job_id: job.gpus for job in world.jobs.values() if job.is_running} == self.plan.runs

    @invariant()
    def nobody_is_lost(self) -> None:
        """Whoever came is live or has ended."""
        assert self.arrived == len(self.world.jobs) + self.ended

    @invariant()
    def nobody_waits_for_what_is_idle_or_lent(self) -> None:
        """Growth is given back, and jobs that started small make way, before any job waits.

        Where moves are dear a parked job waits on its own GPUs until a turn begins.
        """
        jobs = self.view.jobs
        small = {job_id for job_id, gpus in self.plan.runs.items() if len(gpus) < jobs[job_id].size}
        asked = {n: gpus[: jobs[n].size] for n, gpus in self.plan.runs.items() if n not in small}
        waiting = set(could_start(self.view, Plan(asked))) - small
        stays = {job.job_id for job in jobs.values() if not job.can_migrate or (self.is_dear and job.gpus)}
        confined = {job.job_id for job in jobs.values() if job.cell or job.hosts is not None}
        assert not waiting - stays - confined, self.plan

    @invariant()
    def guaranteed_jobs_keep_their_speed(self) -> None:
        """Beside an opportunistic job nobody guaranteed is slower than he may be, once that is known."""
        by_gpus: dict[tuple[int, ...], list[int]] = {}
        for job_id, gpus in self.plan.runs.items():
            by_gpus.setdefault(gpus, []).append(job_id)
        for gpus, pair in by_gpus.items():
            classes = {self.world.jobs[job_id].job_class: self.world.jobs[job_id] for job_id in pair}
            if len(pair) < 2 or len(classes) < 2 or self.policy.vcs.names:
                continue
            host, guest = classes[GUARANTEED], classes[OPPORTUNISTIC]
            if self.policy.is_guaranteed(guest):
                continue
            gpu_type = self.cluster.type_of[gpus[0]]
            known = self.world.rates.packed(host.model, guest.model, gpu_type)
            alone = self.world.rates.alone(host.model, 1, gpu_type)
            assert known is None or alone is None or known[0] >= KEEPS * alone

    @invariant()
    def legal_requests_are_served(self) -> None:
        """No guaranteed job waits for which its virtual cluster has cells."""
        vcs = self.policy.vcs
        if not vcs.names:
            return
        for job in self.world.jobs.values():
            may_come = (job.can_migrate or not job.gpus) and job.vc in vcs.names
            if job.is_running or job.cell or job.job_class != GUARANTEED or not may_come:
                continue
            request = CellRequest(str(job.job_id), job.vc, members_of(job.size, 4))
            hosts = [host for n, host in enumerate(self.cluster.hosts) if job.hosts and n not in job.hosts]
            closed = {(host.name, n) for host in hosts for n in range(len(host.gpus))}
            assert vcs.cells.ask(request, may_preempt=False, closed=closed).kind == WAIT, job

    def teardown(self) -> None:
        """Everybody comes to an end, once all nodes are back."""
        if not hasattr(self, "world"):
            return
        for host in self.cluster.hosts:
            if not self.world.down.isdisjoint(host.gpus):
                self.world.set_host(self.cluster.host_of[host.gpus[0]], False)
        self.decide()
        until_ns = self.world.now_ns
        for _ in range(200):
            if not self.world.jobs:
                return
            until_ns += 3600 * S
            self.advance(until_ns)
        assert not self.world.jobs, "somebody never ends"


class FullMachine(PolicyMachine):
    """The same with little room. Jobs that can go to few places wait there, whatever is idle elsewhere."""

    slots, memory_mib = 2, 60

    def nobody_waits_for_what_is_idle_or_lent(self) -> None:
        """There may be no room for a job on what is idle."""

    def legal_requests_are_served(self) -> None:
        """Nor on what its virtual cluster owns."""

    @invariant()
    def no_more_live_there_than_there_is_room(self) -> None:
        """Jobs on a GPU keep to its slots, those on a node to its memory, running or parked."""
        for index, host in enumerate(self.cluster.hosts):
            there = [job for job in self.world.jobs.values() if index in self.cluster.hosts_of(job.gpus)]
            assert sum(job.memory_mib for job in there) <= self.memory_mib
            assert all(sum(gpu in job.gpus for job in there) <= self.slots for gpu in host.gpus)


class OwnedMachine(PolicyMachine):
    """The same where the site says what virtual clusters own; nobody owns a name that it does not say."""

    owned: ClassVar[dict[str, dict[str, int]]] = {"one": {"v100": 5}, "two": {"v100": 2, "k80": 2}}

    @rule(owned=st.sampled_from(({"one": {"v100": 8}}, {"two": {"k80": 4}, "one": {"v100": 9}}, {})))
    def deal_anew(self, owned: dict[str, dict[str, int]]) -> None:
        """The site says something else."""
        self.owned = owned  # type: ignore[misc]
        self.decide()


OwnedMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestOwnedMachine = OwnedMachine.TestCase
FullMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestFullMachine = FullMachine.TestCase
PolicyMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestPolicyMachine = PolicyMachine.TestCase


def test_a_gang_that_lost_its_type_in_mid_turn_goes_on_another() -> None:
    """A node fails; one that cannot be saved begins again on the gang's GPUs, and others are idle."""
    machine = PolicyMachine()
    machine.begin(restart_s=3)
    told = {"minutes": 1, "model": "a", "user": "u", "vc": "one"}
    machine.arrive(kind="bound", size=1, **told)
    machine.arrive(kind="plain", size=4, **told)
    machine.break_node(host=0)
    machine.nobody_waits_for_what_is_idle_or_lent()
    assert len(machine.plan.runs[1]) == 4
    machine.teardown()
