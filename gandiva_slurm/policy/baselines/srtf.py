"""Shortest remaining time first, and shortest remaining service first: clairvoyant, preemptive, greedy.

`srtf` orders by the run time that is left, `srsf` by that time times GPUs (Tiresias, NSDI 2019, section 2:
its two-dimensional form). Both sort again at each arrival and each end, and go down the whole list: who does
not fit is skipped. Lengths are those the world tells; a job of unknown length comes last.
"""

from __future__ import annotations

from gandiva_slurm.policy.baselines.fifo import fastest_first
from gandiva_slurm.policy.baselines.placing import Pick, Ration, Types, settle
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View, takes_oracle

#: Beyond every length: who tells none comes last.
_NEVER_NS = 10**24


class ShortestFirst:
    """Both policies; made by `make_srtf` and `make_srsf`."""

    def __init__(self, name: str, settings: PolicySettings) -> None:
        self.name = name
        self._oracle = settings.oracle

    def decide(self, view: View) -> Plan:
        """Run the shortest that fit."""
        ration, types = Ration(view), Types(view, self._oracle)
        picks: list[Pick] = []
        for job in sorted(view.jobs.values(), key=self._key):
            if ration.left <= 0:
                break
            pick = ration.pick(job, fastest_first(job, types.of(job), self._oracle))
            if pick is not None:
                picks.append(pick)
        return Plan(settle(view, picks))

    def _key(self, job: JobView) -> tuple[int, tuple[int, int]]:
        left_ns = _NEVER_NS if job.left_ns is None else job.left_ns
        return (left_ns * job.size if self.name == "srsf" else left_ns, job.order)


@takes_oracle
def make_srtf(settings: PolicySettings) -> ShortestFirst:
    """Make `srtf`."""
    return ShortestFirst("srtf", settings)


@takes_oracle
def make_srsf(settings: PolicySettings) -> ShortestFirst:
    """Make `srsf`."""
    return ShortestFirst("srsf", settings)
