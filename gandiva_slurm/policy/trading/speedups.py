"""How much faster a user's jobs run on one GPU type than on another (Gandiva_fair, EuroSys 2020).

Only measured rates count. What a job claims about itself is no argument of any function here, so no claim can
be a lie; and a type without a measurement is missing from the answer, so that nobody trades on a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from gandiva_slurm.policy.port import JobView, Rates

#: Speeds are whole multiples of one part in this many: finer than any measurement, and exact from there on.
PARTS = 10**9

#: by GPU type: speed of a GPU for this user, as a part of his best type's.
#: 0: he cannot run there; missing: not measured
Speeds = Mapping[str, Fraction]


def job_speeds(job: JobView, rates: Rates, gpu_types: Sequence[str]) -> dict[str, Fraction]:
    """Return a job's speed by type, its best measured type at 1; types not measured are left out."""
    measured = {
        gpu_type: rate
        for gpu_type in gpu_types
        if (rate := _rate(job, rates, gpu_type)) is not None and 0 <= rate < float("inf")
    }
    best = max(measured.values(), default=0.0)
    if best <= 0:
        return dict.fromkeys(measured, Fraction(0))
    return {gpu_type: _part(rate / best) for gpu_type, rate in measured.items()}


def user_speeds(jobs: Iterable[JobView], rates: Rates, gpu_types: Sequence[str]) -> dict[str, Fraction]:
    """Return a user's speed by type: the mean of his jobs', weighed by their GPUs.

    A type counts as measured when jobs with at least half of his GPUs were; the mean is over the jobs that
    were measured on all such types, so that two types are never compared by different jobs.
    """
    profiles = [(job.size, job_speeds(job, rates, gpu_types)) for job in jobs]
    everything = sum(size for size, _ in profiles)
    known = [
        gpu_type
        for gpu_type in gpu_types
        if 2 * sum(size for size, speeds in profiles if gpu_type in speeds) >= everything > 0
    ]
    whole = [(size, speeds) for size, speeds in profiles if all(gpu_type in speeds for gpu_type in known)]
    weight = sum(size for size, _ in whole)
    if not weight:
        return {}
    return {
        gpu_type: sum((size * speeds[gpu_type] for size, speeds in whole), Fraction(0)) / weight
        for gpu_type in known
    }


def _rate(job: JobView, rates: Rates, gpu_type: str) -> float | None:
    """The measured rate; a type that the job does not accept is one on which it cannot run."""
    return rates.alone(job.model, job.size, gpu_type) if job.accepts(gpu_type) else 0.0


def _part(ratio: float) -> Fraction:
    """A speed in whole parts, and at least one of them: to run slowly is not to be unable to run."""
    return Fraction(max(1, round(ratio * PARTS)) if ratio > 0 else 0, PARTS)
