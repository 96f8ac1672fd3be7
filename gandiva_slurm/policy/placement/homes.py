"""Where jobs that cannot be saved are to live: chosen once, by what they gain there and whom they meet.

Such a job runs on these GPUs until it ends, and takes turns with all others that do. So it is not put where
GPUs happen to be free in this round, but where its speed times its likely part of the time is greatest: what
is due to it for its user's tickets, of what is due to all that live there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.port import Host, JobView, View

#: GPUs where nobody else stays are worth more: waiting on fast ones beside idle slow ones helps nobody but
#: where these are slower by more than that.
_ALONE = 2
#: Loads are whole numbers, so that the order in which they are added does not matter: parts of the cluster
#: in these units.
_WHOLE = 10**12


class _Found(NamedTuple):
    """A home; the least is the best."""

    cost: float
    is_odd: bool
    load: int
    free: int
    gpus: tuple[int, ...]


class Homes:
    """One question's homes of jobs that have none yet."""

    def __init__(self, view: View, merit: Merit, eligibility: Eligibility, stay: bool = False) -> None:
        """`eligibility` has those that live somewhere and cannot leave; `stay`: for now none can."""
        self._cluster, self._stay = view.cluster, stay
        self._merit, self._eligibility = merit, eligibility
        #: by GPU: what is due there to those that stay
        self._loads: dict[int, int] = {}
        for job in eligibility.staying:
            self._live(job, job.gpus)
        self._chosen: dict[int, tuple[int, ...]] = {}
        #: by user: jobs, and GPUs of those that live somewhere; the users for one of whose jobs others leave
        self._jobs: Counter[str] = Counter()
        self._gpus: Counter[str] = Counter()
        for job in view.jobs.values() if stay else ():
            self._jobs[job.user] += 1
            self._gpus[job.user] += len(job.gpus)
        self._displacing: set[str] = set()

    def of(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """Return the GPUs where a job is; of one that will not leave them, those that it is to have.

        Homes are not chosen among the closed: GPUs that are down, or whose turns are others'.
        """
        if job.gpus or (not self._stay and (job.can_migrate or job.nodes > 1)):
            return job.gpus
        if job.job_id not in self._chosen:
            gpus = self._chosen[job.job_id] = self._choose(job, closed)
            self._live(job, gpus)
            if self._stay:
                self._eligibility.take(job, gpus)
        return self._chosen[job.job_id]

    def _live(self, job: JobView, gpus: tuple[int, ...]) -> None:
        due = self._due(job) if gpus else 0
        for gpu in gpus:
            self._loads[gpu] = self._loads.get(gpu, 0) + due

    def _due(self, job: JobView) -> int:
        """Return what is due to a job on each of its GPUs, at least something."""
        return max(1, round(self._merit.part(job) * _WHOLE / job.size))

    def _choose(self, job: JobView, closed: Set[int]) -> tuple[int, ...]:
        """Return the best home among all but the closed GPUs, on as many nodes as it asks for; (): none.

        Where none is free others make way for it, while less of its user's lives somewhere than is due to
        that user; for one at a time.
        """
        home = self._best(job, closed, displaces=False)
        if home or not self._stay or job.user in self._displacing:
            return home
        due = self._merit.part(job) * self._jobs[job.user] * self._cluster.size
        if self._gpus[job.user] >= due:
            return ()
        self._displacing.add(job.user)
        return self._best(job, closed, displaces=True)

    def _best(self, job: JobView, closed: Set[int], displaces: bool) -> tuple[int, ...]:
        worth, nodes = self._merit.worth(job), job.nodes or 1
        size, due = job.size // nodes, self._due(job)
        by_type: dict[str, list[_Found]] = {}
        for host, room in self._eligibility.rooms(job, displaces):
            gpus = [gpu for gpu in room if gpu not in closed]
            if len(gpus) < size or host.gpu_type not in worth:
                continue
            found = self._best_of(gpus, host, size, worth[host.gpu_type], due)
            if self._cluster.share(found.gpus, job.cell):
                by_type.setdefault(host.gpu_type, []).append(found)
        parts = [heapq.nsmallest(nodes, found) for found in by_type.values() if len(found) >= nodes]
        # A gang is as slow as the worst of its parts.
        homes = [(found[-1], tuple(sorted(gpu for part in found for gpu in part.gpus))) for found in parts]
        return min(homes)[1] if homes else ()

    def _best_of(self, free: Sequence[int], host: Host, size: int, worth: float, due: int) -> _Found:
        """Gangs of one size have the same GPUs or none in common, so that turns of some fit together."""
        here = {gpu: self._loads.get(gpu, 0) for gpu in free}
        blocks = [host.gpus[first : first + size] for first in range(0, len(host.gpus) - size + 1, size)]
        blocks = [block for block in blocks if here.keys() >= {*block}]
        blocks.append(tuple(sorted(sorted(here, key=lambda gpu: (here[gpu], gpu))[:size])))
        found = []
        for number, gpus in enumerate(blocks):
            loads = [here[gpu] for gpu in gpus]
            part = due / (due + max(loads)) if max(loads) else _ALONE
            found.append(_Found(-worth * part, number == len(blocks) - 1, sum(loads), len(free), gpus))
        return min(found)
