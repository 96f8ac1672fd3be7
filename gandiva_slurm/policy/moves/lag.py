"""How far each job is behind, or ahead of, what it would have done on its user's part of the cluster alone.

The measure of finish-time fairness (Themis), kept while jobs run: the user's part of every GPU type is split
evenly over his live jobs, a job at most on one GPU set at a time. `lag` is what a job would have done there
over what it has done. It needs rates, no lengths: whoever is behind is given better GPUs, and by that only;
GPU time is shared by passes, and what a job reports never buys any of it.

A job that waits no longer than for its turn is not behind: what its next quantum brings counts as done. Else
whoever has more jobs, each with rarer turns, would always be seen with those that have waited longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gandiva_slurm.policy.port import Cluster, JobView

#: A job is not called more behind, or more ahead, than by this factor.
_MOST = 4.0
#: Both sums begin with so many quanta of isolated progress: the first slices say little.
_HEAD_START = 2


@dataclass(slots=True)
class _Sums:
    """Seconds of running on its best type: what a job calls a mini-batch is no measure."""

    due: float = 0.0
    done: float = 0.0
    due_rate: float = 0.0
    best_rate: float = 1.0
    #: what its next quantum brings beyond what falls due in it
    coming: float = 0.0
    #: of what these were worked out: its part of the cluster, and its rates
    part: float = -1.0
    rates: Mapping[str, float] | None = None


class LagBook:
    """Sums for every live job. Call `note` for each stretch of time in which nothing changed."""

    def __init__(self, cluster: Cluster, quantum_s: float) -> None:
        self._counts, self._gpus = cluster.counts, cluster.size
        self._quantum_s = quantum_s
        self._sums: dict[int, _Sums] = {}

    def set_members(
        self, jobs: Iterable[JobView], parts: Mapping[int, float], rates: Mapping[int, Mapping[str, float]]
    ) -> None:
        """Make exactly these live. By job: its part of the cluster, and its rate on each GPU type."""
        old, self._sums = self._sums, {}
        for job in jobs:
            sums = old.get(job.job_id) or _Sums()
            own, part = rates[job.job_id], parts[job.job_id]
            self._sums[job.job_id] = sums
            if sums.part == part and sums.rates is own:
                continue
            sums.part, sums.rates = part, own
            sums.best_rate = max(own.values(), default=0.0) or 1.0
            sums.due_rate = isolated_rate(job, part, self._counts, own) / sums.best_rate
            time_part = min(1.0, self._gpus * part / job.size)
            sums.coming = sums.due_rate * (1 / time_part - 1) * self._quantum_s

    def note(self, seconds: float, running: Mapping[int, float]) -> None:
        """Add a stretch of time; `running`: the rate of each job that ran."""
        for job_id, sums in self._sums.items() if seconds else ():
            sums.due += sums.due_rate * seconds
            if job_id in running:
                sums.done += running[job_id] / sums.best_rate * seconds

    def lag(self, job_id: int) -> float:
        """Return 1 for a job that is where it should be, more for one that is behind, at most 4."""
        sums = self._sums[job_id]
        head = sums.due_rate * self._quantum_s * _HEAD_START
        return min(_MOST, (sums.due + head) / (sums.done + sums.coming + head)) if head > 0 else 1.0


def isolated_rate(
    job: JobView, part: float, counts: Mapping[str, int], rates: Mapping[str, float]
) -> float:
    """Return the rate of a job that has this part of every GPU type, and runs on one type at a time."""
    share = {gpu_type: count * part / job.size for gpu_type, count in counts.items()}
    scale = min(1.0, 1.0 / sum(share.values()))
    return sum(rates.get(gpu_type, 0.0) * each * scale for gpu_type, each in share.items())
