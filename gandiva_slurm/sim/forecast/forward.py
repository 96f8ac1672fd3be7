"""The engine of gandivactld, as it stands, told at once what it will hear if nothing new happens.

Slurm does what it is asked, nodes obey plans at once, jobs end when the work that was drawn for them is done.
Nobody submits, cancels or breaks anything. The engine is the one that was written down: its policy, its books
and what is on the way are those of this moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.held import held_ns
from gandiva_slurm.engine.state.records import JobRecord, Placement
from gandiva_slurm.engine.state.sizes import gpus_of
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, HoldAgain, Note, Requeue, SetTimeLimit, Signal, Start
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.sim.forecast.speeds import speed
from gandiva_slurm.sim.slurm_nodes import Nodes
from gandiva_slurm.sim.slurm_world import requeued

_S = 10**9
#: After it did something gandivactld looks at Slurm again so soon, and nothing is asked of it more often.
REST_NS = _S // 5
#: The further a run has come, the longer its quanta, by twos: one is this part of the way at most. What is
#: far off is told in hours, and turns of seconds that lie there are one like the other.
PART_OF_WAY = 100
#: Where a run's time is short they grow with that, too: this many times by its end.
STAGES = 20
#: Cycles in a row in which nobody holds a GPU, after which those that wait are taken to wait for ever.
MOST_IDLE = 300


@dataclass
class Course:
    """What became of one job in one run; times of the engine's clock in ns, 0: it did not come to that."""

    #: it gets GPUs next: now, where it holds some
    turn_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0
    #: why it waits at the end of the run, where it never started
    why: str = ""


@dataclass
class Run:
    """One run forward: the jobs' courses, and how far it came."""

    courses: dict[int, Course]
    reached_ns: int
    cycles: int = 0
    #: nothing is left that could change anything
    is_over: bool = False


class Forward:
    """One run: the state and its loop."""

    def __init__(
        self,
        engine: Engine,
        work_ns: Mapping[int, int],
        now_ns: int,
        load_ns: int = 0,
        coarser: Callable[[int], Leader] | None = None,
    ) -> None:
        """`engine` as it was written down, which is used up.

        `work_ns`: by job, how long it is still to hold its GPUs, all of them, alone and where it is now (or
        where it will be first); `load_ns`: how long each new start holds them before it gets anything done;
        `coarser`: makes the policy with quanta of that length, in ns.
        """
        self.engine, self._now_ns, self._load_ns = engine, now_ns, load_ns
        self._began_ns, self._coarser, self._stage = now_ns, coarser, 0
        self._left: dict[int, float] = {job_id: float(left_ns) for job_id, left_ns in work_ns.items()}
        self._jobs = {
            job_id: record.job for job_id, record in engine.jobs.items() if record.state != states.ENDED
        }
        self._load: dict[JobKey, float] = {}
        self._types: dict[int, str] = {}
        self._news: list[ev.Event] = []
        self._told: dict[tuple[str, JobKey], ev.ResidentSeen] = {}
        self._parked_ns: dict[JobKey, int] = {}
        self._nodes = Nodes()
        self.run = Run({job_id: Course() for job_id in self._jobs}, now_ns)
        for job_id, record in engine.jobs.items():
            course = self.run.courses.get(job_id)
            if course is not None and record.travels.first_run_ns:
                course.start_ns = record.travels.first_run_ns - engine.state.skew_ns
                course.turn_ns = now_ns if job_id in engine.state.on else 0
        self._news = [event for record in engine.jobs.values() for event in self._on_the_way(record)]
        self._follow()

    def _on_the_way(self, record: JobRecord) -> Iterator[ev.Event]:
        """What Slurm was asked for and has not shown yet: it does it."""
        job = record.job
        if record.state == states.STARTING and job.state == "PENDING":
            yield from self._start(job, record.nodes)
        elif record.state in states.WAITING and record.hold_asked_ns and not job.is_held:
            yield self._see(replace(job, priority=0, reason="JobHeldAdmin"))
        elif record.state == states.CHECKPOINTING and record.travels.asked_ns and job.state != "PENDING":
            yield self._see(requeued(job))

    def go(self, until_ns: int, time_used: Callable[[], float] = lambda: 0.0) -> Run:
        """Run until then, until nothing is left to come, or until the time for it is used: 1."""
        idle = 0
        while self._now_ns < until_ns and (used := time_used()) < 1:
            self._coarsen(used)
            self._step()
            next_ns = self._next_ns()
            idle = 0 if self._nodes.on else idle + 1
            if next_ns is None or idle > MOST_IDLE:
                self.run.is_over = True
                break
            self._pass_until(min(next_ns, until_ns))
        self.run.reached_ns = self._now_ns
        for job_id, course in self.run.courses.items():
            record = self.engine.jobs.get(job_id)
            course.why = record.text if record is not None and not course.start_ns else ""
        return self.run

    def _coarsen(self, used: float) -> None:
        """Let quanta grow with the way that lies behind, and with the time that is used."""
        quantum_ns = self.engine.settings.quantum_ns
        is_far = self._now_ns - self._began_ns >= 2 * PART_OF_WAY * quantum_ns
        if self._coarser is None or not (is_far or used * STAGES >= self._stage + 1):
            return
        self._stage += 1
        self.engine.settings = replace(self.engine.settings, quantum_ns=2 * quantum_ns)
        self.engine.lead(self._coarser(2 * quantum_ns))

    def _step(self) -> None:
        """One cycle of gandivactld's, and what comes of it at once."""
        self.run.cycles += 1
        events = [*self._news, *self._reports(), ev.CycleTick()]
        actions = self.engine.handle(events, self._now_ns)
        self._news = [event for action in actions for event in self._obey(action)]
        self._follow()

    def _follow(self) -> None:
        nodes, was_on = self._nodes, set(self._nodes.on)
        nodes.follow({name: self._running(name) for name in self.engine.nodes})
        nodes.obey()
        for key in nodes.on - was_on:
            course = self.run.courses[key.job_id]
            course.turn_ns = course.turn_ns or self._now_ns

    def _running(self, node: str) -> tuple[Placement, ...]:
        """The node's plan, as far as Slurm runs it."""
        return tuple(place for place in self.engine.plan_jobs(node) if self._is_running(place.key))

    def _is_running(self, key: JobKey) -> bool:
        job = self._jobs.get(key.job_id)
        return job is not None and job.restart == key.restart and job.state not in ("PENDING", "COMPLETING")

    # what Slurm does

    def _obey(self, action: Action) -> Iterator[ev.Event]:
        if isinstance(action, Note):
            return
        yield ev.ActionDone(action.action_id)
        job = self._jobs.get(action.key.job_id)
        if job is None or job.restart != action.key.restart:
            return
        if isinstance(action, Start):
            yield from self._start(job, action.nodes)
        elif isinstance(action, HoldAgain):
            yield self._see(replace(job, priority=0, reason="JobHeldAdmin"))
        elif isinstance(action, SetTimeLimit):
            yield self._see(replace(job, time_limit_s=60 * action.minutes))
        elif isinstance(action, Requeue | Signal) and job.state != "PENDING":
            self._parked_ns.pop(action.key, None)
            yield self._see(requeued(job))

    def _start(self, job: SlurmJob, nodes: tuple[str, ...]) -> Iterator[ev.Event]:
        course, key = self.run.courses[job.job_id], JobKey(job.job_id, job.restart)
        course.start_ns = course.start_ns or self._now_ns
        self._load[key] = float(self._load_ns)
        start_s = (self._now_ns + self.engine.state.skew_ns) // _S
        yield self._see(replace(job, state="RUNNING", reason="None", nodes=nodes, start_s=start_s))

    def _see(self, job: SlurmJob) -> ev.JobSeen:
        self._jobs[job.job_id] = job
        return ev.JobSeen(job)

    # what nodes say

    def _reports(self) -> Iterator[ev.Event]:
        told = {
            (node, place.key): self._resident(node, place)
            for node, place in self._nodes.placements()
            if self._is_running(place.key)
        }
        for where, seen in told.items():
            if seen.has_left or self._told.get(where) != seen:
                yield seen
        gone = self._told.keys() | self.engine.state.sightings.keys()
        yield from (ev.ResidentGone(*where) for where in sorted(gone - told.keys()))
        self._told = told

    def _resident(self, node: str, place: Placement) -> ev.ResidentSeen:
        key, state = place.key, self.engine.state
        seen = state.sightings.get((node, key))
        record = self.engine.jobs[key.job_id]
        measured = seen.measured if seen is not None else self._measured(record)
        is_on, has_left = key in self._nodes.on, key in self._nodes.left
        return ev.ResidentSeen(
            node, key, states.RUNNING if is_on else states.SUSPENDED, place.gpus, "", "",
            # in whole minutes, as limits are given back: a report of each ns would be news in each cycle
            self._parked_ns.get(key, 0) // (60 * _S) * (60 * _S), has_left, measured,
        )  # fmt: skip

    def _measured(self, record: JobRecord) -> Measured:
        """What a job that has just begun will say of itself: what it said before, or what its like say."""
        state = self.engine.state
        for other_first in (False, True):
            for (_, key), seen in state.sightings.items():
                other = state.jobs.get(key.job_id)
                is_alike = other is not None and (other.model == record.model or other_first)
                if other is not None and is_alike and other.job.user == record.job.user:
                    return replace(seen.measured, rate_packed=0.0, mate=0)
        return Measured()

    # time

    def _next_ns(self) -> int | None:
        """When something happens next; None: never."""
        now_ns, waits = self._now_ns, [*self._ends()]
        if self._news or self._nodes.left:
            waits.append(now_ns + REST_NS)
        waits.append(self.engine.decider.wake_ns)
        for record in self.engine.jobs.values():
            if record.state in states.WAITING:
                waits += [record.retry_ns, record.job.eligible_s * _S - self.engine.state.skew_ns]
        later = [max(at_ns, now_ns + REST_NS) for at_ns in waits if at_ns > now_ns]
        return min(later, default=None)

    def _ends(self) -> Iterator[int]:
        for key, pace in self._paces().items():
            left_ns = self._left.get(key.job_id)
            if left_ns is not None and pace > 0:
                yield self._now_ns + int(self._load.get(key, 0.0) + left_ns / pace) + 1

    def _paces(self) -> dict[JobKey, float]:
        """How much of its work each job on GPUs does in a ns."""
        on = self._nodes.on
        mates = {place.key: place.mate for _, place in self._nodes.placements() if place.mate}
        jobs = self.engine.jobs
        return {
            key: speed(self.engine.state, jobs[key.job_id], jobs.get(mates.get(key, 0)), self._types)
            for key in on
        }

    def _pass_until(self, next_ns: int) -> None:
        """Let time go by: work is done, and whose work is done has ended."""
        paces, gone_ns = self._paces(), next_ns - self._now_ns
        for _, place in self._nodes.placements():
            if place.key not in paces:
                self._parked_ns[place.key] = self._parked_ns.get(place.key, 0) + gone_ns
        self._now_ns = next_ns
        for key, pace in paces.items():
            load_ns = self._load.get(key, 0.0)
            self._load[key] = max(0.0, load_ns - gone_ns)
            left_ns = self._left.get(key.job_id)
            if left_ns is None or load_ns >= gone_ns:
                continue
            self._left[key.job_id] = left_ns - pace * (gone_ns - load_ns)
            if self._left[key.job_id] <= 0:
                self._end(key.job_id)

    def _end(self, job_id: int) -> None:
        self.run.courses[job_id].end_ns = self._now_ns
        del self._jobs[job_id], self._left[job_id]
        end_s = (self._now_ns + self.engine.state.skew_ns) // _S
        self._news.append(ev.JobGone(job_id, "COMPLETED", end_s, "0:0"))


def ran_ns(engine: Engine, record: JobRecord, now_ns: int) -> int:
    """How long a job has held its GPUs so far."""
    return held_ns(Cycle(engine.state, engine.settings, now_ns), record) // max(1, gpus_of(record))
