"""What forecasts learn of themselves: limits that jobs had, and by how much earlier forecasts were wrong.

A forecast of an end is kept until its job has ended: then it is known how far off it was. Forecasts err
alike, for nobody foresees what will be submitted: what is told next is widened, or narrowed, by that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.sim.forecast.lengths import Past
from gandiva_slurm.sim.forecast.ranges import HIGH, LOW, Forecast, Foretold, Range, limit_ns

#: How many errors are remembered, the latest; with fewer than LEAST the ranges of the runs stay as they are.
MOST, LEAST = 400, 30
#: A job's forecast is kept when it is this much nearer to its end than the last one that was kept.
NEARER = 0.7
#: Jobs that are remembered at most.
MOST_JOBS = 20_000


@dataclass
class Memory:
    """By job: the limit it had, and forecasts of its end that are to be judged."""

    limits_ns: dict[int, int] = field(default_factory=dict)
    #: (of what moment, low, middle and high of the end), unix seconds
    open: dict[int, list[list[float]]] = field(default_factory=dict)
    #: how far ends were from the middle, in parts of the half range on that side: -1 is at its low end
    errors: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        limits, kept = [*self.limits_ns.items()], [*self.open.items()]
        return {"limits_ns": limits, "open": kept, "errors": self.errors}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        """Read what `to_json` returned; KeyError, TypeError or ValueError: it is something else."""
        limits = {int(job_id): int(limit_ns) for job_id, limit_ns in data["limits_ns"]}
        kept = {int(job_id): [[float(at_s) for at_s in one] for one in rows] for job_id, rows in data["open"]}
        if any(len(one) != 4 for rows in kept.values() for one in rows):
            raise ValueError("a forecast that was kept has a moment and three times")
        return cls(limits, kept, [float(error) for error in data["errors"]][-MOST:])

    def heard(self, ends_s: Mapping[int, float]) -> None:
        """These jobs have ended, at these times."""
        for job_id in [job_id for job_id in self.open if job_id in ends_s]:
            for of_s, low_s, mid_s, high_s in self.open.pop(job_id):
                self.errors.append(error_of(of_s, Range(low_s, mid_s, high_s), ends_s[job_id]))
        del self.errors[:-MOST]

    def with_limit(self, job_id: int, past: Past) -> Past:
        """Return a job that has ended with the limit that it had."""
        return past._replace(limit_ns=self.limits_ns.get(job_id, 0))

    def corrected(self, told: Forecast, engine: Engine) -> Forecast:
        """Remember a forecast, and return it as earlier ones have it."""
        for job_id, record in engine.jobs.items():
            self.limits_ns[job_id] = limit_ns(engine, record)
        known: dict[int, Any]
        for known in (self.limits_ns, self.open):
            for job_id in [*known][:-MOST_JOBS]:
                del known[job_id]
        for job in told.jobs:
            self._keep(job, told.of_s)
        if len(self.errors) < LEAST:
            return told
        errors = sorted(self.errors)
        low, high = (errors[round(part * (len(errors) - 1))] for part in (LOW, HIGH))
        return replace(told, jobs=[
            replace(job, end=shifted(job.end, told.of_s, low, high)) for job in told.jobs
        ])  # fmt: skip

    def _keep(self, job: Foretold, of_s: float) -> None:
        if job.end is None or None in job.end:
            return
        kept = self.open.setdefault(job.job_id, [])
        low_s, mid_s, high_s = (at_s or 0.0 for at_s in job.end)
        if not kept or mid_s - of_s < NEARER * (kept[-1][2] - kept[-1][0]):
            kept.append([of_s, low_s, mid_s, high_s])


def error_of(of_s: float, told: Range, end_s: float) -> float:
    """How far an end was from the middle, on the scale of logarithms of waits, in parts of the half range."""
    low, mid, high = (math.log(max(1.0, (at_s or 0.0) - of_s)) for at_s in told)
    came = math.log(max(1.0, end_s - of_s))
    half = high - mid if came >= mid else mid - low
    return (came - mid) / max(half, 0.05)


def shifted(told: Range | None, of_s: float, low: float, high: float) -> Range | None:
    """Return the range whose ends are these parts of the half ranges away from the middle."""
    if told is None or None in told:
        return told
    begins, mid, ends = (math.log(max(1.0, (at_s or 0.0) - of_s)) for at_s in told)

    def at_s(error: float) -> float:
        half = ends - mid if error >= 0 else mid - begins
        return of_s + math.exp(mid + error * max(half, 0.05))

    return Range(at_s(low), told.mid_s if low < 0 < high else at_s((low + high) / 2), at_s(high))
