"""First in, first out, strict: nobody passes the head of the line, nobody is taken off.

The comparison of every paper here (data tables of Gavel, OSDI 2020, section 7: `fifo`; of Tiresias, NSDI
2019, section 5). With true rates it takes the fastest type that has room (Gavel's `fifo_perf`).
"""

from __future__ import annotations

from gandiva_slurm.policy.baselines.placing import Types, held, kept
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, Rates, View, takes_oracle


class Fifo:
    """The policy; made by `make`."""

    name = "fifo"

    def __init__(self, settings: PolicySettings) -> None:
        self._oracle = settings.oracle
        #: the last plan: walking over who runs is cheaper than over all who wait
        self._runs: dict[int, tuple[int, ...]] | None = None

    def decide(self, view: View) -> Plan:
        """Keep who runs, then start from the head of the line until one does not fit."""
        runs = kept(view, {}) if self._runs is None else self._going_on(view, self._runs)
        left = view.cluster.size - len(view.down) - sum(map(len, runs.values()))
        head = next((job for job in view.jobs.values() if not job.is_running), None)
        if head is not None and head.size <= left:
            self._start(view, runs)
        self._runs = runs
        return Plan(runs)

    def _going_on(self, view: View, runs: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        jobs = view.jobs
        return {job_id: gpus for job_id, gpus in runs.items() if job_id in jobs and jobs[job_id].is_running}

    def _start(self, view: View, runs: dict[int, tuple[int, ...]]) -> None:
        free = FreeGpus(view.cluster, view.down.union(held(runs)))
        types = Types(view, self._oracle)
        for job in view.jobs.values():
            if job.is_running:
                continue
            place = self._place(view, job, free, types.of(job))
            if place is None:
                return
            runs[job.job_id] = place

    def _place(
        self, view: View, job: JobView, free: FreeGpus, types: tuple[str, ...]
    ) -> tuple[int, ...] | None:
        """Take the place where it is fastest; where rates are not known, the one on the fewest nodes."""
        if self._oracle is None or len(types) < 2:
            return free.place(job, types)
        best: tuple[float, str] | None = None
        for gpu_type in types:
            if free.left_of(gpu_type) < job.size:
                continue
            gpus = free.gather_for(job, job.size, gpu_type)
            if gpus is None:
                continue
            free.give(gpus)
            is_local = len(view.cluster.hosts_of(gpus)) == 1
            rate = self._oracle.alone(job.model, job.size, gpu_type, is_local) or 0.0
            if rate > 0 and (best is None or rate > best[0]):
                best = (rate, gpu_type)
        return free.place(job, [best[1]]) if best else None


def fastest_first(job: JobView, types: tuple[str, ...], oracle: Rates | None) -> list[str]:
    """Order types by the job's true rate, the cluster's order where that is not known or equal."""
    if oracle is None or len(types) < 2:
        return [*types]
    return sorted(types, key=lambda name: -(oracle.alone(job.model, job.size, name) or 0.0))


@takes_oracle
def make(settings: PolicySettings) -> Fifo:
    """Make the policy."""
    return Fifo(settings)
