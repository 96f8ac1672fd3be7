"""The verdict on what was recorded: which checks are judged, which are told, and what remains to be said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.mini import demo_checks as checks
from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_checks import Check, JobRecord
from gandiva_slurm.mini.demo_holds import Event, overlaps_in_events
from gandiva_slurm.mini.demo_parks import boundaries, parks_in_events
from gandiva_slurm.mini.demo_plan import Plan

GPUS = 4
OK, FAILED, TOLD, NOT_JUDGED = "OK", "FAILED", "told", "not judged"


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
    #: how often the contended phase was made longer
    extended: int = 0


@dataclass(frozen=True)
class Around:
    """What was found out beside the main job."""

    usage: Usage = dataclasses.field(default_factory=Usage)
    #: sentences about what was left behind; None where the cluster stays up
    left: Sequence[str] | None = ()
    #: steps per second sliced over exclusive; None where it was not measured
    aggregate: float | None = None


def report_of(recorded: Recorded, plan: Plan, around: Around) -> dict[str, Any]:
    """Check everything that was recorded; the shape of --json."""
    jobs, events = recorded.jobs, recorded.events
    users = checks.user_shares(recorded.holds, recorded.window_ns, recorded.tickets, jobs, GPUS)
    parks = parks_in_events(events)
    found = boundaries(parks, checks.steps_of(jobs))
    overlaps = (overlaps_in_events(events), checks.overlaps_in_steps(jobs, events))
    verdict = [
        checks.check_ends(jobs),
        checks.check_shares(users),
        checks.check_losses(jobs),
        checks.check_overlaps(*overlaps),
        checks.check_boundaries(parks, found),
        *([checks.check_left(around.left)] if around.left is not None else []),
        checks.check_reaims(parks),
        checks.check_park_times(parks, jobs),
        checks.check_starts(jobs),
        *([checks.check_aggregate(around.aggregate)] if plan.measures_slicing else []),
    ]
    words = [word_of(check, plan, around.usage) for check in verdict]
    return {
        "version": 1,
        "plan": plan.title,
        "ok": FAILED not in words,
        "not_judged": [check.name for check, word in zip(verdict, words, strict=True) if word == NOT_JUDGED],
        "outside": round(around.usage.outside, 4),
        "busy": around.usage.is_busy,
        "slurm": recorded.slurm.removeprefix("slurm-wlm ").removeprefix("slurm "),
        "pyslurm": recorded.pyslurm,
        "users": users,
        "jobs": [_job_row(job) for job in jobs],
        "overlaps": sum(overlaps),
        "parks": len(parks),
        "parks_off_boundary": found.off + found.cut,
        "reaims": sum(park.reaims for park in parks),
        "suspend_ms": checks.spread([park.ms for park in parks]),
        "resume_ms": checks.spread(checks.resume_times_ms(events)),
        "start_latency_s": checks.spread(
            [job.start_latency_s for job in jobs if job.start_latency_s is not None]
        ),
        "aggregate_vs_exclusive": None if around.aggregate is None else round(around.aggregate, 4),
        "contended_s": round((recorded.window_ns[1] - recorded.window_ns[0]) / checks.NS_PER_S, 1),
        "extended": recorded.extended,
        "checks": [
            dataclasses.asdict(check) | {"verdict": word}
            for check, word in zip(verdict, words, strict=True)
        ],
    }  # fmt: skip


def _job_row(job: JobRecord) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "user": job.user,
        "gpus": job.gpus,
        "steps": job.step_count,
        "compared": job.compared_count,
        "suspends": job.suspends,
        "loss_identical": job.is_identical,
    }


def word_of(check: Check, plan: Plan, usage: Usage) -> str:
    """What the verdict says of a check: a limit on time is judged where the plan does, on a quiet machine."""
    if check.of_time and not plan.judges_times:
        return TOLD
    if check.ok:
        return OK
    return NOT_JUDGED if check.of_time and usage.is_busy else FAILED


def lines_of(report: Mapping[str, Any], usage: Usage) -> list[str]:
    """The verdict as people read it."""
    by = f"pyslurm {report['pyslurm']}" if report["pyslurm"] else "its commands"
    lines = [f"== verdict: Slurm {report['slurm']}, read through {by}", *check_lines(report)]
    if report["extended"]:
        lines.append(f"        the contended phase was extended {report['extended']} times, to "
                     f"{report['contended_s']:.0f} s")  # fmt: skip
    return [*lines, f"        machine {usage}", last_line(report)]


def check_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the verdict says of each check."""
    for row in report["checks"]:
        limit = "" if row["verdict"] == TOLD or not row["limit"] else f"; {row['limit']}"
        text = f"{row['text']}{limit}"
        if row["verdict"] == NOT_JUDGED:
            text = f"not judged: machine busy ({text})"
        mark = "-" if row["verdict"] == NOT_JUDGED else row["verdict"]
        yield f"{mark:<7} {row['name']}: {text}"


def last_line(report: Mapping[str, Any]) -> str:
    """OK or FAILED, in how many seconds, and what is to be known about it."""
    took = f"in {report['wall_s']:.0f} s"
    bad = [row["name"] for row in report["checks"] if row["verdict"] == FAILED]
    if bad:
        return f"FAILED {took}: {', '.join(bad)}"
    if report["not_judged"]:
        names = ", ".join(report["not_judged"])
        return f"OK {took}, but not judged, for the machine was busy: {names}; next: again on a quiet machine"
    return f"OK {took}"


def exit_code(report: Mapping[str, Any], strict: bool) -> int:
    """1 when a check failed; with `strict`, 2 when one could not be judged."""
    if not report["ok"]:
        return 1
    return 2 if strict and report["not_judged"] else 0
