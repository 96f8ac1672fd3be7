"""A small Slurm with nodes, in virtual time, around the production engine: for state machine and sims.

It keeps its own truth (jobs, processes, plans) and shows it to the engine as the controller would: whole
pictures, reports that may be lost, outcomes of actions. On the way it checks what only the truth can tell:
nothing which runs rightly is fenced, no job is lost, starts go to nodes that are up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.invariants import no_job_is_lost, violations
from gandiva_slurm.engine.lifecycle.own_checkpoint import is_coming_back
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import (
    REQUEUED_ENDED,
    Action,
    Fence,
    HoldAgain,
    Requeue,
    Signal,
    Start,
    Unhold,
)
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import FINISHED, Association, SlurmJob
from gandiva_slurm.policy.port import Policy
from tests.builders import SECOND_NS, a_job, a_node, an_association_tree
from tests.fake_parts import RELEASED, REQUEUE_DELAY_S, runs
from tests.fake_parts import Proc as Proc
from tests.fake_parts import an_engine as an_engine
from tests.fake_parts import as_configured as as_configured
from tests.fake_parts import starts as starts
from tests.fake_words import can_move, told


@dataclass
class FakeWorld:
    """The truth. `nodes` is name -> GPU count."""

    nodes: dict[str, int]
    settings: EngineSettings = field(default_factory=EngineSettings)
    users: tuple[str, ...] = ("user1", "user2", "user3")
    #: makes what decides in the engine; None: as configured
    make_policy: Callable[[], Policy] | None = None
    #: by what that policy is known to be the same in the engine's next life
    told_of_policy: dict[str, object] = field(default_factory=lambda: {"policy": "of this test"})
    now_ns: int = 2_000_000 * SECOND_NS
    #: what `as_configured` is told that a move costs
    move_ns: int = 60 * SECOND_NS
    #: why a node cannot restore a job from its image, once it has been requeued, by job and node
    unfit: dict[tuple[int, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.settings, self.leader())
        #: how the engine is called; a recorder is put here
        self.handle = Engine.handle
        self.jobs: dict[int, SlurmJob] = {}
        self.procs: dict[tuple[str, JobKey], Proc] = {}
        self.plans: dict[str, dict[JobKey, tuple[int, ...]]] = {name: {} for name in self.nodes}
        self.leaving: dict[str, set[JobKey]] = {name: set() for name in self.nodes}
        self.down: set[str] = set()
        self.mute: set[str] = set()
        #: why an operator drains a node, by its name
        self.drained: dict[str, str] = {}
        self.refuse_starts = False
        self.ignore_starts = False
        #: jobs that cannot be moved, whose saving fails, and whether Slurm refuses to requeue
        self.rigid: set[int] = set()
        self.saves_badly: set[int] = set()
        #: what nodes say saves a job that has a name for it
        self.frameworks: dict[int, str] = {}
        #: jobs that go on from images of GPU programs
        self.keeps_type: set[int] = set()
        #: jobs that know no way to be moved once they have begun
        self.wayless: set[int] = set()
        #: jobs that can go on with as many ranks as they have only
        self.one_size: set[int] = set()
        self.refuse_requeues = False
        #: jobs that were sent a signal, what they make of it, and whether Slurm refuses to send it
        self.signals: list[tuple[int, str]] = []
        self.on_signal: Callable[[int], None] = lambda job_id: None
        self.refuse_signals = False
        self.lose_unholds = False
        #: Slurm knows jobs that failed for a while
        self.remembers_failed = False
        #: so many plans pass until a job's turn comes, in which it saves itself
        self.turns_away = 0
        #: mini-batches a second alone on a GPU, by GPU type
        self.rates: dict[str, float] = {}
        #: the same of single jobs that differ from the rest
        self.own_rates: dict[int, dict[str, float]] = {}
        #: the same beside another on the same GPU, of a policy's pairs; 0: not measured
        self.packed_rate = 0.0
        #: memory of each GPU, and by job: the most its tensors took of it, and how often it asked for more
        self.card_bytes = 1 << 40
        self.peaks: dict[int, int] = {}
        self.ooms: dict[int, int] = {}
        #: by job: seconds for which its GPUs were idle while it held them; when its newest file was written
        self.idle, self.saved_s = dict[int, int](), dict[int, int]()
        #: GPU types of nodes that have another than the rest
        self.types: dict[str, str] = {}
        self.wanted_nodes: dict[int, tuple[str, ...]] = {}
        #: GPUs that Slurm's record of a job asks for, in all
        self.asked_gpus: dict[int, int] = {}
        self.outcomes: list[ev.Event] = []
        self.told: dict[str, set[JobKey]] = {name: set() for name in self.nodes}
        #: a node's word on held GPU time is of now (0), of the step before (1), or is missing; both words
        self.late_steps: Callable[[], int] = lambda: 0
        self.held: list[dict[str, ev.HeldTold]] = []
        self.next_id = 1
        self.tree: tuple[Association, ...] = an_association_tree(**dict.fromkeys(self.users, 1))
        self.fresh = True
        #: dependencies are met; Slurm looks only at those of jobs that nobody holds
        self.dependencies_met = False

    # what users and operators do

    def submit(self, user: str = "user1", gpus: int = 1, **fields: object) -> int:
        """Submit a job; it is held by the submission filter."""
        job_id, self.next_id = self.next_id, self.next_id + 1
        submit_s = self.now_ns // SECOND_NS
        self.jobs[job_id] = a_job(job_id, user, gpus, submit_s=submit_s, **fields)
        return job_id

    def finish(self, job_id: int, state: str = "COMPLETED", lingers: bool = False) -> None:
        """End a job; its processes are gone with it, or not yet."""
        job = self.jobs[job_id]
        self.jobs[job_id] = replace(job, state=state, end_s=self.now_ns // SECOND_NS, nodes=job.nodes)
        if not lingers:
            self._kill(job_id)

    def requeue(self, job_id: int, lingers: bool = False) -> None:
        """Requeue a job, as its owner or Slurm itself would."""
        job = self.jobs[job_id]
        if not lingers:
            self._kill(job_id)
        begin_s = self.now_ns // SECOND_NS + REQUEUE_DELAY_S
        again = {"restart": job.restart + 1, "nodes": (), "eligible_s": begin_s}
        self.jobs[job_id] = replace(job, state="PENDING", reason="BeginTime", **again)

    def lose_node(self, name: str, processes_live_on: bool = False) -> None:
        """A node's slurmd dies; Slurm requeues its jobs."""
        self.down.add(name)
        for job in list(self.jobs.values()):
            if name in job.nodes and job.state == "RUNNING":
                self.requeue(job.job_id, lingers=processes_live_on)

    def restore_node(self, name: str) -> None:
        """The node registers again; its slurmd kills what should not be there."""
        self.down.discard(name)
        for where, key in [*self.procs]:
            job = self.jobs.get(key.job_id)
            if where == name and not runs(job, key, name):
                del self.procs[where, key]

    def release(self, job_id: int) -> None:
        """Somebody with the right to do so releases a held job."""
        self.jobs[job_id] = replace(self.jobs[job_id], priority=RELEASED, reason="Priority", eligible_s=0)

    # the controller

    def leader(self) -> Leader:
        """Return what decides."""
        make = self.make_policy or as_configured(self.settings, self.move_ns).make
        return Leader(make, self.told_of_policy)

    def restart_controller(self, keep_journal: bool) -> None:
        """A new controller: state from the journal or from nothing; all pictures are new to it."""
        data = json.loads(json.dumps(self.engine.to_json()))
        settings, leader = self.settings, self.leader()
        self.engine = Engine.from_json(settings, data, leader) if keep_journal else Engine(settings, leader)
        self.fresh = True
        self.outcomes = []

    def cycle(self, dt_s: float = 1.0, reports: bool = True, twice: bool = False) -> list[Action]:
        """One cycle of the controller, then what Slurm and the nodes make of its actions."""
        actions = self._decide(dt_s, reports, twice)
        self._publish()
        self.outcomes = [self._obey(action) for action in actions]
        self._schedule()
        return actions

    def _decide(self, dt_s: float, reports: bool = True, twice: bool = False) -> list[Action]:
        """What the controller decides after so long."""
        self._pass_time(dt_s)
        events = [*self.outcomes, *self._news()]
        if reports:
            events += self._reports()
        if twice:
            events += [event for event in events if not isinstance(event, ev.ActionDone)]
        actions = self.handle(self.engine, [*events, ev.CycleTick()], self.now_ns)
        assert violations(self.engine) == []
        live = {job.job_id: job.restart for job in self.jobs.values() if job.state not in FINISHED}
        # of those that come back after their end Slurm may have forgotten some
        live |= {key: self.engine.jobs[key].job.restart for key in self._back()}
        assert no_job_is_lost(self.engine.state, live) == []
        return actions

    def _pass_time(self, dt_s: float) -> None:
        self.now_ns += round(dt_s * SECOND_NS)
        for (name, key), proc in self.procs.items():
            gpus = proc.gpus or self.plans[name].get(key, ())  # one that was found running has the plan's
            proc.held_ns += proc.is_on * len(gpus) * round(dt_s * SECOND_NS)

    def run(self, seconds: float, dt_s: float = 1.0) -> list[Action]:
        """Cycle for so long; return all actions."""
        return [action for _ in range(round(seconds / dt_s)) for action in self.cycle(dt_s)]

    def state_of(self, job_id: int) -> str:
        """The engine's word on a job."""
        return self.engine.jobs[job_id].state

    def code_of(self, job_id: int) -> str:
        """The code of the engine's reason for a job."""
        return self.engine.jobs[job_id].code

    def running(self) -> list[int]:
        """Jobs Slurm shows running."""
        return [job.job_id for job in self.jobs.values() if job.state == "RUNNING"]

    def moving(self) -> set[int]:
        """The jobs on the move."""
        jobs = self.engine.state.jobs.items()
        return {job_id for job_id, record in jobs if record.travels.is_moving}

    def _news(self) -> list[ev.Event]:
        """Everything Slurm shows; finished jobs once, then Slurm forgets them."""
        events: list[ev.Event] = [ev.SharesSeen(self.tree)]
        for name, gpus in self.nodes.items():
            state = {"DOWN"} if name in self.down else {"IDLE", *(["DRAIN"] if name in self.drained else [])}
            slots = self.settings.slots_per_gpu
            node = a_node(name, gpus, slots, state=frozenset(state))
            own = {"gpu_type": self.types.get(name, node.gpu_type), "reason": self.drained.get(name, "")}
            events.append(ev.NodeSeen(replace(node, **own)))
            events.append(ev.DaemonSeen(name, name not in self.mute))
        for job in [*self.jobs.values()]:
            if job.state in FINISHED:
                events.append(ev.JobGone(job.job_id, job.state, job.end_s, job.exit_code, job.restart))
                if not self.remembers_failed or job.state not in REQUEUED_ENDED:
                    del self.jobs[job.job_id]
            else:
                events.append(ev.JobSeen(job))
        events += [ev.JobGone(job_id, "", 0, "") for job_id in self._back() if job_id not in self.jobs]
        if self.fresh:
            self.fresh = False
            gone = [job_id for job_id, rec in self.engine.jobs.items() if rec.state != states.ENDED]
            events += [ev.JobGone(job_id, "", 0, "") for job_id in gone if job_id not in self.jobs]
        return events

    def _back(self) -> list[int]:
        """Jobs that have ended in Slurm, and are to be requeued all the same."""
        known = self.engine.jobs.items()
        return [key for key, one in known if one.travels.forgotten_ns or is_coming_back(one, one.job.state)]

    def _reports(self) -> list[ev.Event]:
        events: list[ev.Event] = []
        self.held = [*self.held, self._held()][-2:]
        for name in self.nodes:
            if name in self.mute:
                continue
            here = {key: proc for (where, key), proc in self.procs.items() if where == name}
            for key, proc in sorted(here.items()):
                events.append(told(self, name, key, proc))
            late = self.late_steps()
            events += [held[name] for held in self.held[::-1][late : late + 1] if name in held]
            known = {key for where, key in self.engine.state.sightings if where == name}
            events += [ev.ResidentGone(name, key) for key in sorted(known - here.keys())]
        return events

    def _held(self) -> dict[str, ev.HeldTold]:
        """What each node would say now of the GPU time held there."""
        held: dict[str, list[tuple[JobKey, int]]] = {name: [] for name in self.nodes}
        for (name, key), proc in sorted(self.procs.items()):
            held.get(name, []).append((key, proc.held_ns))
        return {name: ev.HeldTold(name, tuple(each), self.now_ns) for name, each in held.items()}

    def _save(self, name: str) -> None:
        """Who is to leave saves itself and stays parked; who is not any more goes on."""
        for (where, key), proc in self.procs.items():
            if where != name:
                continue
            is_able = can_move(self, name, key, proc) and key.job_id not in self.saves_badly
            proc.told_to_leave = proc.told_to_leave + 1 if key in self.leaving[name] else 0
            leaves = proc.told_to_leave > self.turns_away and (is_able or proc.has_left)
            if leaves or proc.has_left:
                proc.state, proc.has_left = (states.SUSPENDED if leaves else states.RUNNING), leaves

    def _publish(self) -> None:
        """Plans reach every node that answers, before any start; fenced processes are stopped."""
        for name in self.nodes:
            if name in self.mute:
                continue
            plan = self.engine.plan_jobs(name)
            self.plans[name] = {place.key: place.gpus for place in plan}
            self.leaving[name] = {place.key for place in plan if place.is_leaving}
            self._save(name)
            for place in plan:
                if (proc := self.procs.get((name, place.key))) is not None:
                    proc.follow(bool(place.is_on), place.own_save_s > 0)
            for key in self.engine.fences(name):
                job = self.jobs.get(key.job_id)
                assert not runs(job, key, name), f"{key} runs on {name} and was fenced"
                self.procs.pop((name, key), None)

    def _obey(self, action: Action) -> ev.Event:
        job = self.jobs.get(action.key.job_id)
        if job is None or job.restart != action.key.restart or isinstance(action, Fence):
            return ev.ActionDone(action.action_id, "Invalid job id specified" if job is None else "")
        if isinstance(action, HoldAgain):
            reason = "JobHeldAdmin" if job.state == "PENDING" else job.reason
            self.jobs[job.job_id] = replace(job, priority=0, reason=reason)
        if isinstance(action, Signal):
            assert job.state == "RUNNING", f"{action.key} is {job.state} and signalled"
            self.jobs[job.job_id] = replace(job, priority=0)
            self.signals.append((job.job_id, action.name))
            if self.refuse_signals:
                return ev.ActionDone(action.action_id, "Job/step already completing or completed")
            self.on_signal(job.job_id)
        if isinstance(action, Unhold):
            assert job.state == "RUNNING", f"{action.key} is {job.state}: Slurm would start it"
            self.jobs[job.job_id] = replace(job, priority=0 if self.lose_unholds else 1)
        if isinstance(action, Requeue):
            self._check_saved(job, action)
            if self.refuse_requeues:
                return ev.ActionDone(action.action_id, "Requested operation is presently disabled")
            if job.state == "RUNNING" or action.has_ended:
                self.requeue(job.job_id)
        if isinstance(action, Start):
            assert job.state == "PENDING" and job.is_held, f"start of a job that is {job.state}"
            assert self.down.isdisjoint(action.nodes), f"start on {action.nodes}, {self.down} are down"
            self._check_plans(action)
            if self.refuse_starts:
                return ev.ActionDone(action.action_id, "Requested node configuration is not available")
            self.wanted_nodes[job.job_id] = action.nodes
            self.asked_gpus[job.job_id] = action.gpus or job.options.gpus
            self.jobs[job.job_id] = replace(job, node_count=len(action.nodes))
            self.release(job.job_id)
        return ev.ActionDone(action.action_id)

    def _schedule(self) -> None:
        """Slurm starts what is released, where it was told to."""
        for job in [*self.jobs.values()]:
            is_early = self.now_ns < job.eligible_s * SECOND_NS
            if job.state != "PENDING" or job.is_held or self.ignore_starts or is_early:
                continue
            if job.dependency and not self.dependencies_met:
                self.jobs[job.job_id] = replace(job, reason="Dependency")
                continue
            nodes = self.wanted_nodes.get(job.job_id) or tuple(sorted(self.nodes)[: job.node_count])
            if len(nodes) < job.node_count or not self.down.isdisjoint(nodes):
                continue
            start_s = self.now_ns // SECOND_NS
            job = replace(job, state="RUNNING", nodes=nodes, start_s=start_s, reason="None")
            self.jobs[job.job_id] = replace(job, dependency="")
            key = JobKey(job.job_id, job.restart)
            for node in nodes:
                self.procs[node, key] = Proc(self.plans[node].get(key, ()))
            planned = sum(len(self.procs[node, key].gpus) for node in nodes)
            asked = self.asked_gpus.get(job.job_id, planned)  # whom an operator released was never started
            assert planned in (0, asked), f"{key} has {planned} GPUs, not what it asks"

    def _check_plans(self, start: Start) -> None:
        """Whoever answers knows his part, and all of it, before Slurm is told."""
        for node, gpus in start.places:
            if node not in self.mute:
                assert self.plans[node].get(start.key) == gpus, f"{start.key} is not planned on {node}"

    def _check_saved(self, job: SlurmJob, action: Requeue) -> None:
        """No job is requeued for a move before it has saved itself, or ended to be requeued."""
        key, options = action.key, job.options
        assert not action.has_ended or job.state in REQUEUED_ENDED, f"{key} is {job.state}"
        if action.has_ended or (options and (options.saves_by == "self" or options.own_files)):
            return
        here = [self.procs[node, key] for node in job.nodes if (node, key) in self.procs]
        assert all(proc.has_left for proc in here), f"{key} is requeued and has not saved itself"

    def _kill(self, job_id: int) -> None:
        for where, key in [*self.procs]:
            if key.job_id == job_id:
                del self.procs[where, key]
