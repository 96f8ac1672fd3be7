"""Tiresias, discretised 2D-LAS: who got least GPU time so far goes first (NSDI 2019).

Attained service is GPUs × time run. It is cut into K queues: a job falls to the next one when its service
reaches the queue's limit. Inside a queue whoever started first goes first, those who never ran last, so
that jobs of one queue do not suspend each other. A job that has waited `promote_knob` times as long as it
ran since it was last at the top is moved back there and its service counts from zero; 0: never, as in the
authors' simulator unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gandiva_slurm.policy.baselines.placing import Pick, Ration, Types, settle
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View

#: GPU-seconds at which a job leaves the first of two queues: the authors' default.
QUEUE_LIMITS_S = (3600,)

#: Later than any start.
NEVER_NS = 2**63


@dataclass(frozen=True, slots=True)
class Since:
    """When a job last came to the top, and what it had run by then."""

    at_ns: int
    ran_ns: int


class Tiresias:
    """Two-dimensional least attained service."""

    name = "tiresias"

    def __init__(
        self,
        settings: PolicySettings,
        queue_limits_s: Sequence[int] = QUEUE_LIMITS_S,
        promote_knob: int = 0,
    ) -> None:
        self._oracle = settings.oracle
        self._limits_ns = tuple(limit * 10**9 for limit in queue_limits_s)
        self._knob = promote_knob
        self._promoted: dict[int, Since] = {}

    def decide(self, view: View) -> Plan:
        """Run the jobs of the first queues, as many as fit; a gang that does not fit is skipped."""
        self._promote(view)
        ration, types = Ration(view), Types(view, self._oracle)
        picks: list[Pick] = []
        for job in sorted(view.jobs.values(), key=self._rank):
            if not ration.left:
                break
            pick = ration.pick(job, types.of(job))
            if pick is not None:
                picks.append(pick)
        runs = settle(view, picks)
        is_full = len(runs) < len(view.jobs)
        return Plan(runs, self._next_change(view, runs) if is_full else None)

    def attained_ns(self, job: JobView) -> int:
        """GPU time since it was last at the top."""
        return job.size * self._ran_ns(job)

    def queue_of(self, job: JobView) -> int:
        """Tell its queue; 0 is the first."""
        attained_ns = self.attained_ns(job)
        return sum(attained_ns >= limit_ns for limit_ns in self._limits_ns)

    def _rank(self, job: JobView) -> tuple[int, int, tuple[int, int]]:
        started_ns = NEVER_NS if job.first_run_ns is None else job.first_run_ns
        return (self.queue_of(job), started_ns, job.order)

    def _ran_ns(self, job: JobView) -> int:
        since = self._promoted.get(job.job_id)
        return job.ran_ns - (since.ran_ns if since else 0)

    def _promote(self, view: View) -> None:
        if not self._knob:
            return
        live = view.jobs.keys()
        self._promoted = {job_id: since for job_id, since in self._promoted.items() if job_id in live}
        for job in view.jobs.values():
            if self._promotion_ns(job) <= view.now_ns:
                self._promoted[job.job_id] = Since(view.now_ns, job.ran_ns)

    def _promotion_ns(self, job: JobView) -> int:
        """When a job that waits will have waited long enough."""
        if not self._knob or job.is_running or job.first_run_ns is None or self.queue_of(job) == 0:
            return NEVER_NS
        since = self._promoted.get(job.job_id)
        at_ns = since.at_ns if since else job.first_run_ns
        return at_ns + self._ran_ns(job) * (1 + self._knob)

    def _next_change(self, view: View, runs: Iterable[int]) -> int | None:
        """When the first job changes its queue if nothing else happens."""
        running = set(runs)
        changes = [
            view.now_ns + self._until_demotion_ns(job) if job.job_id in running else self._promotion_ns(job)
            for job in view.jobs.values()
        ]
        soonest = min(changes, default=NEVER_NS)
        return None if soonest >= NEVER_NS else max(soonest, view.now_ns + 1)

    def _until_demotion_ns(self, job: JobView) -> int:
        queue = self.queue_of(job)
        if queue == len(self._limits_ns):
            return NEVER_NS
        return -(-(self._limits_ns[queue] - self.attained_ns(job)) // job.size)


def make(settings: PolicySettings) -> Tiresias:
    """Make the policy with its authors' defaults."""
    return Tiresias(settings)
