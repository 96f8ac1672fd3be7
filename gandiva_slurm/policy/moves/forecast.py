"""What a model's rate may be on a GPU type where it was never run: by what other models gained there.

Rates learnt by running are kept as they are, unless they are far from what everybody else gains (`voices`).
For the rest, the gain from one type to another, of the user in the middle of all that were measured on both,
is taken on trust and a little more: a job must run somewhere once to be known there, and a type that is taken
for too slow would never be tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gandiva_slurm.policy.moves.voices import Voices
from gandiva_slurm.policy.port import JobView, Rates

#: What is not known is taken for so much better than it is likely to be.
_HOPE = 1.5

_Shape = tuple[str, int]


class Forecast:
    """The rates that are known, and guesses for the others."""

    def __init__(self, gpu_types: Sequence[str]) -> None:
        #: all of the cluster, the first measured one of which others are compared with
        self.types = tuple(gpu_types)
        self._known: dict[_Shape, dict[str, float]] = {}
        self._voices = Voices()
        #: who trains what: of a model of several users the first that was measured
        self._users: dict[_Shape, str] = {}
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
            if rate is not None and math.isfinite(rate):
                self._users.setdefault(shape, job.user)
                self._add(shape, gpu_type, rate)

    def believe(self, rates: Rates) -> Rates:
        """Return these rates as far as they are believed: of one alone, by what everybody else gains."""
        return _Believed(rates, self)

    def believed(self, model: str, size: int, rates: Mapping[str, float]) -> Mapping[str, float]:
        """Return a model's rates by type as far as they are believed."""
        shape = (model, size)
        return self._voices.believed(self._users.get(shape, ""), rates, self.types)

    def rates(self, job: JobView) -> Mapping[str, float]:
        """Return a job's rate on each type, known or guessed; 1 where nothing is known of it at all."""
        shape = (job.model, job.size)
        if shape not in self._guesses:
            known = self.believed(*shape, self._known.get(shape, {}))
            self._guesses[shape] = {t: known[t] if t in known else self._guess(t, known) for t in self.types}
        found = self._guesses[shape]
        if not job.gpu_types:
            return found
        key = (job.model, job.size, job.gpu_types)
        if key not in self._accepted:
            self._accepted[key] = {t: found[t] for t in self.types if t in job.gpu_types}
        return self._accepted[key]

    def _add(self, shape: _Shape, gpu_type: str, rate: float) -> None:
        known = self._known.setdefault(shape, {})
        for other, there in known.items():
            if rate > 0 and there > 0:
                self._voices.hear(self._users[shape], other, gpu_type, math.log(rate) - math.log(there))
        known[gpu_type] = rate
        self.learnt += 1
        self._guesses.clear()
        self._accepted.clear()

    def _guess(self, gpu_type: str, known: Mapping[str, float]) -> float:
        usable = {other: rate for other, rate in known.items() if rate > 0}
        if not usable:
            return 1.0
        gains = {other: self._voices.guess(other, gpu_type) for other in usable}
        likely = [usable[other] * gain for other, gain in gains.items() if gain is not None]
        return _HOPE * max(likely or usable.values())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was written down; what an older release knew of gains has no users: it is learnt anew."""
        if "_voices" in state:
            self.__dict__.update(state)
        else:
            self.__init__(state["_types"])  # type: ignore[misc]


class _Believed:
    """Rates alone as far as they are believed; those of pairs as they are (`packing.pairs.normal_rates`)."""

    def __init__(self, rates: Rates, forecast: Forecast) -> None:
        self._rates, self._forecast = rates, forecast
        self._rows: dict[tuple[str, int, bool], Mapping[str, float]] = {}

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """Return the rate without a neighbour."""
        key = (model, size, is_local)
        if key not in self._rows:
            told = ((name, self._rates.alone(model, size, name, is_local)) for name in self._forecast.types)
            row = {name: rate for name, rate in told if rate is not None}
            self._rows[key] = self._forecast.believed(model, size, row)
        return self._rows[key].get(gpu_type)

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """Return both rates on one shared GPU."""
        return self._rates.packed(model, other, gpu_type)
