"""The engine led by a policy, against the small Slurm of test_engine_machine.

After every cycle the world checks the invariants, those of plans among them. At the end all is healed; then
every job that can run has its turns.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from gandiva_slurm.engine.state import SECOND_NS, EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Plan, PolicySettings, View
from tests.fake_world import FakeWorld
from tests.property.test_engine_machine import NEVER, USERS, EngineMachine
from tests.slow import drawn

#: A move takes four cycles of the small Slurm; a turn is a quantum unless the policy is told what moves take.
QUANTUM_S, MOVE_S = 120, 6


class Unmeasured(gandiva_fair.GandivaFair):
    """The policy, not told what moves take: its turns stay quanta, and fit into a test."""

    def decide(self, view: View) -> Plan:
        for job in view.jobs.values():
            job.restart_ns = 0
        return super().decide(view)


class LedMachine(EngineMachine):
    """The same cluster; gandiva_fair decides."""

    @initialize(
        sizes=st.lists(st.sampled_from((1, 2, 4)), min_size=2, max_size=4),
        is_mixed=st.booleans(),
        gangs=st.lists(st.sampled_from((1, 1, 1, 2)), max_size=12),
        is_dear=st.sampled_from((False, False, True)),
    )
    def begin(self, sizes: list[int], is_mixed: bool, gangs: list[int], is_dear: bool) -> None:
        """There are two slots on a GPU, and the odd nodes may be slow ones.

        `is_dear`: the policy is told what moves take by the world's clock, up to a quantum, and cuts its
        turns into slices.
        """
        told = EngineSettings(
            QUANTUM_S * SECOND_NS,
            slots_per_gpu=2,
            move_deadline_ns=60 * SECOND_NS,
            restart_cost_ns=MOVE_S * SECOND_NS,
        )
        policy = PolicySettings(told.quantum_ns, restart_ns=told.restart_cost_ns)
        world = FakeWorld({f"n{n}": gpus for n, gpus in enumerate(sizes)}, told)
        world.make_policy = lambda: gandiva_fair.make(policy) if is_dear else Unmeasured(policy)
        self.is_dear = is_dear
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
        job_class=st.sampled_from(("guaranteed", "guaranteed", "opportunistic")),
    )
    def submit(self, user: str, gpus: int, elastic: str, job_class: str) -> None:
        """Of even tickets: one of a thousandth would have its turn long after the test."""
        self.world.submit(user, gpus, elastic=elastic, job_class=job_class)

    @rule()
    def same_events_give_the_same_actions(self) -> None:
        """A policy's own state is not in the engine's JSON: it begins anew (see `controller_restarts`)."""

    @invariant()
    def no_plan_was_refused(self) -> None:
        """The policy plans what can be, whatever nodes and jobs there are."""
        decider = self.world.engine.decider if hasattr(self, "world") else None
        assert decider is None or decider.fault == "", decider.fault

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
            if record.state == states.ENDED or record.code in NEVER or is_misplaced or self.is_dear:
                continue
            assert record.held_ns > before.get(job_id, 0), f"job {job_id} had no turn\n{record.told()}"
        strays = [where for where in world.procs if where[1].job_id not in world.jobs]
        assert strays == [], "processes of finished jobs are fenced in the end"

    def _quanta(self) -> int:
        """In which all have a turn. A move takes a third of a quantum here, and gangs leave GPUs idle."""
        there, jobs = sum(self.world.nodes.values()), self.world.engine.jobs.values()
        asked = sum(job.options.gpus for job in jobs if job.options.gpus <= there)
        return 50 * (1 + asked // (8 * there))


TestLedMachine = LedMachine.TestCase
TestLedMachine.settings = settings(
    max_examples=drawn(40), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
