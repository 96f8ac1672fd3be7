"""What a model's rate may be on a GPU type where it was never run: by what other models gained there.

Rates learnt by running are kept as they are. For the rest, the mean gain from one type to another, of all
models measured on both, is taken on trust and a little more: a job must run somewhere once to be known there,
and a type that is taken for too slow would never be tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from gandiva_slurm.policy.port import JobView, Rates

#: What is not known is taken for so much better than it is likely to be.
_HOPE = 1.5

_Shape = tuple[str, int]


class Forecast:
    """The rates that are known, and guesses for the others."""

    def __init__(self, gpu_types: Sequence[str]) -> None:
        self._types = tuple(gpu_types)
        self._known: dict[_Shape, dict[str, float]] = {}
        #: by pair of types: sum of the logarithms of gains, and how many
        self._gains: dict[tuple[str, str], tuple[float, int]] = {}
        #: what was answered since something was learnt: of all types, and of those that a job accepts
        self._guesses: dict[_Shape, dict[str, float]] = {}
        self._accepted: dict[tuple[str, int, tuple[str, ...]], dict[str, float]] = {}
        #: rates learnt so far, counted: while it stands, so do all answers
        self.learnt = 0

    def learn(self, jobs: Iterable[tuple[JobView, str]], rates: Rates) -> None:
        """Look what was measured of jobs that ran on these types."""
        for job, gpu_type in jobs:
            shape = (job.model, job.size)
            if gpu_type in self._known.get(shape, ()):
                continue
            rate = rates.alone(job.model, job.size, gpu_type)
            if rate is not None:
                self._add(shape, gpu_type, rate)

    def rates(self, job: JobView) -> Mapping[str, float]:
        """Return a job's rate on each type, known or guessed; 1 where nothing is known of it at all."""
        shape = (job.model, job.size)
        if shape not in self._guesses:
            known = self._known.get(shape, {})
            self._guesses[shape] = {t: known[t] if t in known else self._guess(t, known) for t in self._types}
        found = self._guesses[shape]
        if not job.gpu_types:
            return found
        key = (job.model, job.size, job.gpu_types)
        if key not in self._accepted:
            self._accepted[key] = {t: found[t] for t in self._types if t in job.gpu_types}
        return self._accepted[key]

    def _add(self, shape: _Shape, gpu_type: str, rate: float) -> None:
        known = self._known.setdefault(shape, {})
        for other, there in known.items():
            if rate > 0 and there > 0:
                self._note(other, gpu_type, math.log(rate / there))
                self._note(gpu_type, other, math.log(there / rate))
        known[gpu_type] = rate
        self.learnt += 1
        self._guesses.clear()
        self._accepted.clear()

    def _note(self, source: str, target: str, gain: float) -> None:
        total, count = self._gains.get((source, target), (0.0, 0))
        self._gains[(source, target)] = (total + gain, count + 1)

    def _guess(self, gpu_type: str, known: Mapping[str, float]) -> float:
        usable = {other: rate for other, rate in known.items() if rate > 0}
        if not usable:
            return 1.0
        likely = []
        for other, rate in usable.items():
            total, count = self._gains.get((other, gpu_type), (0.0, 0))
            if count:
                likely.append(rate * math.exp(total / count))
        return _HOPE * max([*likely, *([] if likely else usable.values())])
