"""Where jobs that cannot be saved are to live: chosen once, by what they gain there and whom they meet.

Such a job runs on these GPUs until it ends, and takes turns with all others that do. So it is not put where
GPUs happen to be free in this round, but where its speed times its likely part of the time is greatest.
"""

from __future__ import annotations

from collections.abc import Set

from gandiva_slurm.policy.eligibility import Eligibility
from gandiva_slurm.policy.merit import Merit
from gandiva_slurm.policy.port import JobView, View

#: GPUs where nobody else stays are worth more: waiting on fast ones beside idle slow ones helps nobody but
#: where these are slower by more than that.
_ALONE = 2


class Homes:
    """One question's homes of jobs that have none yet."""

    def __init__(self, view: View, merit: Merit, eligibility: Eligibility) -> None:
        """`eligibility` has how many live on each GPU that cannot leave."""
        self._cluster = view.cluster
        self._merit, self._eligibility = merit, eligibility
        self._living = dict(eligibility.living)
        self._chosen: dict[int, tuple[int, ...]] = {}

    def of(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """Return the GPUs where a job is; of one that will not leave them, those that it is to have.

        Homes are not chosen among the closed: GPUs that are down, or whose turns are others'.
        """
        if job.gpus or job.can_migrate:
            return job.gpus
        if job.job_id not in self._chosen:
            gpus = self._chosen[job.job_id] = self._choose(job, closed)
            for gpu in gpus:
                self._living[gpu] = self._living.get(gpu, 0) + 1
        return self._chosen[job.job_id]

    def _choose(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """On one node; () when none is large enough: it is seated as any other."""
        worth, barred = self._merit.worth(job), self._eligibility.barred(job) | closed
        best: tuple[float, int, int, tuple[int, ...]] | None = None
        for host in self._cluster.hosts:
            free = [gpu for gpu in host.gpus if gpu not in barred]
            if len(free) < job.size or host.gpu_type not in worth:
                continue
            gpus = sorted(free, key=lambda gpu: (self._living.get(gpu, 0), gpu))[: job.size]
            met = [self._living.get(gpu, 0) for gpu in gpus]
            part = 1 / (1 + max(met)) if max(met) else _ALONE
            found = (-worth[host.gpu_type] * part, sum(met), len(free), tuple(sorted(gpus)))
            if self._cluster.share(found[3], job.cell) and (best is None or found < best):
                best = found
        return best[3] if best else ()
