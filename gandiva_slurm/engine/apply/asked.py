"""What a policy was asked last, and what it answered: the answer holds until something has changed.

A job that is where the plan has it, on its way there, or nowhere because it has made way, is no change; nor
are the time that jobs have held their GPUs and the rates that were measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.policy.port import JobView, Plan, View


@dataclass(frozen=True)
class Asked:
    """A question and its answer."""

    #: stands for all of the view that the plan does not change
    seen: str
    #: by job: the GPUs where it lived, and whether it could be moved
    homes: Mapping[int, tuple[tuple[int, ...], bool]]
    plan: Plan

    def holds(self, view: View, seen: str) -> bool:
        """True when the answer is that to this view, too."""
        wake_ns = self.plan.wake_ns
        if seen != self.seen or (wake_ns is not None and view.now_ns >= wake_ns):
            return False
        return all(self._is_as_planned(job) for job in view.jobs.values())

    def _is_as_planned(self, job: JobView) -> bool:
        home, planned = self.homes[job.job_id], self.plan.runs.get(job.job_id, ())
        has_come = job.gpus == planned != home[0]
        return has_come or (job.gpus, job.can_migrate) == home

    def to_json(self) -> Mapping[str, Any]:
        """Return plain JSON data; notes are left out."""
        homes = [[job_id, *home] for job_id, home in self.homes.items()]
        runs, wake_ns = [*self.plan.runs.items()], self.plan.wake_ns
        return {"seen": self.seen, "homes": homes, "wake_ns": wake_ns, "runs": runs}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Asked:
        """Read what `to_json` returned."""
        homes = {job_id: (tuple(gpus), can_migrate) for job_id, gpus, can_migrate in raw["homes"]}
        runs = {job_id: tuple(gpus) for job_id, gpus in raw["runs"]}
        return cls(raw["seen"], homes, Plan(runs, raw["wake_ns"]))


def asked(view: View, seen: str, plan: Plan) -> Asked:
    """Take down a question and its answer."""
    return Asked(seen, {job.job_id: (job.gpus, job.can_migrate) for job in view.jobs.values()}, plan)


def fingerprint(view: View, shares: str = "") -> str:
    """Return what stands for a view but for where its jobs are, the same in every process.

    `shares`: what stands for the account tree.
    """
    jobs = [
        (
            job.job_id, job.user, job.account, job.size, job.min_size, job.max_size, job.tickets,
            job.priority, job.job_class, job.vc, job.gpu_types, job.cell, job.memory_mib, job.nodes,
            job.length_ns,
            None if job.hosts is None else hash(job.hosts),  # of small numbers: no process has another
            (job.peak_bytes, job.held_bytes) if job.can_pack else None,
        )
        for job in view.jobs.values()
    ]  # fmt: skip
    forbidden = getattr(view.rates, "forbidden", 0)
    return digest((jobs, sorted(view.down), view.slots, view.card_bytes, {**view.vcs}, forbidden, shares))


def digest(what: object) -> str:
    """Return what stands for a value that has the same `repr` in every process."""
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()
