"""Virtual time: what happens next, and the policy's answer to it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gandiva_slurm.policy.port import Plan, Policy
from gandiva_slurm.sim.faults import Fault
from gandiva_slurm.sim.job import RATE, Job, Spec
from gandiva_slurm.sim.parts import carried_out, missed_hosts
from gandiva_slurm.sim.world import PolicyError, World

#: So often in a row a policy may be woken while nothing runs and nothing is to come.
_MOST_IDLE_WAKES = 10_000

#: Told after each moment: the plan, and the jobs that ended in it.
Watch = Callable[[Plan, Sequence[Job]], None]


class Loop:
    """Runs a workload to its end."""

    def __init__(
        self, world: World, policy: Policy, specs: Iterable[Spec], watch: Watch, faults: Iterable[Fault] = ()
    ) -> None:
        """Take jobs in order of submission."""
        self._world, self._policy, self._watch = world, policy, watch
        self._specs: Iterator[Spec] = iter(specs)
        self._next = next(self._specs, None)
        self._faults: Iterator[Fault] = iter(faults)
        self._fault = next(self._faults, None)
        #: (when, job, version): an end that is foretold
        self._ends: list[tuple[int, int, int]] = []
        #: (when, job, priority): what owners are going to say
        self._wishes: list[tuple[int, int, int]] = []
        self._wake_ns: int | None = None
        #: a plan under way, when it will be carried out, and whether something has happened since it was made
        self._due: tuple[int, Plan] | None = None
        self._is_news = False
        #: what was carried out last
        self._in_force = Plan({})
        self._idle_wakes = 0
        self.events = 0
        self._lengths: dict[tuple[str, int, int, tuple[str, ...]], float] = {}

    def run(self) -> None:
        """Go on until every job has ended. PolicyError: the policy leaves jobs waiting for ever."""
        while self._next is not None or self._world.jobs:
            self._step(self._next_ns())

    def _next_ns(self) -> int:
        while self._ends and self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        while self._wishes and self._wishes[0][1] not in self._world.jobs:
            heapq.heappop(self._wishes)
        times = [
            self._ends[0][0] if self._ends else None,
            self._next.submit_ns if self._next else None,
            self._wake_ns,
            self._wishes[0][0] if self._wishes else None,
            self._fault.at_ns if self._fault else None,
            self._due[0] if self._due else None,
        ]
        known = [at_ns for at_ns in times if at_ns is not None]
        self._watch_for_standstill(bool(known))
        return min(known)

    def _watch_for_standstill(self, is_anything_to_come: bool) -> None:
        if self._world.running or self._next is not None:
            self._idle_wakes = 0
        elif self._fault is None or not self._world.down:
            self._idle_wakes += 1
        if not is_anything_to_come or self._idle_wakes > _MOST_IDLE_WAKES:
            waiting = [job.spec.name for job in self._world.jobs.values()]
            down = ", and nodes are down for good" if self._world.down else ""
            raise PolicyError(
                f"{self._policy.name} leaves {len(waiting)} jobs waiting for ever at "
                f"{self._world.now_ns / 1e9:.3f} s, the first is job {waiting[0] if waiting else None}{down}"
            )

    def _stale(self, end: tuple[int, int, int]) -> bool:
        job = self._world.jobs.get(end[1])
        return job is None or job.version != end[2]

    def _step(self, now_ns: int) -> None:
        world = self._world
        world.now_ns = now_ns
        before = self.events
        ended = self._end_jobs(now_ns)
        self._break_nodes(now_ns)
        self._admit_jobs(now_ns)
        self._hear_owners(now_ns)
        if self._wake_ns is not None and now_ns >= self._wake_ns:
            self.events += 1
        if self._due is None:
            self._ask()
        else:
            self._is_news |= self.events > before
        if self._due is not None and now_ns >= self._due[0]:
            self._carry_out(self._due[1])
            if self._is_news or (self._wake_ns is not None and self._wake_ns <= now_ns):
                self._ask()
        else:
            self._in_force = self._what_is_left(self._in_force)
        self._watch(self._in_force, ended)

    def _ask(self) -> None:
        world, now_ns = self._world, self._world.now_ns
        plan = self._policy.decide(world.view())
        if plan.wake_ns is not None and plan.wake_ns <= now_ns:
            name, at_s = self._policy.name, now_ns / 1e9
            raise PolicyError(f"{name} asks at {at_s:.3f} s to be woken at {plan.wake_ns / 1e9:.3f} s")
        self._due = (now_ns + world.costs.round_ns, plan)
        self._wake_ns, self._is_news = None, False

    def _carry_out(self, plan: Plan) -> None:
        """Carry out a plan, but for jobs that have ended, or lost their nodes, since it was made."""
        world, self._due = self._world, None
        self._wake_ns = plan.wake_ns
        if world.costs.round_ns:
            plan = self._what_is_left(plan)
        if world.costs.missed:
            missed = missed_hosts(world.cluster, world.costs.missed, world.costs.seed, world.now_ns)
            plan = replace(plan, runs=carried_out(plan.runs, world.running, world.cluster, missed))
        for job in world.apply(plan, self._policy.name):
            self._foretell(job)
        if world.refused:
            runs = {job_id: gpus for job_id, gpus in plan.runs.items() if job_id not in world.refused}
            plan = replace(plan, runs=runs)
        self._in_force = plan

    def _what_is_left(self, plan: Plan) -> Plan:
        live, down = self._world.jobs, self._world.down
        left = {job_id: gpus for job_id, gpus in plan.runs.items() if job_id in live}
        return replace(plan, runs={job_id: gpus for job_id, gpus in left.items() if down.isdisjoint(gpus)})

    def _end_jobs(self, now_ns: int) -> list[Job]:
        ended = []
        while self._ends and self._ends[0][0] <= now_ns:
            end = heapq.heappop(self._ends)
            if self._stale(end):
                continue
            job = self._world.jobs[end[1]]
            ended.append(job)
            self.events += 1
            for mate in self._world.finish(job):
                self._foretell(mate)
        return ended

    def _break_nodes(self, now_ns: int) -> None:
        while self._fault is not None and self._fault.at_ns <= now_ns:
            self._world.set_host(self._fault.host, self._fault.is_down)
            self.events += 1
            self._fault = next(self._faults, None)

    def _admit_jobs(self, now_ns: int) -> None:
        while self._next is not None and self._next.submit_ns <= now_ns:
            spec = self._next
            self._world.admit(Job(spec, self._world.truth.work(spec), self._length_ns(spec), self._world))
            for after_ns, priority in spec.priorities:
                heapq.heappush(self._wishes, (spec.submit_ns + after_ns, spec.job_id, priority))
            self.events += 1
            self._next = next(self._specs, None)

    def _hear_owners(self, now_ns: int) -> None:
        while self._wishes and self._wishes[0][0] <= now_ns:
            _, job_id, priority = heapq.heappop(self._wishes)
            job = self._world.jobs.get(job_id)
            if job is not None:
                job.priority = priority
                self.events += 1
                if self._world.tell:
                    self._world.tell("priority", job, ())

    def _foretell(self, job: Job) -> None:
        end_ns = job.end_ns()
        if end_ns is not None:
            heapq.heappush(self._ends, (end_ns, job.job_id, job.version))

    def _length_ns(self, spec: Spec) -> int | None:
        """Run time alone on its best type, on one node where it fits on one."""
        if spec.length_ns:
            return spec.length_ns
        key = (spec.model, spec.size, spec.size, spec.gpu_types)
        if key not in self._lengths:
            self._lengths[key] = best_rate(self._world, spec)
        return -(-self._world.truth.work(spec) // max(1, round(self._lengths[key] * RATE)))


def best_rate(world: World, spec: Spec) -> float:
    """Steps a second of a job alone on its best GPU type, on one node where one is large enough."""
    widest: dict[str, int] = {}
    for host in world.cluster.hosts:
        widest[host.gpu_type] = max(len(host.gpus), widest.get(host.gpu_type, 0))
    return max(
        (
            world.truth.alone(spec, spec.size, name, spec.size <= width)
            for name, width in widest.items()
            if not spec.gpu_types or name in spec.gpu_types
        ),
        default=0.0,
    )
