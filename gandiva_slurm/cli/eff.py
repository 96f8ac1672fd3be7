"""`gandiva eff`: what a job made of the GPUs it held, and what to change about it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from gandiva_slurm.cli.advice import with_advice
from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import (
    by_job_id,
    is_wanted,
    parse_job_ids,
    parse_users,
    require_users,
    show_job_id,
)
from gandiva_slurm.cli.table import Field, Row, printable, squeue_lines, text_of
from gandiva_slurm.cli.times import format_duration, parse_time, require_window
from gandiva_slurm.model.errors import GandivaError, UsageError


def _percent(key: str) -> Any:
    return lambda row: "-" if row.get(key) is None else f"{100 * row[key]:.0f}%"


def _memory(row: Row) -> str:
    peak = row.get("gpu_mem_peak_bytes")
    return "-" if peak is None else f"{-(-peak // (1 << 20))}M"


FIELDS = (
    Field("JobID", 10, show_job_id),
    Field("Name", 10, text_of("name", "-"), left=True),
    Field("State", 10, text_of("state", "-"), left=True),
    Field("GPUs", 4, text_of("gpus")),
    Field("Held", 10, lambda row: format_duration(row["gpu_held_s"])),
    Field("Useful", 6, _percent("useful")),
    Field("Idle", 5, _percent("idle")),
    Field("Parked", 10, lambda row: format_duration(row["gpu_parked_s"])),
    Field("MemPeak", 8, _memory),
    Field("Moves", 5, text_of("migrations")),
    Field("Advice", 40, text_of("advice", "-"), left=True),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("jobs", metavar="[JOBID,...]", required=False)
@click.option("-u", "--user", "users", metavar="NAMES", help="All jobs of these users instead.")
@click.option("-S", "--since", metavar="TIME", help="With --user: from when on (default: today's midnight).")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def eff(config: str | None, jobs: str | None, users: str | None, since: str | None, as_json: bool) -> None:
    """Show what jobs made of the GPUs they held, and what to change."""
    if bool(jobs) == bool(users) or (since and not users):
        raise UsageError(
            "name a job (gandiva eff 123), or a user and a time (gandiva eff -u ann -S now-7days)"
        )
    rows = _of_jobs(config, str(jobs)) if jobs else _of_users(config, str(users), since)
    if as_json:
        click.echo(to_json({"jobs": rows}))
        return
    lines = [line for row in rows for line in story(row)] if jobs else squeue_lines(FIELDS, rows, True)
    for line in lines:
        click.echo(line)


def _of_jobs(config: str | None, typed: str) -> list[dict[str, Any]]:
    wanted = parse_job_ids(typed)
    if not wanted:
        raise UsageError(f"invalid job id {typed!r}; allowed: 123, 123_4 (a task of an array), 123.batch")
    ids = sorted({job.job_id for job in wanted})
    rows = _asked(config, {"start_s": 0.0, "job_ids": ids})
    rows = [row for row in rows if is_wanted(row, wanted)]
    if not rows:
        raise GandivaError(f"nothing is recorded of job {typed}; `gandiva acct -a` lists what is")
    return rows


def _of_users(config: str | None, users: str, since: str | None) -> list[dict[str, Any]]:
    names, now_s = parse_users(users), time.time()
    start_s = parse_time(since or "midnight", now_s)
    require_window(start_s, now_s)
    rows = _asked(config, {"start_s": start_s, "users": names})
    if not rows:
        require_users(names)
    return rows


def _asked(config: str | None, args: dict[str, Any]) -> list[dict[str, Any]]:
    now_s = time.time()
    rows = query(config, "acct", {**args, "end_s": now_s, "now_s": now_s})
    return [with_advice({**row, "now_s": now_s}) for row in sorted(rows, key=by_job_id)]


def story(row: Row) -> Iterable[str]:
    """Write out one job: what it is, then a line a kind of time, then what to change."""
    where = f" on {row['node']}" if row.get("node") else ""
    kind = f" {row['type']}" if row.get("type") else ""
    whose = f"{row['user']} ({row['account']})" if row.get("account") else row["user"]
    what = f"{row['gpus']}{kind} GPU(s){where}, {row['state']}"
    yield printable(f"job {show_job_id(row)} {row.get('name') or ''}, {whose}: {what}")
    held = f"held {format_duration(row['gpu_held_s'])}"
    if row["useful"] is not None:
        held += f", useful {100 * row['useful']:.0f} %"
    packed = f", of it shared {format_duration(row['gpu_packed_s'])}" if row.get("gpu_packed_s") else ""
    yield f"  GPU time  {held}{packed}; parked {format_duration(row['gpu_parked_s'])}"
    if row["idle"] is None:
        yield "  idle      not measured: NVML saw none of its processes"
    else:
        seen = format_duration(row["gpu_seen_s"])
        yield f"  idle      {100 * row['idle']:.0f} % of {seen} that NVML looked at"
    spilled = row.get("gpu_mem_spilled_bytes") or 0
    besides = f"; {-(-spilled // (1 << 20))}M more in host memory, for its GPU was full" if spilled else ""
    yield f"  memory    {_memory(row)} at the peak, on one node{besides}"
    yield f"  turns     {row['suspends']} times parked, {_moves(row)}"
    yield f"  steps     {row.get('steps') or 0} mini-batches{_started(row)}"
    for name, where in (("", "alone on its GPUs"), ("packed_", "beside another job")):
        p50, p99 = (row.get(f"{name}step_{part}_ms") for part in ("p50", "p99"))
        if p50 and p99:
            yield f"  a step    {p50:.3g} ms {where}, {p99:.3g} ms at the 99th percentile, of late"
    yield printable(f"  advice    {row['advice'] or 'nothing to change'}")


def _moves(row: Row) -> str:
    count = row.get("migrations") or 0
    if not count:
        return "never moved"
    lost = row.get("lost_steps")
    again = "what was done again is not known" if lost is None else f"{lost} mini-batches done again"
    return f"moved {count} times, {again}"


def _started(row: Row) -> str:
    first_s = row.get("first_100_s")
    return "" if first_s is None else f", the 100th {format_duration(first_s)} after submission"
