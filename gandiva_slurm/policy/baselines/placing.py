"""Where a gang goes: one GPU type, the fewest nodes, the tightest of them (consolidated first).

Papers of schedulers that are not about places say no more than that a gang is put together. One way for all
of them keeps their comparison one of order, not of luck in placing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gandiva_slurm.policy.placement.free import FreeGpus, largest_host
from gandiva_slurm.policy.port import CELLS, Cluster, JobView, Rates, View

Runs = dict[int, tuple[int, ...]]


class Types:
    """Which GPU types a job may run on at its size, in the cluster's order; good for one question."""

    def __init__(self, view: View, oracle: Rates | None = None) -> None:
        self._counts = view.cluster.counts
        self._widest = {name: largest_host(view.cluster, name) for name in self._counts}
        self._rates = oracle or view.rates
        self._known: dict[tuple[str, int, tuple[str, ...]], tuple[str, ...]] = {}

    def of(self, job: JobView, size: int = 0) -> tuple[str, ...]:
        """Types it accepts, that have so many GPUs at all (its size: 0), and on which it can run."""
        key = (job.model, size or job.size, job.gpu_types)
        if key not in self._known:
            self._known[key] = tuple(
                gpu_type
                for gpu_type, count in self._counts.items()
                if job.accepts(gpu_type) and count >= key[1] and self._can_run(job.model, key[1], gpu_type)
            )
        return self._known[key]

    def _can_run(self, model: str, size: int, gpu_type: str) -> bool:
        """Together, if a node is large enough, and apart: nobody promises a gang that it is put together."""
        is_together = size > self._widest[gpu_type] or self._rates.alone(model, size, gpu_type) != 0
        return is_together and (size == 1 or self._rates.alone(model, size, gpu_type, False) != 0)


def kept(view: View, last: Mapping[int, tuple[int, ...]]) -> Runs:
    """Jobs that run, or were told to by the last plan, and can go on where they are."""
    runs: Runs = {}
    for job_id, job in view.jobs.items():
        gpus = job.gpus if job.is_running else last.get(job_id, ())
        if gpus and view.down.isdisjoint(gpus):
            runs[job_id] = gpus
    return runs


def held(runs: Mapping[int, tuple[int, ...]]) -> Iterator[int]:
    """GPUs of these jobs."""
    return (gpu for gpus in runs.values() for gpu in gpus)


class Pick(NamedTuple):
    """A job that is to run, on how many GPUs of which type."""

    job: JobView
    size: int
    gpu_type: str


class Ration:
    """GPUs counted by type: who runs, before anybody is given a place. A gang may lie on several nodes."""

    def __init__(self, view: View) -> None:
        self._cluster = view.cluster
        self._down = view.down
        self._left = dict(view.cluster.counts)
        for gpu in view.down:
            self._left[view.cluster.type_of[gpu]] -= 1
        self._pinned: set[int] = set()
        #: GPUs on which nothing runs now: a newcomer takes these before it puts anybody out of his place
        self._idle = dict(self._left)
        for job in view.jobs.values():
            if job.is_running and view.down.isdisjoint(job.gpus):
                self._idle[view.cluster.type_of[job.gpus[0]]] -= len(job.gpus)

    @property
    def left(self) -> int:
        """GPUs that nobody has taken."""
        return sum(self._left.values())

    def left_of(self, gpu_type: str) -> int:
        """GPUs of a type that nobody has taken."""
        return self._left[gpu_type]

    def pick(self, job: JobView, types: Sequence[str], size: int = 0) -> Pick | None:
        """Count a job in, where it runs already if it can be, else in nobody's way; None: no room."""
        size = size or job.size
        if job.gpus and not job.can_migrate:
            return self._pick_pinned(job, types, size)
        mine = self._cluster.type_of[job.gpus[0]] if job.gpus else ""
        runs_on = mine if job.is_running else ""
        for gpu_type in sorted(
            types, key=lambda name: (name != runs_on, self._idle[name] < size, name != mine)
        ):
            if self._left[gpu_type] >= size:
                self._left[gpu_type] -= size
                self._idle[gpu_type] -= 0 if gpu_type == runs_on else size
                return Pick(job, size, gpu_type)
        return None

    def add(self, gpu_type: str, gpus: int) -> None:
        """Take more of a type, for a job that was picked."""
        self._left[gpu_type] -= gpus

    def _pick_pinned(self, job: JobView, types: Sequence[str], size: int) -> Pick | None:
        gpu_type = self._cluster.type_of[job.gpus[0]]
        is_open = self._down.isdisjoint(job.gpus) and self._pinned.isdisjoint(job.gpus)
        if not is_open or gpu_type not in types or self._left[gpu_type] < size or len(job.gpus) != size:
            return None
        self._pinned.update(job.gpus)
        self._left[gpu_type] -= size
        return Pick(job, size, gpu_type)


def settle(view: View, picks: Sequence[Pick]) -> Runs:
    """Give places to all who were picked: who cannot move first, then who need not, then the largest.

    The counts were right, so there is a place for each but for those that may not be everywhere.
    """
    free = FreeGpus(view.cluster, view.down)
    runs: Runs = {}
    for pick in sorted(picks, key=_steadiness):
        gpus = pick.job.gpus
        is_right = len(gpus) == pick.size and view.cluster.type_of[gpus[0]] == pick.gpu_type
        if is_right and free.has(gpus):
            runs[pick.job.job_id] = gpus
            free.take(gpus)
    for pick in sorted(picks, key=lambda pick: (-pick.size, pick.job.order)):
        if pick.job.job_id not in runs:
            place = _resettle(view.cluster, free, pick)
            runs.update({pick.job.job_id: place} if place else {})
    return runs


def _steadiness(pick: Pick) -> tuple[bool, bool, tuple[int, int]]:
    return (pick.job.can_migrate, not pick.job.is_running, pick.job.order)


def _resettle(cluster: Cluster, free: FreeGpus, pick: Pick) -> tuple[int, ...] | None:
    """Find a new place; one whose size changes keeps what it can of the old one, if it may be anywhere."""
    mine = [gpu for gpu in pick.job.gpus if cluster.type_of[gpu] == pick.gpu_type and free.has((gpu,))]
    is_bounded = pick.job.hosts is not None or pick.job.nodes or pick.job.cell in CELLS
    if not mine or len(pick.job.gpus) == pick.size or is_bounded:
        return free.gather_for(pick.job, pick.size, pick.gpu_type)
    stays = tuple(mine[: pick.size])
    free.take(stays)
    more = free.gather(pick.size - len(stays), pick.gpu_type, near=cluster.hosts_of(stays))
    return tuple(sorted(stays + more))
