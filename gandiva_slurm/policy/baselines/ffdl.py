"""FfDL: gangs first come, first served, packed onto few nodes or spread over many (Middleware 2019).

All learners of a job start together or not at all. The first job that finds no room blocks those behind it;
of jobs that arrive at one moment the largest gang goes first. Spread puts each GPU on the emptiest node, as
its first scheduler did; pack, its later one, leaves whole nodes free for the gangs to come.
"""

from __future__ import annotations

from gandiva_slurm.policy.baselines.placing import Runs, Types, held, kept
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View


class Ffdl:
    """Gang FIFO with one way of placing."""

    def __init__(self, settings: PolicySettings, is_spread: bool = False) -> None:
        self.name = "ffdl_spread" if is_spread else "ffdl"
        self._oracle = settings.oracle
        self._is_spread = is_spread
        self._runs: Runs = {}

    def decide(self, view: View) -> Plan:
        """Start gangs from the head of the queue until one does not fit."""
        runs = kept(view, self._runs)
        free = FreeGpus(view.cluster, view.down.union(held(runs)))
        types = Types(view, self._oracle)
        notes: dict[int, str] = {}
        waiting = [job for job_id, job in view.jobs.items() if job_id not in runs and types.of(job)]
        for job in sorted(waiting, key=arrival):
            place = free.place(job, types.of(job), is_spread=self._is_spread) if free.left else None
            if place is None:
                notes[job.job_id] = f"first in the queue: {job.size} GPUs are not free at once"
                break
            runs[job.job_id] = place
        self._runs = runs
        return Plan(dict(runs), None, notes)


def arrival(job: JobView) -> tuple[int, int, int]:
    """Order of arrival; at one moment the largest gang first."""
    return (job.submit_ns, -job.size, job.job_id)


def make(settings: PolicySettings) -> Ffdl:
    """Make the policy that packs."""
    return Ffdl(settings)


def make_spread(settings: PolicySettings) -> Ffdl:
    """Make the policy that spreads."""
    return Ffdl(settings, is_spread=True)
