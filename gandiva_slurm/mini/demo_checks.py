"""What the demo must show, as functions of what was recorded; nothing is run here.

Every figure comes from a record of its own: holds from the controller's ledger, switches from the nodes'
event logs, and when each step really ran from the training scripts themselves.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from gandiva_slurm.mini.demo_holds import Event, Span, count_overlaps, packs_in_events
from gandiva_slurm.mini.demo_parks import NS_PER_MS, Boundaries, Park, Steps, awake
from gandiva_slurm.policy.shares.associations import entitled_shares

NS_PER_S = 1_000_000_000
#: Limits of the main job; each has its sentence in the verdict.
SHARE_TOLERANCE = 0.05
REAIM_LIMIT = 0.05
PARK_SLACK_MS = 50.0
START_LIMIT_S = 2.0
AGGREGATE_LIMIT = 0.97


@dataclass(frozen=True)
class Check:
    """One line of the verdict: what was found, and the limit it is held against."""

    name: str
    ok: bool
    text: str
    limit: str = ""
    #: whether it is about times or what follows from them, which another load changes
    of_time: bool = False

    def __str__(self) -> str:
        limit = f"; {self.limit}" if self.limit else ""
        return f"{'OK    ' if self.ok else 'FAILED'}  {self.name}: {self.text}{limit}"


@dataclass(frozen=True)
class JobRecord:
    """All that was recorded of one job. `losses` and `steps` have a list a rank."""

    job_id: int
    name: str
    user: str
    gpus: int
    state: str = ""
    suspends: int = 0
    start_latency_s: float | None = None
    losses: Sequence[Sequence[str]] = ()
    reference: Sequence[Sequence[str]] = ()
    #: losses compared a rank; 0: all
    compared: int = 0
    steps: Sequence[Sequence[Span]] = field(default=(), repr=False)

    @property
    def step_count(self) -> int:
        """Steps of its first rank."""
        return len(self.losses[0]) if self.losses else 0

    @property
    def compared_count(self) -> int:
        """How many losses of each rank are to be compared."""
        return self.compared or self.step_count

    @property
    def is_identical(self) -> bool:
        """True when every rank's losses are those of the run alone, bit for bit, and there are enough."""
        count = self.compared_count
        compared = [list(rank[:count]) for rank in self.losses]
        enough = all(len(rank) == count for rank in compared)
        return count > 0 and enough and compared == [list(rank) for rank in self.reference]


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """The two percentiles of the report."""
    return {"p50": percentile(values, 50), "p99": percentile(values, 99)}


# --- shares -------------------------------------------------------------------------------------------


def user_shares(
    holds: Iterable[Mapping[str, Any]],
    window: Span,
    tickets: Mapping[str, int],
    jobs: Iterable[JobRecord],
    capacity: int,
) -> dict[str, dict[str, Any]]:
    """GPU time of each user who has a job, its part of all in the window, and the part due to him."""
    demand: dict[str, int] = {}
    for job in jobs:
        demand[job.user] = demand.get(job.user, 0) + job.gpus
    held_ns = dict.fromkeys(demand, 0)
    for hold in holds:
        span_ns = min(hold["t1_ns"], window[1]) - max(hold["t0_ns"], window[0])
        span_ns //= 2 if hold.get("shared_with") else 1
        held_ns[hold["user"]] = held_ns.get(hold["user"], 0) + max(0, span_ns) * len(hold["gpus"])
    due = entitled_shares(tickets, demand, capacity)
    all_due = sum(due.values()) or Fraction(1)
    total_ns = sum(held_ns.values()) or 1
    return {
        user: {
            "tickets": tickets.get(user, 0),
            "gpu_s": round(held_ns[user] / NS_PER_S, 3),
            "share": held_ns[user] / total_ns,
            "entitled": float(due.get(user, Fraction(0)) / all_due),
        }
        for user in sorted(held_ns)
    }


def check_shares(users: Mapping[str, Mapping[str, Any]]) -> Check:
    """Every user within 5 % of his entitlement."""
    ratios = {name: row["share"] / row["entitled"] if row["entitled"] else 0.0 for name, row in users.items()}
    ok = bool(ratios) and all(abs(ratio - 1) <= SHARE_TOLERANCE for ratio in ratios.values())
    parts = ", ".join(f"{name} {100 * users[name]['share']:.1f} % ({ratios[name]:.3f})" for name in ratios)
    return Check("GPU time over entitlement", ok, parts, f"limit 1 +- {SHARE_TOLERANCE:g}")


# --- nothing lost, nothing changed --------------------------------------------------------------------


def check_losses(jobs: Sequence[JobRecord]) -> Check:
    """Every job's losses are those of the run alone."""
    bad = [_difference(job) for job in jobs if not job.is_identical]
    steps = sum(job.compared_count for job in jobs)
    losses = sum(job.compared_count * len(job.losses) for job in jobs)
    text = "; ".join(bad) or f"bit for bit those of the runs alone, {losses} in {steps} steps"
    return Check("losses", bool(jobs) and not bad, text)


def _difference(job: JobRecord) -> str:
    """The first loss that differs, or how many there are of those wanted."""
    for rank, (here, alone) in enumerate(zip(job.losses, job.reference, strict=False)):
        for step, (one, other) in enumerate(zip(here, alone, strict=False), 1):
            if one != other:
                return f"{job.name} differs from step {step} on (rank {rank})"
    counts = [min((len(rank) for rank in ranks), default=0) for ranks in (job.losses, job.reference)]
    return f"{job.name} has {counts[0]}, the run alone {counts[1]}, of {job.compared_count} to compare"


def check_ends(jobs: Sequence[JobRecord]) -> Check:
    """Every job ended well."""
    bad = [f"{job.name} {job.state}" for job in jobs if job.state != "COMPLETED"]
    return Check("jobs", bool(jobs) and not bad, ", ".join(bad) or f"all {len(jobs)} COMPLETED")


# --- one holder a GPU ---------------------------------------------------------------------------------


def overlaps_in_steps(jobs: Iterable[JobRecord], events: Sequence[Event]) -> int:
    """Steps that ran on a GPU while another job's step did, by the scripts' own records."""
    gpus = {event["job"]: event["gpus"] for event in events if event["event"] == "grant"}
    spans = (
        (gpu, job_id, part) for job_id, part in awake(events, steps_of(jobs)) for gpu in gpus.get(job_id, ())
    )
    return count_overlaps(spans, packs_in_events(events))


def check_overlaps(by_node: int, by_steps: int) -> Check:
    """No GPU was held by two gangs at once that were not packed."""
    text = f"{by_node} by the nodes' event logs, {by_steps} by the scripts' own steps"
    return Check("GPUs held twice", by_node == 0 and by_steps == 0, text, "limit 0")


# --- parks --------------------------------------------------------------------------------------------


def steps_of(jobs: Iterable[JobRecord]) -> Steps:
    """Steps by job and rank."""
    return {job.job_id: job.steps for job in jobs}


def check_boundaries(parks: Sequence[Park], found: Boundaries) -> Check:
    """Every park was at a boundary."""
    text = f"{found.off} of {len(parks)} by the node, {found}"
    return Check("parks off a boundary", bool(parks) and found.ok, text, "limit 0")


def check_reaims(parks: Sequence[Park]) -> Check:
    """Few parks had to be aimed again."""
    reaims = sum(park.reaims for park in parks)
    rate = reaims / len(parks) if parks else 1.0
    text, limit = f"{reaims} in {len(parks)} parks", f"limit {100 * REAIM_LIMIT:g} %"
    return Check("re-aims", rate < REAIM_LIMIT, text, limit, of_time=True)


def excess_ms(park: Park, job: JobRecord) -> float:
    """How much longer a park took than its mini-batches: the running one, and for a gang its margin more."""
    allowed_ns = max((_batches_ns(rank, park, park.margin + 1) for rank in job.steps), default=0)
    return park.ms - allowed_ns / NS_PER_MS


def _batches_ns(rank: Sequence[Span], park: Park, count: int) -> int:
    """How long `count` mini-batches took from the one running when the park was ordered.

    A mini-batch lasts until the next step begins; where the park came between, the usual gap counts.
    """
    first = max(bisect.bisect_right(rank, (park.ordered_ns, 1 << 63)) - 1, 0)
    total_ns = 0
    for at in range(first, min(first + count, len(rank))):
        began, ended = rank[at]
        is_next = at + 1 < len(rank) and rank[at + 1][0] < park.parked_ns
        total_ns += (rank[at + 1][0] if is_next else ended + _usual_gap_ns(rank)) - began
    return total_ns


def _usual_gap_ns(rank: Sequence[Span]) -> int:
    """The median time between two steps: the optimizer, logging, loading. Parks are too few to move it."""
    middle = rank[len(rank) // 2 : len(rank) // 2 + 200]
    return int(percentile([after[0] - before[1] for before, after in pairwise(middle)], 50) or 0)


def check_park_times(parks: Sequence[Park], jobs: Sequence[JobRecord]) -> Check:
    """A rank parks within its mini-batch + 50 ms, a gang within margin + 1 of them + 50 ms, at p99."""
    job_of = {job.job_id: job for job in jobs}
    over: dict[str, list[float]] = {"one rank": [], "gangs": []}
    for park in parks:
        if park.job_id in job_of:
            job = job_of[park.job_id]
            over["gangs" if job.gpus > 1 else "one rank"].append(excess_ms(park, job))
    worst = {kind: percentile(values, 99) for kind, values in over.items()}
    ok = all(value is not None and value <= PARK_SLACK_MS for value in worst.values())
    parts = [f"{kind} {'none' if value is None else f'{value:+.0f} ms'}" for kind, value in worst.items()]
    text, limit = f"p99 {', '.join(parts)}", f"limit +{PARK_SLACK_MS:.0f} ms"
    return Check("park time past the mini-batches due", ok, text, limit, of_time=True)


def resume_times_ms(events: Iterable[Event]) -> list[float]:
    """From the order to go on until every rank ran again; first starts do not count."""
    suspended: set[tuple[int, int]] = set()
    found = []
    for event in events:
        key = (event.get("job", 0), event.get("restart", 0))
        if event["event"] == "parked":
            suspended.add(key)
        elif event["event"] == "running" and key in suspended:
            suspended.remove(key)
            found.append(float(event["resume_ms"]))
    return found


# --- starts and throughput ----------------------------------------------------------------------------


def check_starts(jobs: Sequence[JobRecord]) -> Check:
    """Every job ran within 2 s of its release."""
    known = [job.start_latency_s for job in jobs if job.start_latency_s is not None]
    worst = max(known, default=0.0)
    ok = bool(jobs) and len(known) == len(jobs) and worst <= START_LIMIT_S
    text, limit = f"at most {worst:.2f} s in {len(known)} starts", f"limit {START_LIMIT_S:g} s"
    return Check("released to running", ok, text, limit, of_time=True)


def check_aggregate(ratio: float | None) -> Check:
    """Slicing costs little: two jobs on one GPU against the same two one after the other."""
    text, limit = "not measured" if ratio is None else f"{ratio:.3f}", f"limit {AGGREGATE_LIMIT:g}"
    ok = ratio is not None and ratio >= AGGREGATE_LIMIT
    return Check("steps per second, sliced over exclusive", ok, text, limit, of_time=True)


# --- the end ------------------------------------------------------------------------------------------


def check_left(left: Sequence[str]) -> Check:
    """Nothing of the cluster is there any more."""
    text = ", ".join(left[:5]) or "no process, mount, namespace, socket or file of the cluster"
    return Check("left behind", not left, text)
