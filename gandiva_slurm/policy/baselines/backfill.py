"""EASY backfill as Slurm's: the head of the queue has a reservation, later jobs may not delay it.

Time limits are `length_ns`; a job without one is planned for a year, as Slurm does with an unlimited one.
Nobody is suspended. See sched/backfill in Slurm's manual, and Lifka's EASY (1995).
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.policy.baselines.placing import Runs, Types, held, kept
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View

#: What Slurm plans for a job without a limit.
UNLIMITED_NS = 365 * 24 * 3600 * 10**9


@dataclass(slots=True)
class Reservation:
    """GPUs of a type kept for the head of the queue from a time on, and how many are over then."""

    gpu_type: str
    start_ns: int
    extra: int


class Backfill:
    """First come, first served, with backfill behind the first job that has to wait."""

    name = "backfill"

    def __init__(self, settings: PolicySettings) -> None:
        self._oracle = settings.oracle
        self._runs: Runs = {}

    def decide(self, view: View) -> Plan:
        """Start what fits from the head; reserve for the first that does not; fill behind it."""
        runs = kept(view, self._runs)
        free = FreeGpus(view.cluster, view.down.union(held(runs)))
        types = Types(view, self._oracle)
        notes: dict[int, str] = {}
        reservation: Reservation | None = None
        for job_id, job in view.jobs.items():
            if not free.left:
                break
            usable = types.of(job)
            if job_id in runs or not usable:
                continue
            if reservation is not None:
                usable = tuple(name for name in usable if may_fill(job, name, reservation, view.now_ns))
            place = free.place(job, usable)
            if place is not None:
                runs[job_id] = place
                _use_extra(job, view, place, reservation)
            elif reservation is None:
                reservation = reserve(job, usable, view, runs)
                notes[job_id] = _note(reservation, view.now_ns)
        self._runs = runs
        return Plan(dict(runs), None, notes)


def remaining_ns(job: JobView) -> int:
    """Time until its limit; one that is past it may end at any moment."""
    return max(1, (UNLIMITED_NS if job.length_ns is None else job.length_ns) - job.ran_ns)


def reserve(head: JobView, types: tuple[str, ...], view: View, runs: Runs) -> Reservation:
    """Find when and on which type the head can start at the latest, if all run to their limits."""
    ends: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
    free = {name: view.cluster.counts[name] for name in types}
    for gpu in view.down:
        if view.cluster.type_of[gpu] in free:
            free[view.cluster.type_of[gpu]] -= 1
    for job_id, gpus in runs.items():
        name = view.cluster.type_of[gpus[0]]
        if name in ends:
            ends[name].append((view.now_ns + remaining_ns(view.jobs[job_id]), len(gpus)))
            free[name] -= len(gpus)
    found = [_shadow(head.size, name, free[name], sorted(ends[name])) for name in types]
    return min(found, key=lambda each: each.start_ns)


def _shadow(size: int, gpu_type: str, free: int, ends: list[tuple[int, int]]) -> Reservation:
    start_ns = 0
    for end_ns, gpus in ends:
        if free >= size and end_ns > start_ns:
            break
        free += gpus
        start_ns = end_ns
    if free < size:  # only when GPUs that are down come back
        return Reservation(gpu_type, 2 * UNLIMITED_NS + start_ns, 0)
    return Reservation(gpu_type, start_ns, free - size)


def may_fill(job: JobView, gpu_type: str, reservation: Reservation, now_ns: int) -> bool:
    """Tell whether it leaves the head its start: on another type, over before it, or on what is over then."""
    if gpu_type != reservation.gpu_type or job.size <= reservation.extra:
        return True
    return now_ns + remaining_ns(job) <= reservation.start_ns


def _use_extra(job: JobView, view: View, place: tuple[int, ...], reservation: Reservation | None) -> None:
    if reservation is None or view.cluster.type_of[place[0]] != reservation.gpu_type:
        return
    if view.now_ns + remaining_ns(job) > reservation.start_ns:
        reservation.extra -= job.size


def _note(reservation: Reservation, now_ns: int) -> str:
    wait_s = (reservation.start_ns - now_ns) // 10**9
    return f"first in the queue: {reservation.gpu_type} reserved for it in {wait_s} s at the latest"


def make(settings: PolicySettings) -> Backfill:
    """Make the policy."""
    return Backfill(settings)
