"""A Slurm and nodes in memory, behind the controller's own ports: they obey, fail, forget and repeat."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gandiva_slurm.config import Config
from gandiva_slurm.controller.loop import Controller
from gandiva_slurm.engine.invariants import violations
from gandiva_slurm.model.errors import PeerError, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.snapshot import FINISHED, Association, JobOptions, SlurmJob, SlurmNode, Snapshot
from gandiva_slurm.slurm.accounts import Person
from gandiva_slurm.wire.messages import Hold, NodePlan, NodeReport, Resident, decode_plan, encode
from tests import patience

SLOTS_PER_GPU = 4
DEADLINE_S = 60.0


class FakeSlurm:
    """slurmctld as the port shows it. A started job runs at once."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        self.jobs: dict[int, SlurmJob] = {}
        self.nodes = {name: _node(name, gpus) for name, gpus in nodes.items()}
        self.associations: tuple[Association, ...] = (Association("root", "", "", 1),)
        self.is_down = False
        #: PrivateData, and operators and coordinators as slurmdbd knows them
        self.private, self.known_people = "none", tuple[Person, ...]()
        self.refuse_start = ""
        #: released jobs stay pending while this is set
        self.is_full = False
        self.calls: list[tuple[str, int, str]] = []
        self.on_start: Callable[[int, Sequence[str]], None] = lambda job_id, nodes: None
        self._ids = itertools.count(101)

    def submit(self, user: str, gpus: int = 1, nodes_asked: int = 1, **changes: object) -> int:
        job_id = next(self._ids)
        uid = 1000 + int(user[-1]) if user[-1].isdigit() else 1000
        job = SlurmJob(
            job_id, user, uid, "lab", "gandiva", "PENDING", "JobHeldAdmin", f"job{job_id}",
            memory_mib=1000, submit_s=int(time.time()), node_count=nodes_asked,
            options=JobOptions(gpus=gpus, nodes=nodes_asked),
        )  # fmt: skip
        self.jobs[job_id] = replace(job, **changes)  # type: ignore[arg-type]
        return job_id

    def change(self, job_id: int, **changes: object) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **changes)  # type: ignore[arg-type]

    def finish(self, job_id: int, state: str = "COMPLETED", exit_code: str = "0:0") -> None:
        self.change(job_id, state=state, end_s=int(time.time()), exit_code=exit_code, nodes=())

    def send_back(self, job_id: int) -> None:
        """Somebody requeues a job."""
        job = self.jobs[job_id]
        reason = "JobHeldAdmin" if job.is_held else "BeginTime"
        self.change(job_id, state="PENDING", restart=job.restart + 1, nodes=(), start_s=0, reason=reason)
        self.change(job_id, submit_s=max(int(time.time()), job.submit_s + 1))

    async def snapshot(self, with_associations: bool) -> Snapshot:
        await asyncio.sleep(0)
        self._need()
        shares = self.associations if with_associations else None
        return Snapshot(tuple(self.jobs.values()), tuple(self.nodes.values()), shares)

    async def start(self, job_id: int, nodes: Sequence[str]) -> None:
        self._need()
        self.calls.append(("start", job_id, ",".join(nodes)))
        if self.refuse_start:
            raise SlurmRefused(self.refuse_start)
        self.on_start(job_id, nodes)
        self.change(job_id, priority=1000, reason="")
        if not self.is_full:
            self.run(job_id, *nodes)

    def run(self, job_id: int, *nodes: str) -> None:
        self.change(job_id, state="RUNNING", nodes=nodes, start_s=int(time.time()))

    async def hold(self, job_id: int) -> None:
        self._need()
        self.calls.append(("hold", job_id, self.jobs[job_id].state))
        self.change(job_id, priority=0)

    async def unhold(self, job_id: int) -> None:
        self.calls.append(("unhold", job_id, self.jobs[job_id].state))
        self.change(job_id, priority=1)

    async def requeue_ended(self, job_id: int) -> None:
        self.calls.append(("requeue_ended", job_id, self.jobs[job_id].state))
        self.send_back(job_id)

    async def signal(self, job_id: int, name: str, to_batch: bool) -> None:
        self.calls.append(("signal", job_id, f"{name}{':batch' * to_batch}"))

    async def requeue(self, job_id: int) -> None:
        self._need()
        self.calls.append(("requeue", job_id, self.jobs[job_id].state))
        if self.jobs[job_id].state == "RUNNING":
            self.send_back(job_id)

    async def ping(self) -> bool:
        return not self.is_down

    async def version(self) -> str:
        return "22.05.8"

    async def slurm_config(self) -> Mapping[str, str]:
        self._need()
        return {"ClusterName": "mini", "SlurmdTimeout": "300 sec", "PrivateData": self.private}

    async def people(self) -> tuple[Person, ...]:
        return self.known_people

    def calls_of(self, job_id: int) -> list[str]:
        return [name for name, job, _ in self.calls if job == job_id]

    def _need(self) -> None:
        if self.is_down:
            raise SlurmUnreachable("scontrol: Unable to contact slurm controller (connect failure)")


def _node(name: str, gpus: int) -> SlurmNode:
    slots = gpus * SLOTS_PER_GPU
    return SlurmNode(name, frozenset({"IDLE"}), "v100", slots, 0, 64, 256_000, "", ("gandiva",))


@dataclass
class FakeNode:
    """A gandivad that takes plans and shows every job Slurm runs on it as a resident."""

    name: str
    slurm: FakeSlurm
    boot: str = "boot-1"
    is_down: bool = False
    #: reports come, plans are refused
    is_deaf: bool = False
    plan: NodePlan | None = None
    plans: list[NodePlan] = field(default_factory=list)
    closed: list[Hold] = field(default_factory=list)
    open: list[Hold] = field(default_factory=list)
    #: residents that Slurm no longer knows, by key
    strays: dict[tuple[int, int], Resident] = field(default_factory=dict)
    registered_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    #: by key: how long it has held its GPUs, and when that was reported last
    held_ns: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    #: jobs that are attached: told to leave, they have saved themselves at once
    attached: set[int] = field(default_factory=set)
    #: more of what it has measured of each job
    facts: dict[str, object] = field(default_factory=dict)

    def answer(self, path: str, payload: bytes) -> bytes:
        if self.is_down:
            raise PeerError(f"{self.name}: cannot be reached")
        if path == "/v1/plan" and not self.is_deaf:
            self._take(decode_plan(payload))
        return encode(self._report())

    def planned(self) -> set[tuple[int, int]]:
        return {(job.job_id, job.restart) for job in self.plan.jobs} if self.plan else set()

    def hold(self, job_id: int, seconds: float, user: str = "user1", gpus: tuple[int, ...] = (0,)) -> Hold:
        """Close a hold that ended just now."""
        seq = max((hold.seq for hold in self.closed), default=0) + 1
        t1_ns = time.time_ns()
        hold = Hold(seq, job_id, 0, user, gpus, t1_ns - round(seconds * 1e9), t1_ns, 0)
        self.closed.append(hold)
        return hold

    def _take(self, plan: NodePlan) -> None:
        if self.plan and (plan.epoch_ns, plan.generation) < (self.plan.epoch_ns, self.plan.generation):
            return
        self.plan = plan
        self.plans.append(plan)
        for key in plan.fence:
            self.strays.pop(key, None)

    def _report(self) -> NodeReport:
        residents = [self._resident(job) for job in self.slurm.jobs.values() if self._is_here(job)]
        residents += self.strays.values()
        number = (self.plan.epoch_ns, self.plan.generation, self.plan.gpus) if self.plan else (0, 0, 0)
        acked = self.plan.ack_seq if self.plan and self.plan.ack_boot == self.boot else 0
        holds = (*(hold for hold in self.closed if hold.seq > acked), *self.open)
        return NodeReport(self.name, self.boot, time.time_ns(), *number, tuple(residents), holds, ())

    def _is_here(self, job: SlurmJob) -> bool:
        return job.state == "RUNNING" and self.name in job.nodes

    def _resident(self, job: SlurmJob) -> Resident:
        key = (job.job_id, job.restart)
        jobs = self.plan.jobs if self.plan else ()
        planned = {(item.job_id, item.restart): item.gpus for item in jobs}
        since_ns = self.registered_ns.setdefault(key, time.time_ns())
        told = {(item.job_id, item.restart) for item in jobs if item.is_leaving}
        is_movable = job.job_id in self.attached
        has_left = is_movable and key in told
        is_off = has_left or key in {(item.job_id, item.restart) for item in jobs if item.is_on is False}
        state = "SUSPENDED" if is_off else self.states.get(job.job_id, "RUNNING")
        counts = (since_ns, since_ns, 1, 1, 10, 2.5, 3, 0, 0, 0)
        gpus, held_ns = planned.get(key, ()), self._held(key, state)
        facts = {"is_movable": is_movable, "gpu_ns": held_ns * len(gpus), **self.facts}
        return Resident(*key, state, gpus, *counts, "", "", has_left, **facts)  # type: ignore[arg-type]

    def _held(self, key: tuple[int, int], state: str) -> int:
        """How long a job has held its GPUs here, as far as reports were made."""
        held_ns, since_ns = self.held_ns.get(key, (0, time.monotonic_ns()))
        now_ns = time.monotonic_ns()
        self.held_ns[key] = (held_ns + (now_ns - since_ns if state == "RUNNING" else 0), now_ns)
        return self.held_ns[key][0]


class World:
    """A controller among fakes; `start` may be called again after `kill` or `stop`."""

    def __init__(self, tmp_path: Path, nodes: Mapping[str, int]) -> None:
        self.state_dir = tmp_path / "state"
        self.slurm = FakeSlurm(nodes)
        self.fleet = {name: FakeNode(name, self.slurm) for name in nodes}
        self.slurm.on_start = self._check_start
        self.unplanned_starts: list[int] = []
        #: errors of its own that the controller may count in this test
        self.want_errors = 0
        self.moves: dict[str, object] = {}
        #: what decides, and for how long at a time
        self.policy, self.quantum_s = "gandiva_fair", 5.0
        self.settings: dict[str, object] = {"cycle_s": 0.1, "start_deadline_s": 60, "silent_after_s": 1.0}
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.controller: Controller

    def config(self) -> Config:
        controller = {"host": "127.0.0.1", "state_dir": str(self.state_dir), **self.settings}
        raw = {"cluster": "mini", "partitions": ["gandiva"], "controller": controller, "moves": self.moves}
        raw |= {"quantum_s": self.quantum_s, "policy": self.policy}
        return Config.model_validate(raw)

    async def start(self) -> Controller:
        self.controller = Controller(self.config(), self.slurm, self._send)
        self.controller.invariants = violations
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self.controller.run(self._stop))
        return self.controller

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait_for(self._task, DEADLINE_S * patience.slowness())
            self._task = None

    async def kill(self) -> None:
        """As kill -9 would: wherever it is, nothing more is done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition; fail with what the engine thinks when it does not come."""
        end_s = patience.deadline(DEADLINE_S)
        while not condition():
            if time.monotonic() > end_s:
                records = self.controller.engine.jobs.items()
                jobs = {job_id: (record.state, record.nodes, record.code) for job_id, record in records}
                raise AssertionError(f"never came: {what}; jobs {jobs}; calls {self.slurm.calls}")
            await asyncio.sleep(0.01)

    async def cycles(self, count: int) -> None:
        """Wait for so many whole cycles from now."""
        last = self.controller.status.cycle + count
        await self.until(lambda: self.controller.status.cycle > last, f"cycle {last}")

    def state(self, job_id: int) -> str:
        record = self.controller.engine.jobs.get(job_id)
        return record.state if record else ""

    def runs(self, job_id: int) -> bool:
        return self.state(job_id) == "RUNNING"

    def lives(self, job_id: int) -> bool:
        """True for a job that has GPUs of its own, held or waited for."""
        return self.runs(job_id) or self.state(job_id) == "SUSPENDED"

    def live(self) -> list[int]:
        return [job_id for job_id, job in self.slurm.jobs.items() if job.state not in FINISHED]

    async def _send(self, name: str, path: str, payload: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(0.001)
        return self.fleet[name].answer(path, payload)

    def _check_start(self, job_id: int, nodes: Sequence[str]) -> None:
        key = (job_id, self.slurm.jobs[job_id].restart)
        if any(key not in self.fleet[node].planned() for node in nodes):
            self.unplanned_starts.append(job_id)
