"""Which trainings of a search go on: curves foretold, the best alone, the rest in turn (Gandiva, AutoML).

Every so many mini-batches a training tells its accuracy. What it will come to at the end of its run is
foretold from the curve a(1 - e^(-x/k)); trainings are ranked by what they may come to, the best run alone,
the others time-slice by stride, and whoever was foretold too little twice in a row is given up.

The fit is least squares for each k of a grid, with Gaussian beliefs about a and about the noise, so a few
points give a wide forecast and no false certainty. What the trainings of a search have in common, how fast
they learn and how noisy they are, is learnt from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gandiva_slurm.policy.port import JobView, Plan, View
from gandiva_slurm.slicing.stride import Entrant, Pool, run_round
from gandiva_slurm.slicing.turns import Turns

#: Times in which a curve rises, in parts of a whole run.
_TIMES = tuple(0.03 * 1.12**step for step in range(32))
#: What a training comes to where nothing is known of it: mean and precision.
_MEAN, _PRECISION = 0.5, 1 / 0.3**2
#: Noise of an accuracy before any is measured, counted as so many measurements.
_NOISE, _NOISE_COUNT = 0.04, 4
#: Belief in every time of the grid alike, counted as so many trainings.
_OPEN_MIND = 5.0


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Defaults are the paper's on four GPUs. `horizon`: mini-batches of a whole run."""

    horizon: int
    step: int = 1000
    exclusive: int = 2
    #: given up when foretold less than this so many times in a row
    least: float = 0.30
    patience: int = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a training's accuracy will be at the end of its run."""

    mean: float
    deviation: float

    @property
    def hope(self) -> float:
        """What it may well come to: trainings are ranked by this, so the little known get their chance."""
        return self.mean + self.deviation


class Curve:
    """The accuracies of one training, as sums of least squares for each time of the grid."""

    def __init__(self) -> None:
        self.count = 0
        self._squares = 0.0
        self._own = [0.0] * len(_TIMES)
        self._both = [0.0] * len(_TIMES)
        #: belief in each time of the grid
        self.belief: list[float] = []

    def add(self, part: float, accuracy: float) -> None:
        """Take an accuracy at a part of the whole run."""
        self.count += 1
        self._squares += accuracy * accuracy
        for place, time in enumerate(_TIMES):
            rise = math.expm1(-part / time) / math.expm1(-1 / time)
            self._own[place] += rise * rise
            self._both[place] += rise * accuracy

    def residual(self) -> float:
        """Sum of squares that the best curve leaves."""
        return max(0.0, self._squares - max(b * b / o for b, o in zip(self._both, self._own, strict=True)))

    def forecast(self, variance: float, prior: Sequence[float]) -> Forecast:
        """Foretell the end, over all times of the grid; `prior` is the belief in each of them."""
        means, precisions, logs = [], [], []
        for own, both, believed in zip(self._own, self._both, prior, strict=True):
            precision = own / variance + _PRECISION
            mean = (both / variance + _MEAN * _PRECISION) / precision
            means.append(mean)
            precisions.append(precision)
            logs.append((mean * mean * precision - math.log(precision)) / 2 + math.log(believed))
        top = max(logs)
        weights = [math.exp(log - top) for log in logs]
        whole = sum(weights)
        self.belief = [weight / whole for weight in weights]
        mean = sum(w * m for w, m in zip(self.belief, means, strict=True))
        square = sum(w * (1 / p + m * m) for w, m, p in zip(self.belief, means, precisions, strict=True))
        return Forecast(mean, math.sqrt(max(0.0, square - mean * mean)))


class Search:
    """One search over configurations; the mechanisms are the scheduler's, the words are the search's own."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.given_up: set[int] = set()
        self.forecasts: dict[int, Forecast] = {}
        self._curves: dict[int, Curve] = {}
        self._low: dict[int, int] = {}
        self._residuals: dict[int, float] = {}
        self._beliefs = [_OPEN_MIND / len(_TIMES)] * len(_TIMES)

    def tell(self, job_id: int, minibatches: int, accuracy: float) -> None:
        """Take an accuracy, foretell the end of that training, give it up if it is foretold too little."""
        curve = self._curves.setdefault(job_id, Curve())
        curve.add(minibatches / self.settings.horizon, accuracy)
        if curve.count > 2:
            self._residuals[job_id] = curve.residual()
        self._trust(curve, -1)
        whole = sum(self._beliefs)
        prior = [max(belief, 1e-9) / whole for belief in self._beliefs]
        forecast = self.forecasts[job_id] = curve.forecast(self._variance(), prior)
        self._trust(curve, 1)
        is_low = forecast.mean < self.settings.least
        self._low[job_id] = self._low.get(job_id, 0) + 1 if is_low else 0
        if self._low[job_id] >= self.settings.patience:
            self.given_up.add(job_id)

    def best(self, live: Sequence[int]) -> list[int]:
        """Return who is to run alone: those of the greatest hopes, best first; nobody unknown."""
        known = [job_id for job_id in live if job_id in self.forecasts and job_id not in self.given_up]
        known.sort(key=lambda job_id: (-self.forecasts[job_id].hope, job_id))
        return known[: self.settings.exclusive]

    def _variance(self) -> float:
        """Noise of all trainings together: what their best curves leave, by what they leave free."""
        free = sum(self._curves[job_id].count - 2 for job_id in self._residuals)
        return (sum(self._residuals.values()) + _NOISE_COUNT * _NOISE**2) / (free + _NOISE_COUNT)

    def _trust(self, curve: Curve, sign: int) -> None:
        """Add or take off what one training says of how fast all of them learn."""
        for place, belief in enumerate(curve.belief):
            self._beliefs[place] += sign * belief


#: Tells the accuracy of a job after so many mini-batches, as the training itself would measure it.
Measure = Callable[[int, int], float]


class AutoMl:
    """The policy of one search: who leads runs alone, the rest in turn by stride, the hopeless no more.

    A turn lasts until the training has told its accuracy again: half a turn of everybody tells nothing.
    """

    name = "automl"

    def __init__(self, search: Search, quantum_ns: int, measure: Measure) -> None:
        self._search, self._quantum_ns, self._measure = search, quantum_ns, measure
        self._turns = Turns()
        self._now_ns = 0
        self._end_ns = 0
        self._told: dict[int, int] = {}
        #: GPU time by job since it told last: it is charged when it tells again, so turns last as long
        self._held: dict[int, int] = {}
        self._turn_ns = quantum_ns
        self._runs: dict[int, tuple[int, ...]] = {}

    def decide(self, view: View) -> Plan:
        """Say what is to run from now on."""
        for job_id, gpus in self._runs.items():
            self._held[job_id] = self._held.get(job_id, 0) + (view.now_ns - self._now_ns) * len(gpus)
        self._now_ns = view.now_ns
        for job_id in [number for number in self._runs if number in view.jobs]:
            self._listen(view.jobs[job_id])
        live = {key: job for key, job in view.jobs.items() if key not in self._search.given_up}
        weights = {job.job_id: job.tickets for job in live.values()}
        self._turns.set_members({"": 1}, {"": weights})
        if view.now_ns >= self._end_ns:
            self._turns.settle(view.cluster.size * self._turn_ns)
            self._end_ns = view.now_ns + self._quantum_ns
            self._runs = self._seat(view, self._pick(view, live))
        self._runs = {job_id: gpus for job_id, gpus in self._runs.items() if job_id in live}
        return Plan(dict(self._runs), self._end_ns if live else None)

    def _listen(self, job: JobView) -> None:
        """Take what a training has measured since it was last asked: once every so many mini-batches."""
        settings = self._search.settings
        reached = int(job.progress * settings.horizon + 1e-6) // settings.step * settings.step
        if reached > self._told.get(job.job_id, 0):
            self._told[job.job_id] = reached
            held_ns = self._held.pop(job.job_id)
            self._turn_ns = max(self._turn_ns, held_ns)
            self._turns.charge("", job.job_id, held_ns)
            self._search.tell(job.job_id, reached, self._measure(job.job_id, reached))

    def _pick(self, view: View, live: Mapping[int, JobView]) -> list[int]:
        """The leaders first, whatever they have had; the others by their passes."""
        leaders = self._search.best([*live])
        pool = Pool(view.cluster.size - len(view.down))
        for job_id in leaders:
            pool.take(live[job_id].size, 0)
        rest = [
            Entrant(key, "", job.size, job.tickets, job.order, self._turns.job_pass("", key))
            for key, job in live.items()
            if key not in leaders
        ]
        picked = run_round(rest, self._turns.standing(), pool, self._quantum_ns)
        return leaders + [key for key in picked if isinstance(key, int)]

    def _seat(self, view: View, picked: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Whoever was on GPUs that are free goes back there, the others take what is left."""
        free = set(range(view.cluster.size)) - view.down
        runs: dict[int, tuple[int, ...]] = {}
        for job in (view.jobs[job_id] for job_id in picked):
            is_free = job.gpus and free.issuperset(job.gpus)
            runs[job.job_id] = job.gpus if is_free else ()
            free -= {*runs[job.job_id]}
        for job_id, gpus in runs.items():
            if not gpus:
                runs[job_id] = tuple(sorted(free)[: view.jobs[job_id].size])
                free -= {*runs[job_id]}
        return runs
