"""Optimus: each worker to the job whose remaining time it cuts most (EuroSys 2018).

Every job first gets the least it can run on, in order of arrival. The GPUs that are left go one by one to
the elastic job with the largest drop in remaining time per GPU. Remaining time is what is left to train, by
the fitted loss curve where losses are told, else by the part done and the length, over the speed at that
many workers: as measured, by the fitted speed model between measurements, in proportion where nothing is
known. Training here is synchronous with as many servers as workers, or none. Jobs that are not elastic get
their size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from gandiva_slurm.policy.baselines.fits import SyncSpeed, fit_loss, fit_workers
from gandiva_slurm.policy.baselines.placing import Pick, Ration, Types, settle
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, Rates, View

#: Sizes are worked out anew after so long when nothing else happens: the paper's interval.
INTERVAL_NS = 600 * 10**9

#: A job has converged when an epoch lowers its loss by less than this part of what it is.
CONVERGED = 0.01

#: Speeds of different numbers of workers that must be known before the speed model is trusted.
FEWEST_SEEN = 3

#: It is fitted to so many of them at most, and so many models are remembered.
MOST_SEEN, MOST_FITS = 12, 1000


class Optimus:
    """Marginal gains of remaining time."""

    name = "optimus"

    def __init__(self, settings: PolicySettings) -> None:
        self._oracle = settings.oracle
        self._left = Remaining()
        self._fits = Fits()

    def decide(self, view: View) -> Plan:
        """Give everybody its least, then grow the elastic jobs."""
        ration, types = Ration(view), Types(view, self._oracle)
        picks: dict[int, Pick] = {}
        for job in view.jobs.values():
            if not ration.left:
                break
            least = bounds(job)[0]
            pick = ration.pick(job, types.of(job, least), least)
            if pick is not None:
                picks[job.job_id] = pick
        self._left.forget_all_but(view.jobs)
        speeds = Speeds(self._oracle or view.rates, view.jobs.values(), self._fits)
        grown = grow(picks, ration, speeds, {job_id: self._left.of_ns(picks[job_id].job) for job_id in picks})
        is_elastic = any(least < most for least, most in (bounds(pick.job) for pick in picks.values()))
        wake_ns = view.now_ns + INTERVAL_NS if is_elastic and len(picks) > 1 else None
        return Plan(settle(view, list(grown.values())), wake_ns)


def bounds(job: JobView) -> tuple[int, int]:
    """Least and most GPUs it may run on now."""
    if job.gpus and not job.can_migrate:
        return len(job.gpus), len(job.gpus)
    return job.min_size or job.size, max(job.max_size, job.min_size) or job.size


class Remaining:
    """Run time left at the size asked for."""

    def __init__(self) -> None:
        self._epochs: dict[int, tuple[int, float]] = {}

    def forget_all_but(self, jobs: Mapping[int, JobView]) -> None:
        """Drop fits of jobs that are gone."""
        self._epochs = {job_id: fit for job_id, fit in self._epochs.items() if job_id in jobs}

    def of_ns(self, job: JobView) -> float:
        """By its losses, its length, or the part done; as much as it ran where nothing is told."""
        if len(job.losses) >= FEWEST_SEEN and job.losses[-1][0] > 0:
            done = job.losses[-1][0]
            return max(1.0, job.ran_ns * (self._last_epoch(job) - done) / done)
        if job.left_ns is not None:
            return max(1.0, job.left_ns)
        if job.length_ns is not None:
            return max(1.0, job.length_ns * (1 - job.progress))
        if job.progress > 0:
            return max(1.0, job.ran_ns * (1 - job.progress) / job.progress)
        return float(max(job.ran_ns, INTERVAL_NS))

    def _last_epoch(self, job: JobView) -> float:
        known = self._epochs.get(job.job_id)
        if known is None or known[0] != len(job.losses):
            last = fit_loss(job.losses).converges_at(CONVERGED * job.losses[-1][1])
            known = self._epochs[job.job_id] = (len(job.losses), last)
        return known[1]


class Fits:
    """Speed models by what they were fitted to."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, float], ...], SyncSpeed] = {}

    def of(self, seen: tuple[tuple[int, float], ...]) -> SyncSpeed:
        """Fit (workers, speed) pairs, once while nothing new is measured."""
        if len(self._known) > MOST_FITS:
            self._known.clear()
        if seen not in self._known:
            self._known[seen] = fit_workers(seen)
        return self._known[seen]


class Speeds:
    """Speed of a model on any number of GPUs of a type; good for one question."""

    def __init__(self, rates: Rates, jobs: Iterable[JobView], fits: Fits) -> None:
        self._rates, self._fits = rates, fits
        self._most: dict[str, int] = {}
        for job in jobs:
            self._most[job.model] = max(self._most.get(job.model, 1), bounds(job)[1])
        self._models: dict[tuple[str, str], SyncSpeed | float] = {}

    def at(self, model: str, gpu_type: str, size: int) -> float:
        """Tell the speed; 0: cannot run."""
        known = self._rates.alone(model, size, gpu_type)
        if known is not None:
            return known
        key = (model, gpu_type)
        if key not in self._models:
            self._models[key] = self._fit(model, gpu_type)
        fitted = self._models[key]
        return fitted.at(size, size) if isinstance(fitted, SyncSpeed) else fitted * size

    def _fit(self, model: str, gpu_type: str) -> SyncSpeed | float:
        """Fit what is known; a number is the speed a worker where too little is."""
        seen = [
            (size, speed)
            for size in range(1, self._most.get(model, 1) + 1)
            if (speed := self._rates.alone(model, size, gpu_type))
        ]
        if len(seen) >= FEWEST_SEEN:
            return self._fits.of(tuple(seen[:: -(-len(seen) // MOST_SEEN)]))
        return max((speed / workers for workers, speed in seen), default=1.0)


def grow(
    picks: Mapping[int, Pick], ration: Ration, speeds: Speeds, left_ns: Mapping[int, float]
) -> dict[int, Pick]:
    """Give what the ration has left to whom it helps most, until it helps nobody."""
    grown = dict(picks)
    heap: list[tuple[float, tuple[int, int], int, int]] = []

    def offer(pick: Pick) -> None:
        gain, size = next_gain(pick, speeds, left_ns[pick.job.job_id])
        if gain > 0:
            heapq.heappush(heap, (-gain, pick.job.order, pick.job.job_id, size))

    for pick in picks.values():
        offer(pick)
    while heap:
        _, _, job_id, size = heapq.heappop(heap)
        pick = grown[job_id]
        if ration.left_of(pick.gpu_type) < size - pick.size:
            continue
        ration.add(pick.gpu_type, size - pick.size)
        grown[job_id] = pick._replace(size=size)
        offer(grown[job_id])
    return grown


def next_gain(pick: Pick, speeds: Speeds, left_ns: float) -> tuple[float, int]:
    """Drop in remaining time per GPU with the next more GPUs on which it can run, and how many these are."""
    job, gpu_type = pick.job, pick.gpu_type
    now, asked = speeds.at(job.model, gpu_type, pick.size), speeds.at(job.model, gpu_type, job.size)
    for size in range(pick.size + 1, bounds(job)[1] + 1):
        then = speeds.at(job.model, gpu_type, size)
        if then > 0:
            work = left_ns * (asked or 1.0)
            drop = (work / now if now else left_ns) - work / then
            return drop / (size - pick.size), size
    return 0.0, pick.size


def make(settings: PolicySettings) -> Optimus:
    """Make the policy."""
    return Optimus(settings)
