"""Where jobs that cannot be saved are to live: chosen once, by what they gain there and whom they meet.

Such a job runs on these GPUs until it ends, and takes turns with all others that do. So it is not put where
GPUs happen to be free in this round, but where its speed times its likely part of the time is greatest.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from typing import NamedTuple

from gandiva_slurm.policy.eligibility import Eligibility
from gandiva_slurm.policy.merit import Merit
from gandiva_slurm.policy.port import Host, JobView, View

#: GPUs where nobody else stays are worth more: waiting on fast ones beside idle slow ones helps nobody but
#: where these are slower by more than that.
_ALONE = 2


class _Found(NamedTuple):
    """A home; the least is the best."""

    cost: float
    is_odd: bool
    met: int
    free: int
    gpus: tuple[int, ...]


class Homes:
    """One question's homes of jobs that have none yet."""

    def __init__(self, view: View, merit: Merit, eligibility: Eligibility, stay: bool = False) -> None:
        """`eligibility` has how many live on each GPU that cannot leave; `stay`: for now none can."""
        self._cluster, self._stay = view.cluster, stay
        self._merit, self._eligibility = merit, eligibility
        self._living = dict(eligibility.living)
        self._chosen: dict[int, tuple[int, ...]] = {}

    def of(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """Return the GPUs where a job is; of one that will not leave them, those that it is to have.

        Homes are not chosen among the closed: GPUs that are down, or whose turns are others'.
        """
        if job.gpus or (not self._stay and (job.can_migrate or job.nodes > 1)):
            return job.gpus
        if job.job_id not in self._chosen:
            gpus = self._chosen[job.job_id] = self._choose(job, closed)
            for gpu in gpus:
                self._living[gpu] = self._living.get(gpu, 0) + 1
            if self._stay:
                self._eligibility.take(job, gpus)
        return self._chosen[job.job_id]

    def _choose(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """Return the best home among all but the closed GPUs, on as many nodes as it asks for; (): none."""
        worth, nodes = self._merit.worth(job), job.nodes or 1
        size = job.size // nodes
        by_type: dict[str, list[_Found]] = {}
        for host, room in self._eligibility.rooms(job):
            gpus = [gpu for gpu in room if gpu not in closed]
            if len(gpus) < size or host.gpu_type not in worth:
                continue
            found = self._best_of(gpus, host, size, worth[host.gpu_type])
            if self._cluster.share(found.gpus, job.cell):
                by_type.setdefault(host.gpu_type, []).append(found)
        parts = [heapq.nsmallest(nodes, found) for found in by_type.values() if len(found) >= nodes]
        # A gang is as slow as the worst of its parts.
        homes = [(found[-1], tuple(sorted(gpu for part in found for gpu in part.gpus))) for found in parts]
        return min(homes)[1] if homes else ()

    def _best_of(self, free: Sequence[int], host: Host, size: int, worth: float) -> _Found:
        """Gangs of one size have the same GPUs or none in common, so that turns of some fit together."""
        here = {gpu: self._living.get(gpu, 0) for gpu in free}
        blocks = [host.gpus[first : first + size] for first in range(0, len(host.gpus) - size + 1, size)]
        blocks = [block for block in blocks if here.keys() >= {*block}]
        blocks.append(tuple(sorted(sorted(here, key=lambda gpu: (here[gpu], gpu))[:size])))
        found = []
        for number, gpus in enumerate(blocks):
            met = [here[gpu] for gpu in gpus]
            part = 1 / (1 + max(met)) if max(met) else _ALONE
            found.append(_Found(-worth * part, number == len(blocks) - 1, sum(met), len(free), gpus))
        return min(found)
