"""`gandiva mini demo`: the main job, on a real Slurm, with the accounts to prove it.

Three users with equal tickets share four fake GPUs: user1 has one 2-GPU job, user2 four 1-GPU jobs, and user3
joins with a 4-GPU gang. All train with PyTorch on the CPU. Then everything they left behind is checked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.mini import demo_checks as checks
from gandiva_slurm.mini import demo_slicing, demo_watch
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_checks import Check, JobRecord
from gandiva_slurm.mini.demo_holds import Event, overlaps_in_events
from gandiva_slurm.mini.demo_jobs import (
    FIRST_JOBS,
    LATE_JOB,
    STOP_FILE,
    Reference,
    home_of,
    read_losses,
    run_references,
    script_of,
    start_inside,
    submit,
)
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.model.errors import GandivaError

NODES, GPUS = "v100:1x4", 4
QUANTUM_S = 0.5
#: How long user1 and user2 train before user3 comes, and how long the three contend.
ALONE_S = 10.0
CONTENDED_S = 65.0
#: user3's gang cannot be parked while its ranks load PyTorch, and owes the others what it held by then. On a
#: slow machine the phase is longer, so that it can be given back: this many times the start.
STARTS = 4.0
#: How often the queue is shown.
QUEUE_EVERY_S = 12.0
DEADLINE_S = 120.0
REFERENCE_DEADLINE_S = 240.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recorded:
    """What the main job left behind."""

    jobs: Sequence[JobRecord]
    holds: Sequence[Mapping[str, Any]]
    events: Sequence[Event]
    window_ns: tuple[int, int]
    tickets: Mapping[str, int]
    slurm: str
    #: pyslurm's version where gandivactld reads Slurm through it
    pyslurm: str | None = None


def run(name: str, backend: str, say: Say) -> dict[str, Any]:
    """Run the demo; returns the report, whose `ok` says whether every check held."""
    began_s = time.monotonic()
    _refuse_second(name)
    recorded = _main_job(name, backend, say)
    slicing = demo_slicing.measure(f"{name}-slicing", backend, say)
    report = report_of(recorded, slicing.ratio)
    report |= {"backend": backend, "quantum_s": QUANTUM_S, "wall_s": round(time.monotonic() - began_s, 1)}
    by = f"pyslurm {report['pyslurm']}" if report["pyslurm"] else "its commands"
    say(f"\n== verdict: Slurm {report['slurm']}, read through {by}")
    for check in report["checks"]:
        say(str(Check(**check)))
    say(f"{'OK' if report['ok'] else 'FAILED'} in {report['wall_s']:.0f} s")
    return report


def _refuse_second(name: str) -> None:
    """Two demos at once would measure each other; one that was killed must be cleared away."""
    for cluster in (name, f"{name}-slicing"):
        if Layout.of(cluster).root.exists():
            down = f"GANDIVA_MINI={cluster} gandiva mini down"
            raise GandivaError(f"a demo is running, or one was killed; once none runs, clear it away: {down}")


def _main_job(name: str, backend: str, say: Say) -> Recorded:
    say(f"== a private Slurm with {GPUS} fake GPUs; three users, equal tickets, quantum {QUANTUM_S:g} s")
    cluster = MiniCluster.up(MiniSpec(name, parse_nodes(NODES), QUANTUM_S, backend=backend), say)
    try:
        recorded = _train(cluster, say)
        return dataclasses.replace(recorded, jobs=_with_references(cluster, recorded.jobs, say))
    finally:
        cluster.down()


def _train(cluster: MiniCluster, say: Say) -> Recorded:
    # slurmctld starts nothing in its first seconds. An ordinary job, in a partition that is not Gandiva's,
    # shows when it does, and that it does.
    cluster.exec(["sbatch", "--partition=plain", "--output=/dev/null", "--wrap=true"], user="user3")
    demo_watch.wait_until_empty(cluster, DEADLINE_S)
    say(f"\n== user1 submits\n{script_of(FIRST_JOBS[0])}and user2 four jobs of one GPU")
    ids = {job.name: submit(cluster, job) for job in FIRST_JOBS}
    show = _every(
        QUEUE_EVERY_S, lambda: say("\n" + cluster.exec(["gandiva", "queue"], user="user1").stdout.rstrip())
    )
    _wait_for_steps(cluster, ids.values(), show)
    _wait_s(ALONE_S, show)
    say(f"\n== user3 joins with one gang of {LATE_JOB.gpus} GPUs")
    ids[LATE_JOB.name] = submit(cluster, LATE_JOB)
    began_ns = _first_hold_ns(cluster, ids[LATE_JOB.name], show)
    _wait_for_steps(cluster, [ids[LATE_JOB.name]], show)
    start_s = (time.time_ns() - began_ns) / checks.NS_PER_S
    _wait_s(max(CONTENDED_S, STARTS * start_s) - start_s, show)
    say("\n== the jobs are told to stop")
    window_ns = (began_ns, time.time_ns())
    cluster.exec(["touch", STOP_FILE])
    demo_watch.wait_until_empty(cluster, DEADLINE_S)
    return _collect(cluster, ids, window_ns, say)


def _wait_for_steps(cluster: MiniCluster, job_ids: Collection[int], show: Callable[[], None]) -> None:
    """Return when each of these jobs has trained a step."""

    def have_steps() -> bool:
        rows = demo_watch.queue(cluster)
        return all(job_id in rows and rows[job_id]["steps"] for job_id in job_ids)

    demo_watch.wait_for(have_steps, "the jobs to train", DEADLINE_S, show)


def _wait_s(seconds: float, show: Callable[[], None]) -> None:
    ends_s = time.monotonic() + seconds
    demo_watch.wait_for(lambda: time.monotonic() >= ends_s, "time to go by", seconds + DEADLINE_S, show)


def _first_hold_ns(cluster: MiniCluster, job_id: int, show: Callable[[], None]) -> int:
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [hold["t0_ns"] for hold in demo_watch.holds(cluster) if hold["job_id"] == job_id]
        return bool(found)

    demo_watch.wait_for(is_there, "user3's gang to hold its GPUs", DEADLINE_S, show)
    return min(found)


def _every(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that acts when it was not called for so long."""
    due_s = time.monotonic() + seconds

    def maybe() -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + seconds
            act()

    return maybe


def _collect(cluster: MiniCluster, ids: Mapping[str, int], window_ns: tuple[int, int], say: Say) -> Recorded:
    window = ["-S", f"uts{window_ns[0] // checks.NS_PER_S}", "-E", f"uts{window_ns[1] // checks.NS_PER_S}"]
    say("\n== gandiva share, over the contended phase")
    say(cluster.exec(["gandiva", "share", "-a", *window]).stdout.rstrip())
    say("\n== gandiva acct")
    say(cluster.exec(["gandiva", "acct", "-a"]).stdout.rstrip())
    rows = {
        row["job_id"]: row
        for row in json.loads(cluster.exec(["gandiva", "acct", "-a", "--json"]).stdout)["jobs"]
    }
    shares = json.loads(cluster.exec(["gandiva", "share", "-a", *window, "--json"]).stdout)["users"]
    jobs = [demo_watch.record(cluster, job, rows[ids[job.name]]) for job in (*FIRST_JOBS, LATE_JOB)]
    for job, made in zip((*FIRST_JOBS, LATE_JOB), jobs, strict=True):
        if made.state != "COMPLETED":
            say(f"{job.name} ended {made.state}: {demo_watch.output_of(cluster, job)}")
    return Recorded(
        jobs, demo_watch.holds(cluster), demo_watch.events(cluster), window_ns,
        {row["user"]: row["tickets"] for row in shares}, cluster.exec(["sinfo", "-V"]).stdout.strip(),
        demo_watch.pyslurm_version(cluster),
    )  # fmt: skip


def _with_references(cluster: MiniCluster, jobs: Sequence[JobRecord], say: Say) -> list[JobRecord]:
    """Run every script again alone, to the step its job reached, and note its losses."""
    say("\n== the same scripts alone, without Slurm")
    told = {job.name: job for job in (*FIRST_JOBS, LATE_JOB)}
    where = {job.name: home_of(cluster, told[job.name]) / f"alone-{job.name}" for job in jobs}
    runs = [Reference(told[job.name], job.step_count, where[job.name]) for job in jobs if job.step_count]
    run_references(runs, os.cpu_count() or 1, REFERENCE_DEADLINE_S, say, start_inside(cluster))
    return [
        dataclasses.replace(job, reference=read_losses(where[job.name], job.gpus)) for job in jobs
    ]  # fmt: skip


def report_of(recorded: Recorded, aggregate: float | None) -> dict[str, Any]:
    """Check everything that was recorded; the shape of --json."""
    jobs, events = recorded.jobs, recorded.events
    users = checks.user_shares(recorded.holds, recorded.window_ns, recorded.tickets, jobs, GPUS)
    parks = checks.parks_in_events(events)
    inside = checks.steps_in_parks(jobs, parks)
    overlaps = (overlaps_in_events(events), checks.overlaps_in_steps(jobs, events))
    verdict = [
        checks.check_ends(jobs),
        checks.check_shares(users),
        checks.check_losses(jobs),
        checks.check_overlaps(*overlaps),
        checks.check_boundaries(parks, inside),
        checks.check_reaims(parks),
        checks.check_park_times(parks, jobs),
        checks.check_starts(jobs),
        checks.check_aggregate(aggregate),
    ]
    return {
        "version": 1,
        "ok": all(check.ok for check in verdict),
        "slurm": recorded.slurm.removeprefix("slurm-wlm ").removeprefix("slurm "),
        "pyslurm": recorded.pyslurm,
        "users": users,
        "jobs": [_job_row(job) for job in jobs],
        "overlaps": sum(overlaps),
        "parks": len(parks),
        "parks_off_boundary": sum(park.is_off for park in parks) + inside,
        "reaims": sum(park.reaims for park in parks),
        "suspend_ms": checks.spread([park.ms for park in parks]),
        "resume_ms": checks.spread(checks.resume_times_ms(events)),
        "start_latency_s": checks.spread(
            [job.start_latency_s for job in jobs if job.start_latency_s is not None]
        ),
        "aggregate_vs_exclusive": None if aggregate is None else round(aggregate, 4),
        "contended_s": round((recorded.window_ns[1] - recorded.window_ns[0]) / checks.NS_PER_S, 1),
        "checks": [dataclasses.asdict(check) for check in verdict],
    }


def _job_row(job: JobRecord) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "user": job.user,
        "gpus": job.gpus,
        "steps": job.step_count,
        "suspends": job.suspends,
        "loss_identical": job.is_identical,
    }
