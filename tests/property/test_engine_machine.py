"""The whole engine against a small Slurm that starts, ends, requeues, loses nodes and reports, restarts us.

After every cycle the world checks the invariants. At the end all is healed; then every job that can run runs,
and once settled nothing acts any more.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gandiva_slurm.engine.state import OWNER_HOLD_S, SECOND_NS, EngineSettings, EngineState
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from tests.fake_world import ruled
from tests.slow import drawn

USERS = st.sampled_from(("user1", "user2", "user3"))
Owned = dict[str, dict[str, int]]
VCS = st.sampled_from(("", "a", "b"))
NEVER = {"NoSuchType", "TooManyGpus", "HeldByUser", "WrongNodes", "TooMuchMemory", "TooFewNodes"}


class EngineMachine(RuleBasedStateMachine):
    """Everything that happens to a cluster, in any order."""

    @initialize(
        sizes=st.lists(st.sampled_from((1, 2, 4)), min_size=2, max_size=4),
        at_once=st.integers(1, 3),
        is_mixed=st.booleans(),
        gangs=st.lists(st.sampled_from((1, 1, 1, 2)), max_size=12),
        owned=st.sampled_from(({}, {}, {"a": {"v100": 2}, "b": {"v100": 1, "k80": 2}})),
    )
    def begin(
        self, sizes: list[int], at_once: int, is_mixed: bool, gangs: list[int], owned: Owned
    ) -> None:
        """Jobs move after a minute, there are two slots on a GPU, and the odd nodes may be slow ones."""
        short = {
            "min_run_ns": 60 * SECOND_NS,
            "move_deadline_ns": 60 * SECOND_NS,
            "restart_cost_ns": SECOND_NS,
        }
        settings = EngineSettings(slots_per_gpu=2, concurrent_moves=at_once, moves_per_hour=4, **short)
        settings = replace(settings, virtual_clusters=owned)
        self.world = ruled({f"n{n}": gpus for n, gpus in enumerate(sizes)}, settings)
        self.world.types = {f"n{n}": "k80" for n in range(1, len(sizes), 2)} if is_mixed else {}
        self.world.rates = {"v100": 3.0, "k80": 1.0}
        for n, gpus in enumerate(gangs):
            job_id = self.world.submit(f"user{n % 3 + 1}", gpus)
            self.world.jobs[job_id] = replace(self.world.jobs[job_id], name=f"model{n % 2}")
        self.world.run(120, dt_s=10)

    @rule(
        user=USERS,
        gpus=st.sampled_from((1, 1, 2, 4, 9)),
        tickets=st.sampled_from((1, 100, 1000)),
        elastic=st.sampled_from(("", "", "1-4", "1-2", "2-3")),
        job_class=st.sampled_from(("guaranteed", "guaranteed", "opportunistic")),
        vc=VCS,
    )
    def submit(self, user: str, gpus: int, tickets: int, elastic: str, job_class: str, vc: str) -> None:
        self.world.submit(user, gpus, tickets=tickets, elastic=elastic, job_class=job_class, vc=vc)

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

    @rule()
    def same_events_give_the_same_actions(self) -> None:
        """Two copies of the engine, one through JSON, act alike."""
        world, engine = self.world, self.world.engine
        before = copy.deepcopy(engine.state)
        again = EngineState.from_json(engine.to_json())
        again.has_read_slurm = before.has_read_slurm
        events = [ev.CycleTick()]
        first = engine.handle(events, world.now_ns)
        want, engine.state = engine.to_json(), again
        assert engine.handle(events, world.now_ns) == first
        assert engine.to_json() == want
        engine.state = before

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.refuse_starts = world.ignore_starts = world.refuse_requeues = False
        world.saves_badly = set()
        world.mute = set()
        for name in sorted(world.down):
            world.restore_node(name)
        self.dependencies_are_met()
        world.run(400, dt_s=10)
        self._all_run_that_can()
        world.settle()
        assert not world.moving()

    def _all_run_that_can(self) -> None:
        for job_id, record in self.world.engine.jobs.items():
            # who is on the move now has arrived when all is settled
            if record.state == states.ENDED or record.code in NEVER or record.travels.is_moving:
                continue
            if record.state == states.HELD:
                assert record.code == "NoFreeSlots", f"{job_id} waits: {record.reason}\n{record.told()}"
            else:
                assert record.state in states.SLICED
                most = min(self.world.nodes[name] for name in record.nodes)
                # an operator may have had Slurm start it where it has slots enough, and too few GPUs
                is_too_large = record.options.gpus_per_node > most
                assert record.is_bound or is_too_large, f"{job_id} runs on no GPU"
        strays = [where for where in self.world.procs if where[1].job_id not in self.world.jobs]
        assert strays == [], "processes of finished jobs are fenced in the end"


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=drawn(40), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
