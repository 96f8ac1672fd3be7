"""The whole engine against a small Slurm that starts, ends, requeues, loses nodes and reports, restarts us.

After every cycle the world checks the invariants. At the end all is healed; then every job that can run has
its turns.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gandiva_slurm.engine.state.records import OWNER_HOLD_S, SECOND_NS, EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Plan, PolicySettings, View
from tests.fake_world import FakeWorld
from tests.slow import DRAWN, drawn

#: A move takes four cycles of the small Slurm; a turn is a quantum unless the policy is told what moves take.
QUANTUM_S, MOVE_S = 120, 6
USERS = st.sampled_from(("user1", "user2", "user3"))
Owned = dict[str, dict[str, int]]
VCS = st.sampled_from(("", "a", "b"))
NEVER = {"NoSuchType", "TooManyGpus", "HeldByUser", "WrongNodes", "TooMuchMemory", "TooFewNodes"}


class Unmeasured(gandiva_fair.GandivaFair):
    """The policy, not told what moves take: its turns stay quanta, and fit into a test."""

    def decide(self, view: View) -> Plan:
        for job in view.jobs.values():
            job.restart_ns = 0
        return super().decide(view)


class EngineMachine(RuleBasedStateMachine):
    """Everything that happens to a cluster, in any order."""

    @initialize(
        sizes=st.lists(st.sampled_from((1, 2, 4)), min_size=2, max_size=4),
        is_mixed=st.booleans(),
        gangs=st.lists(st.sampled_from((1, 1, 1, 2)), max_size=12),
        is_dear=st.sampled_from((False, False, True)),
        owned=st.sampled_from(({}, {}, {"a": {"v100": 2}, "b": {"v100": 1, "k80": 2}})),
    )
    def begin(self, sizes: list[int], is_mixed: bool, gangs: list[int], is_dear: bool, owned: Owned) -> None:
        """There are two slots on a GPU, and the odd nodes may be slow ones.

        `is_dear`: the policy is told what moves take by the world's clock, up to a quantum, and cuts its
        turns into slices.
        """
        told = EngineSettings(
            QUANTUM_S * SECOND_NS,
            slots_per_gpu=2,
            move_deadline_ns=60 * SECOND_NS,
            virtual_clusters=owned,
        )
        policy = PolicySettings(told.quantum_ns, restart_ns=MOVE_S * SECOND_NS)
        world = FakeWorld({f"n{n}": gpus for n, gpus in enumerate(sizes)}, told)
        world.make_policy = lambda: gandiva_fair.make(policy) if is_dear else Unmeasured(policy)
        #: all have a turn within the test: turns are short, and a quota leaves nobody without GPUs
        self.all_have_turns = not is_dear and not owned
        world.restart_controller(keep_journal=False)
        self.recorded(world)
        world.types = {f"n{n}": "k80" for n in range(1, len(sizes), 2)} if is_mixed else {}
        world.rates = {"v100": 3.0, "k80": 1.0}
        self.world = world
        for n, gpus in enumerate(gangs):
            job_id = world.submit(f"user{n % 3 + 1}", gpus)
            world.jobs[job_id] = replace(world.jobs[job_id], name=f"model{n % 2}")
        world.run(120, dt_s=10)

    def recorded(self, world: FakeWorld) -> None:
        """Called when the world begins."""

    @rule(
        user=USERS,
        gpus=st.sampled_from((1, 1, 2, 4, 9)),
        elastic=st.sampled_from(("", "", "1-4", "1-2", "2-3")),
        most=st.sampled_from((1, 2)),
        job_class=st.sampled_from(("guaranteed", "guaranteed", "opportunistic")),
        vc=VCS,
    )
    def submit(self, user: str, gpus: int, elastic: str, most: int, job_class: str, vc: str) -> None:
        """Of even tickets: one of a thousandth would have its turn long after the test."""
        more = {"elastic": elastic, "max_nodes": most} if elastic else {}
        self.world.submit(user, gpus, job_class=job_class, vc=vc, **more)

    @rule(user=USERS, nodes=st.sampled_from((2, 2, 3)), each=st.sampled_from((1, 1, 2, 4)), vc=VCS)
    def submit_one_of_several_nodes(self, user: str, nodes: int, each: int, vc: str) -> None:
        self.world.submit(user, nodes * each, span=nodes, vc=vc)

    @rule(user=USERS, kind=st.sampled_from(("hold", "owner", "type", "nodes", "memory", "dependency")))
    def submit_one_that_waits(self, user: str, kind: str) -> None:
        fields: dict[str, dict[str, object]] = {
            "hold": {"user_hold": True},
            "type": {"types": ("h100",)},
            "nodes": {"node_count": 2},
            "memory": {"memory_mib": 10**9},
            "dependency": {"dependency": "afterok:999(unfulfilled)"},
            "owner": {"eligible_s": OWNER_HOLD_S},
        }
        self.world.submit(user, 1, **fields[kind])

    @rule(dt_s=st.sampled_from((0.2, 1.0, 7.0, 61.0)), reports=st.booleans(), twice=st.booleans())
    def cycle(self, dt_s: float, reports: bool, twice: bool) -> None:
        self.world.cycle(dt_s, reports, twice)

    @rule(n=st.integers(2, 6))
    def cycles(self, n: int) -> None:
        self.world.run(n)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), lingers=st.booleans(), how=st.sampled_from(("COMPLETED", "FAILED", "TIMEOUT")))
    def finish(self, data: st.DataObject, lingers: bool, how: str) -> None:
        self.world.finish(data.draw(st.sampled_from(self.world.running())), how, lingers)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.finish(data.draw(st.sampled_from(sorted(self.world.jobs))), "CANCELLED")

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), lingers=st.booleans())
    def requeue(self, data: st.DataObject, lingers: bool) -> None:
        self.world.requeue(data.draw(st.sampled_from(self.world.running())), lingers)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def release_by_an_operator(self, data: st.DataObject) -> None:
        pending = [job.job_id for job in self.world.jobs.values() if job.state == "PENDING"]
        if pending:
            self.world.release(data.draw(st.sampled_from(pending)))

    @rule()
    def dependencies_are_met(self) -> None:
        self.world.dependencies_met = True

    @rule(data=st.data(), live_on=st.booleans(), gives_up=st.booleans())
    def lose_a_node(self, data: st.DataObject, live_on: bool, gives_up: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        if gives_up:
            self.world.lose_node(name, live_on)
        else:
            self.world.down.add(name)

    @precondition(lambda self: self.world.down)
    @rule(data=st.data())
    def restore_a_node(self, data: st.DataObject) -> None:
        self.world.restore_node(data.draw(st.sampled_from(sorted(self.world.down))))

    @rule(data=st.data())
    def a_daemon_falls_silent_or_returns(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        self.world.mute ^= {name}

    @precondition(lambda self: self.world.procs)
    @rule(data=st.data(), state=st.sampled_from(states.SLICED), everywhere=st.booleans())
    def slice_a_job(self, data: st.DataObject, state: str, everywhere: bool) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.world.procs)))
        for where, proc in self.world.procs.items():
            if where == chosen or (everywhere and where[1] == chosen[1]):
                proc.state = state

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), how=st.sampled_from(("rigid", "bad", "one size", "well")))
    def a_job_can_save_itself_or_not(self, data: st.DataObject, how: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.world.jobs)))
        kinds = {"rigid": self.world.rigid, "bad": self.world.saves_badly, "one size": self.world.one_size}
        for kind, jobs in kinds.items():
            (jobs.add if kind == how else jobs.discard)(job_id)

    @rule(data=st.data())
    def the_jobs_of_a_node_end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        for job_id in self.world.running():
            if name in self.world.jobs[job_id].nodes:
                self.world.finish(job_id)

    @rule(n=st.integers(5, 20))
    def minutes_pass(self, n: int) -> None:
        self.world.run(60 * n, dt_s=15)

    @precondition(lambda self: self.world.moving())
    @rule(data=st.data(), what=st.sampled_from(("cancel", "requeue", "home", "target", "restart", "forget")))
    def trouble_meets_a_job_on_the_move(self, data: st.DataObject, what: str) -> None:
        world = self.world
        job_id = data.draw(st.sampled_from(sorted(world.moving())))
        record = world.engine.jobs[job_id]
        if what in ("restart", "forget"):
            world.restart_controller(what == "restart")
        elif what == "cancel" and job_id in world.jobs:
            world.finish(job_id, "CANCELLED")
        elif what == "requeue" and job_id in world.running():
            world.requeue(job_id)
        elif what in ("home", "target"):
            for name in record.nodes if what == "home" else record.target:
                world.lose_node(name)

    @rule(refuse=st.booleans())
    def slurm_requeues_or_not(self, refuse: bool) -> None:
        self.world.refuse_requeues = refuse

    @rule(refuse=st.booleans(), ignore=st.booleans())
    def slurm_turns_stubborn_or_willing(self, refuse: bool, ignore: bool) -> None:
        self.world.refuse_starts, self.world.ignore_starts = refuse, ignore

    @rule(keep_journal=st.booleans())
    def controller_restarts(self, keep_journal: bool) -> None:
        self.world.restart_controller(keep_journal)

    @invariant()
    def no_plan_was_refused(self) -> None:
        """The policy plans what can be, whatever nodes and jobs there are."""
        fault = self.world.engine.decider.fault if hasattr(self, "world") else ""
        assert fault == "", fault

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.refuse_starts = world.ignore_starts = world.refuse_requeues = False
        world.saves_badly, world.rigid, world.mute = set(), set(), set()
        for name in sorted(world.down):
            world.restore_node(name)
        self.dependencies_are_met()
        world.run(1200, dt_s=20)
        before = {job_id: record.held_ns for job_id, record in world.engine.jobs.items()}
        world.run(self._quanta() * QUANTUM_S, dt_s=QUANTUM_S / 12)
        for job_id, record in world.engine.jobs.items():
            most = min((world.nodes[name] for name in record.nodes), default=record.options.gpus_per_node)
            # Slurm may have started it where an operator released it, on a node with too few GPUs.
            is_misplaced = record.options.gpus_per_node > most
            is_exempt = is_misplaced or not self.all_have_turns
            if record.state == states.ENDED or record.code in NEVER or is_exempt:
                continue
            assert record.held_ns > before.get(job_id, 0), f"job {job_id} had no turn\n{record.told()}"
        strays = [where for where in world.procs if where[1].job_id not in world.jobs]
        assert strays == [], "processes of finished jobs are fenced in the end"

    def _quanta(self) -> int:
        """In which all have a turn. A move takes a third of a quantum here, and gangs leave GPUs idle."""
        there, jobs = sum(self.world.nodes.values()), self.world.engine.jobs.values()
        asked = sum(job.options.gpus for job in jobs if job.options.gpus <= there)
        return 50 * (1 + asked // (8 * there))


TestEngineMachine = DRAWN(EngineMachine.TestCase)
TestEngineMachine.settings = settings(
    max_examples=drawn(40), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
