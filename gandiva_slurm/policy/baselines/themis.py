"""Themis: finish-time fairness by leases and partial-allocation auctions (NSDI 2020).

Each job is an app. Its finish-time fairness is rho = T_shared / T_isolated: the time from submission to its
end, over that alone on 1/N of the cluster, N being the mean number of jobs while it lived. GPUs whose lease
is over go to auction among the 1 - f worst off. The winners are those of the largest product of 1/rho
(here: by gain in log(1/rho) per GPU, as gangs are whole). A winner pays by the harm it does: of what it won
it keeps c = (product of the others' 1/rho with it) / (theirs without it), so that a false bid does not pay.
Gangs cannot give back some of their GPUs: they give back time, and their lease is c as long. What is left
goes to those who did not bid, the worst off first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gandiva_slurm.policy.baselines.placing import Pick, Ration, Types, settle
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View

#: Part of the jobs, the best off, that may not bid: the paper's choice.
FAIRNESS_KNOB = 0.8

#: How long a winner that does nobody harm keeps its GPUs: the paper's 20 minutes.
LEASE_NS = 20 * 60 * 10**9


@dataclass(frozen=True, slots=True)
class Bid:
    """What a job gains in log(1/rho) from its GPUs for one lease, and how badly off it is."""

    job: JobView
    rho: float
    gain: float

    @property
    def rank(self) -> tuple[float, float, tuple[int, int]]:
        """Order of winning: gain per GPU, then worse off, then older."""
        return (-self.gain / self.job.size, -self.rho, self.job.order)


class Themis:
    """Leases by auction among the worst off."""

    name = "themis"

    def __init__(
        self, settings: PolicySettings, fairness: float = FAIRNESS_KNOB, lease_ns: int = LEASE_NS
    ) -> None:
        self._oracle = settings.oracle
        self._quantum_ns = settings.quantum_ns
        self._fairness = fairness
        self._lease_ns = max(lease_ns, settings.quantum_ns)
        self._leases: dict[int, int] = {}
        self._crowd = Crowd()

    def decide(self, view: View) -> Plan:
        """Keep running leases, auction the other GPUs, deal out what is left."""
        self._crowd.look(view)
        ration, types = Ration(view), Types(view, self._oracle)
        able = [job for job in view.jobs.values() if types.of(job)]
        leased = [job for job in able if self._leases.get(job.job_id, 0) > view.now_ns]
        picks = {job.job_id: pick for job in leased if (pick := ration.pick(job, types.of(job)))}
        bids = self._bids(view, [job for job in able if job.job_id not in picks])
        bidding = math.ceil(round((1 - self._fairness) * len(bids), 6))
        leases = {job_id: self._leases[job_id] for job_id in picks}
        for pick, part in auction(bids[:bidding], ration, types):
            picks[pick.job.job_id] = pick
            leases[pick.job.job_id] = view.now_ns + max(self._quantum_ns, round(part * self._lease_ns))
        for pick in _deal_out(bids, ration, types, picks):
            leases[pick.job.job_id] = view.now_ns + self._lease_ns
        self._leases = leases
        runs = settle(view, list(picks.values()))
        return Plan(runs, min(leases.values(), default=None) if len(runs) < len(able) else None)

    def rho(self, job: JobView, view: View, wait_ns: int = 0) -> float:
        """Tell its finish-time fairness if it runs from now on, or after `wait_ns`."""
        left_ns = _remaining_ns(job, self._lease_ns)
        shared_ns = view.now_ns - job.submit_ns + wait_ns + left_ns
        own_gpus = view.cluster.size / self._crowd.mean(job, view)
        alone_ns = (job.length_ns or job.ran_ns + left_ns) * max(1.0, job.size / own_gpus)
        return shared_ns / alone_ns

    def _bids(self, view: View, jobs: Iterable[JobView]) -> list[Bid]:
        """All jobs without a lease, the worst off first."""
        bids = []
        for job in jobs:
            rho = self.rho(job, view)
            bids.append(Bid(job, rho, math.log(self.rho(job, view, self._lease_ns) / rho)))
        return sorted(bids, key=lambda bid: (-bid.rho, bid.job.order))


class Crowd:
    """How many jobs there were while each lived, on average."""

    def __init__(self) -> None:
        self._seen_ns = 0
        self._count = 0
        self._sum = 0
        self._sum_at: dict[int, int] = {}

    def look(self, view: View) -> None:
        """Take the time since the last look into account, and newcomers from now on."""
        self._sum += self._count * (view.now_ns - self._seen_ns)
        self._seen_ns, self._count = view.now_ns, len(view.jobs)
        self._sum_at = {job_id: self._sum_at.get(job_id, self._sum) for job_id in view.jobs}

    def mean(self, job: JobView, view: View) -> float:
        """Tell the mean number of jobs since it was submitted; at that moment, their number then."""
        lived_ns = view.now_ns - job.submit_ns
        if lived_ns <= 0:
            return max(1, self._count)
        return max(1.0, (self._sum - self._sum_at[job.job_id]) / lived_ns)


def auction(bids: list[Bid], ration: Ration, types: Types) -> list[tuple[Pick, float]]:
    """Sell the GPUs of the ration: (winner, the part of its lease that it keeps)."""
    won: list[tuple[Bid, Pick]] = []
    lost: list[Bid] = []
    for bid in sorted(bids, key=lambda bid: bid.rank):
        pick = ration.pick(bid.job, types.of(bid.job)) if ration.left else None
        if pick is None:
            lost.append(bid)
        else:
            won.append((bid, pick))
    harm: dict[tuple[str, int], float] = {}
    for _, pick in won:
        key = (pick.gpu_type, pick.size)
        if key not in harm:
            harm[key] = displaced_gain(lost, *key, ration.left_of(pick.gpu_type), types)
    return [(pick, math.exp(-harm[pick.gpu_type, pick.size])) for _, pick in won]


def displaced_gain(lost: Iterable[Bid], gpu_type: str, size: int, idle: int, types: Types) -> float:
    """What the losers would gain together if a winner of so many GPUs had not been there."""
    left = size + idle
    gain = 0.0
    for bid in lost:
        if not left:
            break
        if bid.job.size <= left and gpu_type in types.of(bid.job):
            left -= bid.job.size
            gain += bid.gain
    return gain


def _deal_out(bids: Iterable[Bid], ration: Ration, types: Types, picks: dict[int, Pick]) -> list[Pick]:
    """Leftovers: the worst off first, into `picks` and told."""
    dealt = []
    for bid in bids:
        if not ration.left:
            break
        if bid.job.job_id not in picks and (pick := ration.pick(bid.job, types.of(bid.job))):
            picks[bid.job.job_id] = pick
            dealt.append(pick)
    return dealt


def _remaining_ns(job: JobView, lease_ns: int) -> int:
    """Run time it has left; one of unknown length has as much before it as behind it."""
    if job.left_ns is not None:
        return max(1, job.left_ns)
    if job.length_ns is None:
        return max(job.ran_ns, lease_ns)
    return max(1, round(job.length_ns * (1 - job.progress)))


def make(settings: PolicySettings) -> Themis:
    """Make the policy with the paper's knob."""
    return Themis(settings)
