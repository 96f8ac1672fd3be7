"""What a GPU type is worth to a job: its speed there, of its best, and more where the job is behind.

Rates that were run are known, others forecast (`forecast`); how far a job is behind what it would have done
on its user's part of the cluster is its lag (`lag`). What a move costs is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.policy.moves.forecast import Forecast
from gandiva_slurm.policy.moves.lag import LagBook
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.packing.pairs import LEAST_KEPT, normal_rates
from gandiva_slurm.policy.port import Cluster, JobView, View

#: How much more a fast GPU is worth to a job that is behind: its lag to this power.
_LAG_POWER = 2.0
#: Lag of a job that is far behind, and the part of its best speed below which it is slow.
_FAR_BEHIND, _SLOW = 2.0, 0.4


class Merit:
    """Rates and lags of all live jobs of a cluster."""

    def __init__(self, cluster: Cluster, pace: Pace, by_type: bool) -> None:
        """`by_type` False: all types are taken for alike."""
        self._cluster, self._by_type, self._pace = cluster, by_type, pace
        self._lags = LagBook(cluster, pace.quantum_ns / 1e9)
        self._forecast = Forecast(tuple(cluster.counts))
        self._rates: dict[int, Mapping[str, float]] = {}
        self._parts: Mapping[int, float] = {}
        self._speeds: dict[int, float] = {}
        #: what `worth` has answered since lags and rates changed
        self._worth: dict[int, dict[str, float]] = {}

    def learn(self, view: View, alone: Mapping[int, str], elapsed_ns: int) -> None:
        """Take over what was done since the last question; `alone`: the types of who ran without a mate."""
        self._worth.clear()
        self._lags.note(elapsed_ns / 1e9, self._speeds)
        ran = [(view.jobs[job_id], gpu_type) for job_id, gpu_type in alone.items() if job_id in view.jobs]
        self._forecast.learn(ran, view.rates)

    def set_members(self, jobs: Mapping[int, JobView], parts: Mapping[int, float]) -> None:
        """Make exactly these live; by job: its part of the cluster."""
        self._parts = parts
        self._worth.clear()
        self._rates = {job.job_id: self._forecast.rates(job) for job in jobs.values()}
        self._lags.set_members(jobs.values(), parts, self._rates)

    def run(self, view: View, runs: Mapping[int, tuple[int, ...]]) -> None:
        """Say what runs from now on."""
        partner = _partners(runs)
        self._speeds = {
            job_id: self._speed(view, job_id, gpus, partner.get(job_id)) for job_id, gpus in runs.items()
        }

    def _speed(self, view: View, job_id: int, gpus: tuple[int, ...], partner: int | None) -> float:
        """The rate a job is believed to run at: by the very rates that say how much is due to it.

        Else one that tells of ever fewer mini-batches would be seen ever further behind, and helped for it.
        """
        job, gpu_type = view.jobs[job_id], view.cluster.type_of[gpus[0]]
        rate = self._rates[job_id].get(gpu_type, 0.0)
        if len(gpus) != job.size:
            told, asked = (view.rates.alone(job.model, size, gpu_type) for size in (len(gpus), job.size))
            whole = len(gpus) / job.size
            rate *= min(whole, max(whole / 2, told / asked)) if told and asked else whole
        if partner is None:
            return rate
        both = normal_rates(view.rates, job.model, view.jobs[partner].model, gpu_type)
        return rate * (max(LEAST_KEPT, both[0]) if both is not None else 0.5)

    def part(self, job: JobView) -> float:
        """Return the part of the cluster that is due to a job for its user's tickets."""
        return self._parts[job.job_id]

    def worth(self, job: JobView) -> dict[str, float]:
        """What each type is worth, the same dict all the time; types on which it cannot run are left out."""
        worth = self._worth.get(job.job_id)
        if worth is None:
            worth = self._worth[job.job_id] = self._worth_of(job)
        return worth

    def _worth_of(self, job: JobView) -> dict[str, float]:
        rates = self._rates[job.job_id]
        best = max(rates.values(), default=0.0) or 1.0
        if not self._by_type:
            return {gpu_type: 1.0 for gpu_type, rate in rates.items() if rate > 0}
        weight = self._lags.lag(job.job_id) ** _LAG_POWER
        return {gpu_type: rate / best * weight for gpu_type, rate in rates.items() if rate > 0}

    def lag(self, job: JobView) -> float:
        """Return 1 for a job that is where it should be, more for one that is behind (`LagBook.lag`)."""
        return self._lags.lag(job.job_id)

    def would_lose(self, job: JobView, gpu_type: str) -> bool:
        """True for a job that is far behind, on a type where it is slow.

        As a guest there it would pay half a GPU's time for a small part of what its own turns bring.
        """
        rates = self._rates[job.job_id]
        is_slow = rates.get(gpu_type, 0.0) < _SLOW * max(rates.values(), default=0.0)
        return is_slow and self._lags.lag(job.job_id) > _FAR_BEHIND

    @property
    def least_gain(self) -> float:
        """How much faster a job must be elsewhere for a move to be worth it, as a factor."""
        return 1 / max(0.01, 1 - self._pace.loss)

    def rooted(self, job: JobView, is_fixed: bool) -> dict[str, float]:
        """What each type is worth less a move there; `is_fixed`: it stays on the type where it is."""
        worth = self.worth(job)
        if not self._pace.restart_ns:
            return worth
        at = type_of(self._cluster, job.gpus)
        if is_fixed and at in worth:
            return {at: worth[at]}
        left = 1 - self._pace.loss
        return {name: value if at in ("", name) else value * left for name, value in worth.items()}


def type_of(cluster: Cluster, gpus: tuple[int, ...]) -> str:
    """The type of a job's GPUs, "" when it has none."""
    return cluster.type_of[gpus[0]] if gpus else ""


def _partners(runs: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    if len({*runs.values()}) == len(runs):
        return {}
    by_gpus: dict[tuple[int, ...], list[int]] = {}
    for job_id, gpus in runs.items():
        by_gpus.setdefault(gpus, []).append(job_id)
    return {a: b for pair in by_gpus.values() if len(pair) == 2 for a, b in (pair, pair[::-1])}
