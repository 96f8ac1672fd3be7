"""Gavel's own first in, first out, for comparison with its figures only: `--compat gavel`.

Its allocation gives every job in order of arrival the fastest type that has room, all anew each time (Gavel,
OSDI 2020, section 4, and its public simulator: `fifo_perf`). It is renewed only when jobs came or went, and
not again within a time that is given: until then who arrived waits, and what became idle stays so.
"""

from __future__ import annotations

from collections.abc import Iterable

from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, Rates, View


class FifoPerf:
    """The policy; it needs true rates."""

    name = "fifo"

    def __init__(self, settings: PolicySettings, renew_ns: int) -> None:
        if settings.oracle is None:
            raise ValueError("fifo_perf chooses types by true rates")
        self._oracle: Rates = settings.oracle
        self._renew_ns = renew_ns
        self._renewed_ns = 0
        self._jobs: frozenset[int] = frozenset()
        self._runs: dict[int, tuple[int, ...]] = {}

    def decide(self, view: View) -> Plan:
        """Go on by the allocation, or renew it where that is due."""
        jobs = frozenset(view.jobs)
        is_due = self._renewed_ns == 0 or view.now_ns - self._renewed_ns >= self._renew_ns
        if jobs != self._jobs and is_due:
            self._runs = self._allocate(view)
            self._jobs, self._renewed_ns = jobs, view.now_ns
        return Plan({job_id: gpus for job_id, gpus in self._runs.items() if job_id in jobs})

    def _allocate(self, view: View) -> dict[int, tuple[int, ...]]:
        free: dict[str, list[int]] = {name: [] for name in view.cluster.counts}
        for gpu, gpu_type in enumerate(view.cluster.type_of):
            if gpu not in view.down:
                free[gpu_type].append(gpu)
        runs: dict[int, tuple[int, ...]] = {}
        for job in view.jobs.values():
            roomy = [name for name, gpus in free.items() if len(gpus) >= job.size]
            best = self._fastest(job, roomy)
            if best is None:
                break
            runs[job.job_id] = tuple(free[best][: job.size])
            del free[best][: job.size]
        return runs

    def _fastest(self, job: JobView, types: Iterable[str]) -> str | None:
        rates = {name: self._oracle.alone(job.model, job.size, name) or 0.0 for name in types}
        best = max(rates, key=rates.__getitem__, default=None)
        return best if best is not None and rates[best] > 0 else None
