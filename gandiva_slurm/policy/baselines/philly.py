"""Philly: virtual clusters with GPU quotas, gangs, and waiting for locality (ATC 2019).

The virtual cluster that uses least of its quota is served first, its jobs in order of arrival. Idle GPUs of
the others may be borrowed; when the cluster is nearly full, a job within its quota takes them back from
clusters over theirs, the latest started first. A gang starts on the fewest nodes; the longer it waits, the
more nodes it takes. A gang that waits for locality holds up nobody.
"""

from __future__ import annotations

import heapq
from collections import deque
from fractions import Fraction

from gandiva_slurm.policy.baselines.placing import Runs, Types, held, kept
from gandiva_slurm.policy.baselines.quotas import Quotas, used_gpus, vc_of
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View

#: A gang may have twice as many nodes each time it has waited so long. (The scheduler tried for minutes.)
RELAX_NS = 300 * 10**9

#: Borrowed GPUs are taken back only when so much of the cluster is in use.
FULL_PERCENT = 90


class Philly:
    """YARN-like virtual clusters with locality waiting."""

    name = "philly"

    def __init__(self, settings: PolicySettings, relax_ns: int = RELAX_NS) -> None:
        self._oracle = settings.oracle
        self._quotas = Quotas(settings.tickets)
        self._relax_ns = relax_ns
        self._runs: Runs = {}
        self._since: dict[int, int] = {}

    def decide(self, view: View) -> Plan:
        """Fill free GPUs, take borrowed ones back, and say when locality is relaxed next."""
        turn = Turn(self, view, kept(view, self._runs))
        turn.fill()
        if turn.take_back():
            turn.fill()
        self._runs = turn.runs
        self._since = {
            job_id: self._since.get(job_id, view.now_ns) for job_id in view.jobs if job_id not in turn.runs
        }
        return Plan(dict(turn.runs), turn.next_relaxing(), turn.notes)

    def quotas(self, view: View) -> dict[str, int]:
        """Tell the quota of each virtual cluster."""
        return dict(self._quotas.of(view))

    def waited_steps(self, job: JobView, now_ns: int) -> int:
        """How often its wish for locality has been relaxed."""
        return (now_ns - self._since.get(job.job_id, now_ns)) // self._relax_ns

    def relaxes_at(self, job: JobView, now_ns: int) -> int:
        """When its wish is relaxed next."""
        since_ns = self._since.get(job.job_id, now_ns)
        return since_ns + (self.waited_steps(job, now_ns) + 1) * self._relax_ns

    def types(self, view: View) -> Types:
        """Tell which types jobs may run on."""
        return Types(view, self._oracle)


class Turn:
    """One decision in the making."""

    def __init__(self, policy: Philly, view: View, runs: Runs) -> None:
        self._policy, self._view = policy, view
        self.runs = runs
        self.notes: dict[int, str] = {}
        self._free = FreeGpus(view.cluster, view.down.union(held(runs)))
        self._types = policy.types(view)
        self._quota = policy.quotas(view)
        self._used = used_gpus(view, runs)
        self._full: set[tuple[object, ...]] = set()
        self._waiting: dict[str, deque[JobView]] = {}
        for job in view.jobs.values():
            if job.job_id not in runs and self._types.of(job):
                self._waiting.setdefault(vc_of(job), deque()).append(job)

    def fill(self) -> None:
        """Give free GPUs to the virtual clusters in turn, the least served first."""
        queues = {name: deque(jobs) for name, jobs in self._waiting.items()}
        turns = [(self._load(name), name) for name in queues]
        heapq.heapify(turns)
        while turns and self._free.left:
            name = heapq.heappop(turns)[1]
            if self._start_first(queues[name]):
                heapq.heappush(turns, (self._load(name), name))

    def take_back(self) -> bool:
        """Let jobs of clusters within their quota have what others borrowed; True: GPUs may be left over."""
        is_any = False
        for name in sorted(self._waiting, key=lambda name: (self._load(name), name)):
            for job in list(self._waiting[name]):
                if job.job_id in self.runs:
                    continue
                is_within = self._used.get(name, 0) + job.size <= self._quota[name]
                if not (is_within and self._is_nearly_full() and self._reclaim(job)):
                    break
                is_any = True
        return is_any

    def next_relaxing(self) -> int | None:
        """When a gang for which there are GPUs, but not near enough, may take them."""
        times = [
            self._policy.relaxes_at(job, self._view.now_ns)
            for jobs in self._waiting.values()
            for job in jobs
            if job.job_id not in self.runs and self._has_gpus_for(job)
        ]
        return min(times, default=None)

    def _is_nearly_full(self) -> bool:
        usable = self._view.cluster.size - len(self._view.down)
        return 100 * (usable - self._free.left) >= FULL_PERCENT * usable

    def _load(self, name: str) -> Fraction:
        """Part of its quota that a cluster uses; one without a quota comes after all others."""
        return Fraction(self._used.get(name, 0) + (not self._quota[name]) * 10**6, self._quota[name] or 1)

    def _start_first(self, jobs: deque[JobView]) -> bool:
        """Start the first job of a queue that finds a place; those before it wait for theirs."""
        while jobs:
            job = jobs.popleft()
            if job.job_id not in self.runs and self._start(job):
                return True
        return False

    def _start(self, job: JobView) -> bool:
        steps = self._policy.waited_steps(job, self._view.now_ns)
        shape = (job.model, job.size, job.gpu_types, steps)
        if not job.gpus and shape in self._full:
            return False
        place = self._free.place(job, self._types.of(job), self._extra(job, steps))
        if place is None:
            self._full.add(shape)
            if self._has_gpus_for(job):
                self.notes[job.job_id] = "waits for GPUs that lie closer together"
            return False
        self._begin(job, place)
        return True

    def _begin(self, job: JobView, place: tuple[int, ...]) -> None:
        self.runs[job.job_id] = place
        self.notes.pop(job.job_id, None)
        self._used[vc_of(job)] = self._used.get(vc_of(job), 0) + job.size

    def _extra(self, job: JobView, steps: int) -> int:
        """Nodes a gang may have beyond the fewest: none at first, then it doubles with each step."""
        fewest = min(
            -(-job.size // max(len(host.gpus) for host in self._view.cluster.hosts if host.gpu_type == name))
            for name in self._types.of(job)
        )
        return fewest * ((1 << min(steps, 20)) - 1)

    def _has_gpus_for(self, job: JobView) -> bool:
        return any(self._free.left_of(name) >= job.size for name in self._types.of(job))

    def _reclaim(self, job: JobView) -> bool:
        """Stop the latest started jobs of clusters over quota until the job fits; all or nobody."""
        types = self._types.of(job)
        over = {
            name: used - self._quota[name] for name, used in self._used.items() if used > self._quota[name]
        }
        for gpu_type in types:
            need = job.size - self._free.left_of(gpu_type)
            victims = self._victims(gpu_type, need, over)
            if victims is None or (job.gpus and not job.can_migrate):
                continue
            for victim in victims:
                self._free.give(self.runs[victim.job_id])
            place = self._free.gather_for(job, job.size, gpu_type)
            if place is None:  # not where it may be
                for victim in victims:
                    self._free.take(self.runs[victim.job_id])
                continue
            for victim in victims:
                self._stop(victim, job)
            self._begin(job, place)
            return True
        return False

    def _victims(self, gpu_type: str, need: int, over: dict[str, int]) -> list[JobView] | None:
        left = dict(over)
        victims: list[JobView] = []
        borrowers = [
            self._view.jobs[job_id] for job_id in self.runs if vc_of(self._view.jobs[job_id]) in over
        ]
        for job in sorted(borrowers, key=_latest_first):
            if need <= 0:
                break
            is_there = self._view.cluster.type_of[self.runs[job.job_id][0]] == gpu_type
            if is_there and left[vc_of(job)] > 0:
                victims.append(job)
                left[vc_of(job)] -= job.size
                need -= job.size
        return victims if need <= 0 else None

    def _stop(self, victim: JobView, winner: JobView) -> None:
        del self.runs[victim.job_id]
        self._used[vc_of(victim)] -= victim.size
        self._waiting.setdefault(vc_of(victim), deque()).appendleft(victim)
        self._full.clear()
        self.notes[victim.job_id] = f"gives GPUs it borrowed back to {vc_of(winner)} (job {winner.job_id})"


def _latest_first(job: JobView) -> tuple[int, int]:
    return (-(job.first_run_ns if job.first_run_ns is not None else 2**62), -job.job_id)


def make(settings: PolicySettings) -> Philly:
    """Make the policy."""
    return Philly(settings)
