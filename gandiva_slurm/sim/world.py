"""The simulated cluster: who runs where and how fast, and what it costs to get from one plan to the next."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import Cluster, Plan, View
from gandiva_slurm.policy.soundness import unfit, unpaired
from gandiva_slurm.sim.job import RATE, UNIT, Job
from gandiva_slurm.sim.residents import Residents
from gandiva_slurm.sim.truth import Truth

#: Slowest a job gets by noise, as a part of its true rate.
_LEAST_NOISE = 0.05


class PolicyError(GandivaError):
    """A policy asked for what no cluster can do."""


@dataclass(frozen=True, slots=True)
class Costs:
    """GPU time held without progress, what takes time besides, and how much rates scatter."""

    #: to go on on the same GPUs after others were there
    switch_ns: int = 0
    #: to go on on other GPUs, or after a failure
    restart_ns: int = 0
    #: standard deviation of the rate of a run, as a part of it; each run draws its own
    noise: float = 0.0
    seed: int = 0
    #: jobs that a GPU has room for, the running and the parked; 0: any number. One more, and the job parked
    #: longest is saved and leaves: it pays a restart when it goes on
    slots: int = 0
    #: from a question to the policy until its plan is carried out; what happens meanwhile is asked of later
    round_ns: int = 0
    #: the probability that a node misses its part of a round
    missed: float = 0.0
    #: to begin
    start_ns: int = 0


COUNTED = (
    "suspends", "resumes", "migrations", "grows", "shrinks", "packs_tried", "packs_undone", "evictions",
    "refusals",
)  # fmt: skip

#: What is told of each thing that happens: its name, the job or None, the GPUs.
Tell = Callable[[str, Job | None, tuple[int, ...]], None]


class World:
    """State and its one mutator, `apply`; the loop moves the clock and takes care of who comes and ends."""

    def __init__(self, cluster: Cluster, truth: Truth, costs: Costs, tell: Tell | None = None) -> None:
        self.cluster, self.truth, self.costs = cluster, truth, costs
        self.tell = tell
        #: told of each arrival
        self.on_admit: Callable[[Job, int], None] | None = None
        #: True when the policy was given the true rates
        self.truth_is_open = False
        self.now_ns = 0
        #: what the policy says of its last plan, by job
        self.notes: Mapping[int, str] = {}
        self.jobs: dict[int, Job] = {}
        self.running: dict[int, Job] = {}
        self.rates = Learnt()
        self.down: frozenset[int] = frozenset()
        self.counts = dict.fromkeys(COUNTED, 0)
        self._on: list[list[Job]] = [[] for _ in range(cluster.size)]
        self._last = [-1] * cluster.size
        self._residents = Residents(cluster, costs.slots)
        #: jobs of the last plan for which there was no room
        self.refused: set[int] = set()
        #: jobs whose rate here is not known to policies yet
        self._unseen: dict[int, Job] = {}
        self._speeds: dict[tuple[str, int, int, tuple[str, ...], bool], int] = {}

    # -- who comes, ends, and what breaks

    def admit(self, job: Job) -> None:
        """A job has arrived."""
        self.jobs[job.job_id] = job
        if self.on_admit:
            self.on_admit(job, self.now_ns)
        if self.tell:
            self.tell("submit", job, ())

    def finish(self, job: Job) -> list[Job]:
        """A job has done its work; return those whose rate changed by it."""
        mates = self._mates(job)
        self._vacate(job)
        self._residents.leave(job)
        del self.jobs[job.job_id]
        if self.tell:
            self.tell("finish", job, job.gpus)
        for mate_id, is_undone in job.mates.items():
            self.counts["packs_undone"] += is_undone
            mate = self.jobs.get(mate_id)
            if mate is not None:
                mate.mates.pop(job.job_id, None)
        self._set_speeds(mates)
        return mates

    def set_host(self, host: int, is_down: bool) -> list[Job]:
        """A node fails or is back; whoever was on it has lost its place. Return those who ran there."""
        gpus = frozenset(self.cluster.hosts[host].gpus)
        self.down = self.down | gpus if is_down else self.down - gpus
        if self.tell:
            self.tell("node_down" if is_down else "node_up", None, tuple(sorted(gpus)))
        if not is_down:
            return []
        hit = [job for job in self.jobs.values() if not gpus.isdisjoint(job.gpus)]
        ran = [job for job in hit if job.is_running]
        for job in ran:
            self._vacate(job)
            if self.tell:
                self.tell("fail", job, job.gpus)
        for job in hit:
            self._lose(job)
        return ran

    # -- from one plan to the next

    def apply(self, plan: Plan, policy: str = "the policy") -> list[Job]:
        """Make the plan true; return the jobs whose rate or place changed. PolicyError: it cannot be."""
        self.refused, self.notes = set(), plan.notes
        for job_id in plan.homeless:
            if job_id in self.jobs and job_id not in self.running:
                self.jobs[job_id].is_lost = True
        gone = [job for job in self.running.values() if plan.runs.get(job.job_id) != job.gpus]
        comers = [job_id for job_id, gpus in plan.runs.items() if not self._stays(job_id, gpus)]
        if not gone and not comers:
            return []
        for job_id in comers:
            self._check(policy, job_id, plan.runs[job_id])
        touched = {job.job_id: job for leaver in gone for job in (leaver, *self._mates(leaver))}
        for job in gone:
            self._vacate(job)
            if job.job_id not in plan.runs:
                self.counts["suspends"] += 1
                self._say("suspend", job)
        for job_id in comers:
            job = self.jobs[job_id]
            if self._make_room(job, plan.runs):
                touched[job_id] = job
                self._seat(job, plan.runs[job_id])
        for job_id in comers:
            for mate in self._check_pack(policy, self.jobs[job_id]):
                touched[mate.job_id] = mate
        self._note_packs(touched.values())
        self._set_speeds([job for job in touched.values() if job.is_running], policy)
        return [*touched.values()]

    def _make_room(self, job: Job, runs: Mapping[int, tuple[int, ...]]) -> bool:
        """Have those leave for which there is no room beside a job that comes; False: it cannot come."""
        leavers = self._residents.must_leave(job, runs[job.job_id], runs)
        if leavers is None:
            self._count("refusals", "refuse", job, runs[job.job_id])
            self.refused.add(job.job_id)
            return False
        for leaver in leavers:
            self._count("evictions", "evict", leaver, leaver.gpus)
            self._lose(leaver)
        return True

    def _lose(self, job: Job) -> None:
        """A job has lost its place: it goes on from what it saved."""
        self._residents.leave(job)
        job.gpus, job.is_lost = (), True

    def _stays(self, job_id: int, gpus: tuple[int, ...]) -> bool:
        job = self.running.get(job_id)
        return job is not None and job.gpus == gpus

    def view(self) -> View:
        """Return what policies see, with the rates of all that have run a mini-batch where they are."""
        for job in [*self._unseen.values()]:
            self._watch(job)
        return View(self.now_ns, self.cluster, self.jobs, self.rates, self.down, self.costs.slots)

    def _check(self, policy: str, job_id: int, gpus: tuple[int, ...]) -> None:
        job = self.jobs.get(job_id)
        wrong = unfit(self.cluster, self.down, job, gpus) if job else "there is no such live job"
        if wrong:
            raise self._refusal(policy, job_id, gpus, wrong)

    def _refusal(self, policy: str, job_id: int, gpus: Iterable[int], wrong: str) -> PolicyError:
        at_s = self.now_ns / 1e9
        return PolicyError(f"{policy} puts job {job_id} on GPUs {[*gpus]} at {at_s:.3f} s: {wrong}")

    def _check_pack(self, policy: str, job: Job) -> list[Job]:
        """Whoever shares a GPU shares all of them, with one other who may."""
        mates = self._mates(job)
        wrong = unpaired(job, job.gpus, [(mate, mate.gpus) for mate in mates])
        if wrong:
            raise self._refusal(policy, job.job_id, job.gpus, wrong)
        return mates

    def _mates(self, job: Job) -> list[Job]:
        """Others on any of its GPUs."""
        if not job.is_running:
            return []
        mates = {mate.job_id: mate for gpu in job.gpus for mate in self._on[gpu]}
        return [mate for mate in mates.values() if mate is not job]

    def _vacate(self, job: Job) -> None:
        for mate in self._mates(job):
            self._close(mate)
        self._close(job)
        self._unseen.pop(job.job_id, None)
        for gpu in job.gpus:
            self._on[gpu].remove(job)
        self._residents.enter(job, job.gpus)
        del self.running[job.job_id]
        job.owed_ns = max(0, job.begins_ns - self.now_ns)
        job.is_running, job.rate = False, 0
        job.version += 1

    def _seat(self, job: Job, gpus: tuple[int, ...]) -> None:
        """Let it run there from now on; it makes no progress before its costs are paid."""
        self._close(job)
        self._residents.enter(job, gpus)
        job.begins_ns = self.now_ns + self._cost(job, gpus)
        job.gpus, job.is_running, job.is_lost = gpus, True, False
        job.runs += 1
        if job.first_run_ns is None:
            job.first_run_ns = self.now_ns
        self.running[job.job_id] = job
        for gpu in gpus:
            self._on[gpu].append(job)
            self._last[gpu] = job.job_id

    def _cost(self, job: Job, gpus: tuple[int, ...]) -> int:
        """Say what happens to it, count it, and tell how long it holds its GPUs in vain.

        What it was still to hold them in vain when it was taken off last, it holds them now.
        """
        if job.first_run_ns is None:
            self._say("start", job, gpus)
            return self.costs.start_ns
        if job.is_lost and (gpus == job.gpus or not job.gpus):
            self._count("resumes", "restart", job, gpus)
            return self.costs.restart_ns
        if gpus == job.gpus:
            self._count("resumes", "resume", job, gpus)
            is_used = any(self._last[gpu] != job.job_id for gpu in gpus)
            return max(job.owed_ns, self.costs.switch_ns if is_used else 0)
        if len(gpus) > len(job.gpus):
            self._count("grows", "grow", job, gpus)
        elif len(gpus) < len(job.gpus):
            self._count("shrinks", "shrink", job, gpus)
        else:
            self._count("migrations", "migrate", job, gpus)
            job.migrations += 1
        return self.costs.restart_ns

    def _count(self, what: str, event: str, job: Job, gpus: tuple[int, ...]) -> None:
        self.counts[what] += 1
        self._say(event, job, gpus)

    def _say(self, event: str, job: Job, gpus: tuple[int, ...] | None = None) -> None:
        if self.tell:
            self.tell(event, job, job.gpus if gpus is None else gpus)

    def _note_packs(self, touched: Iterable[Job]) -> None:
        """Count pairs of jobs that were tried, and remember those that a plan took apart."""
        for job in touched:
            mates = self._mates(job)
            before, job.mate = job.mate, mates[0].job_id if mates else -1
            if job.mate == before:
                continue
            if before in job.mates:
                job.mates[before] = job.is_running or before in self.running
            if mates:
                if job.mate not in job.mates and job.job_id < job.mate:
                    self.counts["packs_tried"] += 1
                    self._say("pack", job)
                job.mates[job.mate] = False

    # -- speeds

    def _set_speeds(self, jobs: Iterable[Job], policy: str = "") -> None:
        for job in jobs:
            self._close(job)
            mates = self._mates(job)
            job.is_packed = bool(mates)
            job.alone_rate = self._alone(job)
            if not job.alone_rate and self._is_told(job):
                wrong = f"{job.model or 'it'} cannot run on {'+'.join(self._types(job))} with so many GPUs"
                raise self._refusal(policy, job.job_id, job.gpus, wrong + " there")
            job.rate = self._beside(job, mates[0]) if mates else job.alone_rate
            if self.costs.noise and job.rate:
                job.rate = max(1, round(job.rate * self._noise(job)))
            job.version += 1
            key = self._key(job)
            if key and (self.costs.noise or not self.rates.knows(key)):
                self._unseen[job.job_id] = job

    def _is_told(self, job: Job) -> bool:
        """A policy that tries what nobody measured finds out by trying; one that could know is wrong."""
        key = self._key(job) if not job.is_packed else None
        return key is None or self.rates.knows(key) or self.truth_is_open

    def _noise(self, job: Job) -> float:
        draw = random.Random(f"{self.costs.seed}/{job.job_id}/{job.version}")
        return max(_LEAST_NOISE, draw.gauss(1.0, self.costs.noise))

    def _types(self, job: Job) -> tuple[str, ...]:
        type_of = self.cluster.type_of
        return tuple(sorted({type_of[gpu] for gpu in job.gpus}))

    def _is_local(self, job: Job) -> bool:
        host_of = self.cluster.host_of
        first = host_of[job.gpus[0]]
        return all(host_of[gpu] == first for gpu in job.gpus)

    def _alone(self, job: Job) -> int:
        """Units a ns without a neighbour; a gang over several types goes as the slowest of them."""
        types, is_local = self._types(job), self._is_local(job)
        key = (job.model, len(job.gpus), job.size, types, is_local)
        if key not in self._speeds:
            rate = min(self.truth.alone(job.spec, len(job.gpus), name, is_local) for name in types)
            self._speeds[key] = round(rate * RATE)
        return self._speeds[key]

    def _beside(self, job: Job, mate: Job) -> int:
        rate = min(self.truth.packed(job.spec, mate.spec, name) for name in self._types(job))
        return round(rate * RATE)

    def _key(self, job: Job) -> tuple[object, ...] | None:
        """What one learns by watching it: nothing from mixed types, nor from pairs of gangs.

        Nor from a job of known run time at another size than its own: its rate is in parts of its own.
        """
        types = self._types(job)
        mates = self._mates(job)
        is_resized = bool(job.spec.length_ns) and len(job.gpus) != job.size
        if len(types) > 1 or is_resized or (mates and len(job.gpus) > 1):
            return None
        if mates:
            return (job.model, mates[0].model, types[0])
        return (job.model, len(job.gpus), types[0], self._is_local(job))

    def _watch(self, job: Job) -> None:
        """Learn from a run that has lasted a mini-batch, or that goes nowhere; only once from each run."""
        run_ns = self.now_ns - max(job.begins_ns, job.settled_ns)
        key = self._key(job)
        if key is None or run_ns <= 0 or 0 < job.rate * run_ns < UNIT:
            return
        del self._unseen[job.job_id]
        if len(key) == 3:
            self.rates.learn_packed(key, job.rate / RATE, run_ns / 1e9)  # type: ignore[arg-type]
        else:
            self.rates.learn_alone(key, job.rate / RATE, run_ns / 1e9)  # type: ignore[arg-type]

    def _close(self, job: Job) -> None:
        """End a stretch of unchanged speed: learn from it, write down what was done."""
        if job.job_id in self._unseen:
            self._watch(job)
        job.settle()

    def holders(self) -> Mapping[int, tuple[int, ...]]:
        """Who is on each GPU that is used: job numbers, ascending (for checks and drawings)."""
        return {gpu: tuple(sorted(job.job_id for job in jobs)) for gpu, jobs in enumerate(self._on) if jobs}
