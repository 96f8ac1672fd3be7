"""Two classes of jobs: guaranteed ones, and opportunistic ones on what those leave (AntMan).

An opportunistic job has GPUs that no guaranteed one wants now, or shares one with a guaranteed job that
keeps its speed. It is put off at once when a guaranteed job needs its place, and costs its user nothing of
his share. One that has waited long is promoted, for good: soon, while the guaranteed jobs of its user leave
room in his share, and late in any case. From then on its user is charged for it as for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from gandiva_slurm.policy.packing.pairs import Admits, Pair, admits_all
from gandiva_slurm.policy.port import GUARANTEED, JobView, Promotion, Rates, View

#: A guaranteed job keeps so much of its speed beside another: its steps are 5 % longer at most.
KEEPS = 1 / 1.05
#: So long without GPUs, and an opportunistic job is promoted: while its user's share has room, and always.
PATIENCE_NS, MOST_PATIENCE_NS = 300 * 10**9, 3600 * 10**9


class Classes:
    """Who is guaranteed, and since when the others wait."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._promoted: set[int] = set()

    def is_guaranteed(self, job: JobView) -> bool:
        """True for guaranteed jobs, and for those promoted."""
        return job.job_class == GUARANTEED or job.job_id in self._promoted

    def promote(
        self, view: View, ran: Set[int], tickets: Mapping[str, int], owners: Mapping[int, str]
    ) -> dict[int, Promotion]:
        """Promote those that have waited long, and return them; `ran`: jobs that had GPUs."""
        # Shown as guaranteed it needs no word of ours, and its owner may make it opportunistic again.
        mine = {job_id: view.jobs[job_id] for job_id in self._promoted & view.jobs.keys()}
        self._promoted = {job_id for job_id, job in mine.items() if job.job_class != GUARANTEED}
        others = [job for job in view.jobs.values() if not self.is_guaranteed(job)]
        waiting = [job for job in others if job.job_id not in ran]
        self._since = {job.job_id: self._since.get(job.job_id, view.now_ns) for job in waiting}
        ripe = [job for job in waiting if view.now_ns - self._since[job.job_id] >= PATIENCE_NS]
        found: dict[int, Promotion] = {}
        wanted = self._wanted(view, owners) if ripe else {}
        for job in ripe:
            user = owners[job.job_id]
            active = sum(tickets.get(name, 1) for name in {*wanted, user})
            room = (view.cluster.size - len(view.down)) * tickets.get(user, 1) / active
            has_room = wanted.get(user, 0) + job.size <= room
            waited_ns = view.now_ns - self._since[job.job_id]
            if has_room or waited_ns >= MOST_PATIENCE_NS:
                self._promoted.add(job.job_id)
                wanted[user] = wanted.get(user, 0) + job.size
                why = f"the share of {user or 'its user'} has room" if has_room else "it is not to starve"
                found[job.job_id] = Promotion(waited_ns, why)
        return found

    def _wanted(self, view: View, owners: Mapping[int, str]) -> dict[str, int]:
        """GPUs that each user's guaranteed jobs ask for."""
        wanted: dict[str, int] = {}
        for job in view.jobs.values():
            if self.is_guaranteed(job):
                wanted[owners[job.job_id]] = wanted.get(owners[job.job_id], 0) + job.size
        return wanted


class _Place(NamedTuple):
    model: str
    gpu_type: str


class Guard:
    """Opportunistic guests beside guaranteed hosts: tried once for two models on a type, kept or undone.

    A trial takes one GPU and is looked at again as soon as there are rates.
    """

    def __init__(self) -> None:
        self._open: set[tuple[str, str, str]] = set()
        self.tried = self.kept = self.undone = 0
        #: True when a pair of the last `match` is on trial
        self.is_trying = False

    def match(
        self,
        hosts: Sequence[tuple[JobView, str]],
        guests: Iterable[JobView],
        rates: Rates,
        old: Mapping[int, int],
        admits: Admits = admits_all,
    ) -> list[Pair]:
        """Return pairs of one guaranteed host, alone on a GPU of that type, and one guest, in their order."""
        self._learn(rates)
        waiting = {job.job_id: job for job in guests if job.size == 1 and job.can_pack and job.model}
        free = {host.job_id: (host, gpu_type) for host, gpu_type in hosts if host.can_pack and host.model}
        on_trial: set[tuple[str, str, str]] = set()
        pairs = []
        for host_id, guest_id in old.items():
            if host_id in free and guest_id in waiting:
                host, gpu_type = free[host_id]
                places = {_Place(host.model, gpu_type): [host]}
                pairs += self._pair(waiting[guest_id], places, rates, on_trial, admits)
        for pair in pairs:
            del free[pair.host], waiting[pair.guest]
        places = {}
        for host, gpu_type in free.values():
            places.setdefault(_Place(host.model, gpu_type), []).append(host)
        for job in waiting.values() if places else ():
            pairs += self._pair(job, places, rates, on_trial, admits)
        self.is_trying = bool(on_trial)
        return pairs

    def _pair(
        self,
        job: JobView,
        places: dict[_Place, list[JobView]],
        rates: Rates,
        on_trial: set[tuple[str, str, str]],
        admits: Admits,
    ) -> list[Pair]:
        """Put a guest beside the host that keeps most; where nothing is known, try. [] where it cannot be."""
        best: tuple[float, _Place] | None = None
        for place, hosts in places.items():
            kept = self._kept(place, job.model, rates)
            if kept is None or not job.accepts(place.gpu_type):
                continue
            if not any(admits(host, job) for host in hosts):
                continue
            is_open = (place.model, job.model, place.gpu_type) not in on_trial
            if (kept >= KEEPS or (kept == 0.0 and is_open)) and (best is None or kept > best[0]):
                best = (kept, place)
        if best is None:
            return []
        kept, place = best
        if not kept:
            key = (place.model, job.model, place.gpu_type)
            on_trial.add(key)
            self.tried += key not in self._open
            self._open.add(key)
        host = next(host for host in places[place] if admits(host, job))
        places[place].remove(host)
        return [Pair(host.job_id, job.job_id, not kept)]

    def _kept(self, place: _Place, guest: str, rates: Rates) -> float | None:
        """Part of its speed that the host keeps; 0: never seen; None: too little, or its own is not known."""
        alone = rates.alone(place.model, 1, place.gpu_type)
        both = rates.packed(place.model, guest, place.gpu_type)
        if not alone or both is None:
            return 0.0 if alone else None
        return both[0] / alone if both[0] >= KEEPS * alone and both[1] > 0 else None

    def _learn(self, rates: Rates) -> None:
        """Close the trials that have been measured."""
        for first, second, gpu_type in sorted(self._open):
            if rates.packed(first, second, gpu_type) is not None:
                self._open.remove((first, second, gpu_type))
                is_kept = self._kept(_Place(first, gpu_type), second, rates) is not None
                self.kept += is_kept
                self.undone += not is_kept
