"""Elastic jobs: they grow into GPUs that nobody waits for, and give them back at once (Gandiva, grow-shrink).

A job that asks for GPUs from `min_size` to `max_size` takes its turns with `size` of them, and is charged by
what it holds. When its size does not fit beside the others, it starts with fewer. When GPUs of its node have
been idle for a turn, and no job that waits could use them, it grows, up to the node's. Where its node has
none left, and it may have two nodes (`max_nodes`), it grows into as many GPUs of another as it has on its
own. As soon as somebody waits for them it is back at `size`: growth is never defended, so a job that waits is
not later by it.

A resize costs a restart. So nobody grows twice in a turn; each time a job has to give GPUs back it waits
twice as long before it grows again; and a size at which it was not faster is not taken again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import CELLS, JobView, View
from gandiva_slurm.policy.shares.rounds import Runs

#: Patience doubles with each time that GPUs were given back, up to so many times.
_MOST_DOUBLINGS = 4
#: More GPUs must bring so much more speed; less is noise.
_LEAST_GAIN = 1.02


def trimmed(gpus: tuple[int, ...], size: int) -> tuple[int, ...]:
    """What a job keeps of its GPUs when it has more than it is to have."""
    return gpus[:size]


def is_elastic(job: JobView) -> bool:
    """True when it may run on more or fewer GPUs than it asks for; who cannot be moved cannot be resized."""
    return job.can_migrate and (0 < job.min_size < job.size or job.max_size > job.size)


class Elastic:
    """Who had to give back, when jobs were resized, and since when GPUs are idle."""

    def __init__(self, turn_ns: int) -> None:
        #: GPUs must have been idle for so long before a job grows into them
        self.turn_ns = turn_ns
        self._idle_since: dict[int, int] = {}
        self._given_back: dict[int, int] = {}
        self._resized_ns: dict[int, int] = {}

    def start_small(self, view: View, runs: Runs, waiting: Iterable[JobView]) -> Runs:
        """Start jobs whose size does not fit on what is idle, in this order; return their GPUs."""
        comers = [job for job in waiting if is_elastic(job) and 0 < job.min_size < job.size]
        if not comers:
            return {}
        free = FreeGpus(view.cluster, view.down.union(*runs.values()))
        small: Runs = {}
        for job in comers:
            gpus = _small_place(view, free, job)
            if gpus:
                small[job.job_id] = gpus
        return small

    def grow(self, view: View, runs: Runs, shared: Set[int], waiting: Sequence[JobView]) -> dict[int, str]:
        """Let jobs grow in `runs`; return a sentence for each that grew or had to give back."""
        if not any(is_elastic(job) for job in view.jobs.values()):
            self._idle_since = {}
            return {}
        idle = set(range(view.cluster.size)).difference(view.down, *runs.values())
        idle -= _waited_for(view, idle, waiting)
        self._idle_since = {gpu: self._idle_since.get(gpu, view.now_ns) for gpu in idle}
        able = [view.jobs[j] for j in runs if j not in shared and is_elastic(view.jobs[j])]
        notes: dict[int, str] = {}
        for job in able:
            if len(job.gpus) > len(runs[job.job_id]):
                self._keep(view, job, runs, idle)
        self._note_losses(view, runs, notes)
        self._take(view, able, runs, idle, notes)
        self._forget(view)
        return notes

    def _keep(self, view: View, job: JobView, runs: Runs, idle: set[int]) -> None:
        """Leave a job that has grown what it has, as far as it pays, nobody waits for it, and it stays there.

        That it has grown is seen by where it lives: while it is saved and started anew no plan resizes it.
        """
        base = runs[job.job_id]
        if not set(base) <= set(job.gpus):
            return
        kept = [gpu for gpu in job.gpus if gpu in idle]
        if view.cluster.may_be_over(job.gpus, job):
            if len(base) + len(kept) == len(job.gpus) and _pays_apart(view, job, job.gpus):
                return self._give(job, runs, idle, kept)
            kept = [gpu for gpu in kept if view.cluster.are_near(sorted((base[0], gpu)))]
        size = _best_size(view, job, base, len(base) + len(kept))
        self._give(job, runs, idle, kept[: size - len(base)])

    def _give(self, job: JobView, runs: Runs, idle: set[int], more: Iterable[int]) -> None:
        added = tuple(more)
        if not added:
            return
        runs[job.job_id] = tuple(sorted({*runs[job.job_id], *added}))
        idle.difference_update(added)
        for gpu in added:
            self._idle_since.pop(gpu, None)

    def _note_losses(self, view: View, runs: Runs, notes: dict[int, str]) -> None:
        for job_id, gpus in runs.items():
            job = view.jobs[job_id]
            if is_elastic(job) and len(job.gpus) > len(gpus):
                self._given_back[job_id] = self._given_back.get(job_id, 0) + 1
                self._resized_ns[job_id] = view.now_ns
                notes[job_id] = f"back on {len(gpus)} GPUs: the rest is needed, or brought nothing"

    def _take(
        self, view: View, able: Iterable[JobView], runs: Runs, idle: set[int], notes: dict[int, str]
    ) -> None:
        """Give out GPUs that have been idle long enough, one by one to whoever has fewest."""
        for job in sorted(able, key=lambda job: (len(runs[job.job_id]), job.order)):
            gpus = runs[job.job_id]
            hosts = view.cluster.hosts_of(gpus)
            if len(hosts) > 1 or not self._is_patient(job, view.now_ns):
                continue
            needed_ns = self._patience_ns(job)
            host = view.cluster.hosts[min(hosts)]
            near = [gpu for gpu in host.gpus if gpu in idle and view.cluster.share((gpus[0], gpu), job.cell)]
            ripe = [gpu for gpu in near if view.now_ns - self._idle_since[gpu] >= needed_ns]
            size = _best_size(view, job, gpus, min(job.max_size, len(gpus) + len(ripe)))
            more = ripe[: size - len(gpus)]
            if not idle.intersection(host.gpus):
                more = self._beside(view, job, gpus, idle)
            if more:
                self._give(job, runs, idle, more)
                self._resized_ns[job.job_id] = view.now_ns
                size = len(runs[job.job_id])
                notes[job.job_id] = f"grown from {len(gpus)} to {size} GPUs: nobody waited for them"

    def _beside(self, view: View, job: JobView, gpus: tuple[int, ...], idle: Set[int]) -> list[int]:
        """Return as many GPUs as it has on its one node of another, idle long enough; []: there are none.

        Of several nodes the one with the fewest idle GPUs that has as many. One that lives nowhere yet begins
        on one node: whether it can be saved is not known before. One that began small has its size at home
        first, so that it is back on one node when others come.
        """
        if job.max_nodes < 2 or not job.size <= len(gpus) <= job.max_size // 2 or not job.gpus:
            return []
        barred, since_ns = Eligibility(view).barred(job), view.now_ns - self._patience_ns(job)
        found = []
        for index, host in enumerate(view.cluster.hosts):
            may_have = host.gpu_type == view.cluster.type_of[gpus[0]] and not barred.issuperset(host.gpus)
            here = [gpu for gpu in host.gpus if gpu in idle and gpu not in barred] if may_have else []
            ripe = [gpu for gpu in here if self._idle_since[gpu] <= since_ns]
            if len(ripe) >= len(gpus):
                found.append((len(here), index, ripe[: len(gpus)]))
        more = min(found)[2] if found else []
        return more if _pays_apart(view, job, [*gpus, *more]) else []

    def _patience_ns(self, job: JobView) -> int:
        return self.turn_ns << min(_MOST_DOUBLINGS, self._given_back.get(job.job_id, 0))

    def _is_patient(self, job: JobView, now_ns: int) -> bool:
        resized_ns = self._resized_ns.get(job.job_id)
        return resized_ns is None or now_ns - resized_ns >= self._patience_ns(job)

    def _forget(self, view: View) -> None:
        for book in (self._given_back, self._resized_ns):
            for job_id in [job_id for job_id in book if job_id not in view.jobs]:
                del book[job_id]


def _small_place(view: View, free: FreeGpus, job: JobView) -> tuple[int, ...]:
    """Take fewer GPUs than its size: those it has, else as many as there are of one type."""
    if job.min_size <= len(job.gpus) < job.size and free.has(job.gpus):
        free.take(job.gpus)
        return job.gpus
    types = [name for name in view.cluster.counts if job.accepts(name)]
    if job.cell in CELLS or job.hosts is not None:
        every = ((name, size) for size in range(job.size - 1, job.min_size - 1, -1) for name in types)
        return next((gpus for name, size in every if (gpus := free.gather_for(job, size, name))), ())
    best = max(types, key=free.left_of, default="")
    if not best or free.left_of(best) < job.min_size:
        return ()
    return free.gather(min(free.left_of(best), job.size - 1), best)


def _waited_for(view: View, idle: Set[int], waiting: Iterable[JobView]) -> set[int]:
    """Those of the idle GPUs that somebody who waits could use, now or when there are more of them."""
    types: set[str] = set()
    found: set[int] = set()
    for job in waiting:
        if job.gpus and not job.can_migrate:
            found.update(job.gpus)
        else:
            types.update(job.gpu_types or view.cluster.counts)
    return {gpu for gpu in idle if gpu in found or view.cluster.type_of[gpu] in types}


def _pays_apart(view: View, job: JobView, gpus: Sequence[int]) -> bool:
    """True unless it is known to be no faster on these of two nodes than on one with half as many."""
    gpu_type, half = view.cluster.type_of[gpus[0]], len(gpus) // 2
    here = view.rates.alone(job.model, half, gpu_type) if job.model else None
    there = view.rates.alone(job.model, 2 * half, gpu_type, is_local=False) if here else None
    return there is None or here is None or there > here * _LEAST_GAIN


def _best_size(view: View, job: JobView, gpus: tuple[int, ...], most: int) -> int:
    """The largest size that is not known to be no faster than the present one."""
    gpu_type = view.cluster.type_of[gpus[0]]
    here = view.rates.alone(job.model, len(gpus), gpu_type) if job.model else None
    for size in range(most, len(gpus), -1):
        there = view.rates.alone(job.model, size, gpu_type) if here else None
        if there is None or here is None or there > here * _LEAST_GAIN:
            return size
    return len(gpus)
