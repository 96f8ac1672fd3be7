"""The best GPU for each job that can never leave it, by search over all choices at each arrival.

It knows what the policy knows: who is there, on which GPU, and the GPUs' speeds, but neither lengths nor who
is to come. Then all lengths are equally likely to end soon (exponential): n jobs that take turns on a GPU of
speed v have n(n + 1) / 2v completion times in all to come, and the least sum over all GPUs is the best.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.policy.port import Plan, Policy, View


def best_homes(living: Mapping[int, int], speeds: Sequence[float], comers: int) -> tuple[int, ...]:
    """Return a GPU for each of those that come together; `living`: how many live on each."""

    def cost(choice: tuple[int, ...]) -> float:
        here = Counter(living) + Counter(choice)
        return sum(here[gpu] * (here[gpu] + 1) / 2 / speed for gpu, speed in enumerate(speeds))

    return min(
        itertools.product(range(len(speeds)), repeat=comers), key=lambda choice: (cost(choice), choice)
    )


@dataclass
class HomesBySearch:
    """A policy whose jobs of one GPU are bound to their best GPUs as they come; each node has one GPU."""

    policy: Policy
    speeds: Sequence[float]
    name: str = "homes_by_search"
    homes: dict[int, int] = field(default_factory=dict)

    def decide(self, view: View) -> Plan:
        """Bind those that have come, and pass the question on."""
        comers = [job for job_id, job in view.jobs.items() if job_id not in self.homes]
        living = Counter(self.homes[job_id] for job_id in view.jobs if job_id in self.homes)
        for job, gpu in zip(comers, best_homes(living, self.speeds, len(comers)), strict=True):
            self.homes[job.job_id] = gpu
            job.hosts = frozenset({gpu})
        return self.policy.decide(view)
