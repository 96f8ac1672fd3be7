"""GPU time that stands idle beside a job which could move there, seen from a policy's plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gandiva_slurm.policy.port import JobView, Plan, Policy, View

_S = 10**9


@dataclass
class IdleWatch:
    """A policy, and the GPU time that was idle while a job on shared GPUs could have moved there."""

    policy: Policy
    idle_gpu_s: float = 0.0
    #: the longest such time in a row
    longest_s: float = 0.0
    _since_ns: int = 0
    _begun_ns: int = 0
    _idle: int = 0

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        plan = self.policy.decide(view)
        self._note(view.now_ns)
        was_idle, self._idle = self._idle, idle_beside_movable(view, plan.runs)
        if self._idle and not was_idle:
            self._begun_ns = view.now_ns
        return plan

    def _note(self, now_ns: int) -> None:
        self.idle_gpu_s += self._idle * (now_ns - self._since_ns) / _S
        if self._idle:
            self.longest_s = max(self.longest_s, (now_ns - self._begun_ns) / _S)
        self._since_ns = now_ns


def idle_beside_movable(view: View, runs: Mapping[int, tuple[int, ...]]) -> int:
    """Return how many GPUs are idle that would not be if a job that can move went there.

    It waits where others have its GPUs, or another that waits could have them once it has left.
    """
    used = {gpu for gpus in runs.values() for gpu in gpus} | view.down
    idle = frozenset(range(view.cluster.size)) - used
    waiting = [job for job_id, job in view.jobs.items() if job.gpus and job_id not in runs]
    if not idle or not waiting:
        return 0
    gained = frozenset[int]()
    for job in waiting:
        if job.can_migrate:
            gained |= _room(view, job, idle)
    for job_id, gpus in runs.items():
        for other in waiting if view.jobs[job_id].can_migrate else ():
            if not set(gpus).isdisjoint(other.gpus) and idle.union(gpus) >= {*other.gpus}:
                gained |= _room(view, view.jobs[job_id], idle.difference(other.gpus))
    return len(gained)


def _room(view: View, job: JobView, idle: frozenset[int]) -> frozenset[int]:
    """Return the idle GPUs of the nodes on which a job finds room."""
    found = frozenset[int]()
    for index, host in enumerate(view.cluster.hosts):
        free = idle.intersection(host.gpus)
        if len(free) >= job.size and job.accepts(host.gpu_type) and (job.hosts is None or index in job.hosts):
            found |= free
    return found
