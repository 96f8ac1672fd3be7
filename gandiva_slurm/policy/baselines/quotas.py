"""GPU quotas of virtual clusters: the cluster dealt out by tickets, in whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gandiva_slurm.policy.port import JobView, View


def vc_of(job: JobView) -> str:
    """Name a job's virtual cluster: its own, else its user's."""
    return job.vc or job.user


class Quotas:
    """Quotas of all virtual clusters named in the settings or seen so far; they do not depend on use."""

    def __init__(self, tickets: Mapping[str, int]) -> None:
        self._tickets = dict(tickets)
        self._quotas: dict[str, int] = {}

    def of(self, view: View) -> Mapping[str, int]:
        """Tell the quotas; dealt out anew only when a virtual cluster is seen for the first time."""
        newcomers = {vc_of(job) for job in view.jobs.values()} - self._quotas.keys()
        if newcomers:
            for name in sorted(newcomers):
                self._tickets.setdefault(name, 1)
            self._quotas = deal(view.cluster.size, self._tickets)
        return self._quotas


def deal(gpus: int, tickets: Mapping[str, int]) -> dict[str, int]:
    """Deal whole GPUs out by tickets; those left by rounding go to the largest remainders, then by name."""
    whole = sum(tickets.values())
    quotas = {name: gpus * own // whole for name, own in tickets.items()}
    names = sorted(tickets, key=lambda name: (-(gpus * tickets[name] % whole), name))
    for name in names[: gpus - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def used_gpus(view: View, runs: Iterable[int]) -> dict[str, int]:
    """Count the GPUs of each virtual cluster's jobs among these."""
    used: dict[str, int] = {}
    for job_id in runs:
        job = view.jobs[job_id]
        used[vc_of(job)] = used.get(vc_of(job), 0) + job.size
    return used
