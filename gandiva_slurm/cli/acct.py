"""`gandiva acct`: what jobs used, in sacct's manner, with sacct's default window."""

from __future__ import annotations

import getpass
import os
import textwrap
import time
from collections.abc import Iterable
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import (
    STATE_CODES,
    by_job_id,
    is_wanted,
    parse_job_ids,
    parse_names,
    parse_states,
    parse_users,
    require_users,
    show_job_id,
)
from gandiva_slurm.cli.table import Field, Row, choose_fields, parsable_lines, sacct_lines, text_of
from gandiva_slurm.cli.times import format_duration, format_time, parse_time, require_window

DEFAULT = "JobID,JobName,Partition,Account,AllocGPUs,State,ExitCode,GpuHeld,GpuParked,Suspends"
BRIEF = "JobID,State,ExitCode"


def _moment(key: str) -> Any:
    return lambda row: format_time(row.get(key), os.environ.get("SLURM_TIME_FORMAT", ""))


def _duration(key: str) -> Any:
    return lambda row: format_duration(row.get(key))


def _seconds(key: str) -> Any:
    return lambda row: "" if row.get(key) is None else str(round(row[key]))


def _mib(key: str) -> Any:
    return lambda row: "" if row.get(key) is None else f"{-(-row[key] // (1 << 20))}M"


def elapsed_s(row: Row) -> float:
    """Return how long a job has been running in Slurm's eyes, parked time included."""
    if not row.get("start_s"):
        return 0.0
    return float((row.get("end_s") or row.get("now_s") or time.time()) - row["start_s"])


def _latency(row: Row) -> str:
    """Seconds from the release to the start, with their milliseconds: a duration would round them away."""
    return "" if row.get("start_latency_s") is None else f"{row['start_latency_s']:.3f}"


def _told(row: Row, key: str, form: str) -> str:
    """What is known of a job's moves; "-" where it is not."""
    return "-" if row.get(key) is None else form.format(row[key])


def _why(row: Row) -> str:
    """Why CkptTime or LostSteps is not known."""
    whys = {"LostSteps": row.get("lost_steps_why"), "CkptTime": row.get("ckpt_why")}
    return "; ".join(f"{name}: {why}" for name, why in whys.items() if why)


#: Every field has a source; widths are sacct's where sacct has the field.
FIELDS = (
    Field("Account", 10, text_of("account")),
    Field("AllocGPUs", 10, text_of("gpus")),
    Field("CkptTime", 10, lambda row: _told(row, "ckpt_s", "{:.3f}")),
    Field("Elapsed", 10, lambda row: format_duration(elapsed_s(row))),
    Field("ElapsedRaw", 10, lambda row: str(round(elapsed_s(row)))),
    Field("End", 19, _moment("end_s")),
    Field("ExitCode", 8, text_of("exit_code")),
    Field("First100", 10, _seconds("first_100_s")),
    Field("GpuHeld", 10, _duration("gpu_held_s")),
    Field("GpuHeldRaw", 10, _seconds("gpu_held_s")),
    Field("GpuMemLive", 10, _mib("gpu_mem_live_bytes")),
    Field("GpuMemPeak", 10, _mib("gpu_mem_peak_bytes")),
    Field("GpuPacked", 10, _duration("gpu_packed_s")),
    Field("GpuPackedRaw", 12, _seconds("gpu_packed_s")),
    Field("GpuParked", 10, _duration("gpu_parked_s")),
    Field("GpuParkedRaw", 12, _seconds("gpu_parked_s")),
    Field("GpuRun", 10, _duration("gpu_run_s")),
    Field("GpuRunRaw", 10, _seconds("gpu_run_s")),
    Field("GpuType", 10, text_of("type")),
    Field("JobID", 12, show_job_id, left=True),
    Field("JobIDRaw", 12, text_of("job_id"), left=True),
    Field("JobName", 10, text_of("name")),
    Field("LostSteps", 9, lambda row: _told(row, "lost_steps", "{}")),
    Field("Migrations", 10, text_of("migrations")),
    Field("MovedBy", 12, lambda row: ",".join(row.get("moved_by") or ())),
    Field("MovesNote", 30, _why, left=True),
    Field("NNodes", 8, text_of("nodes")),
    Field("NodeList", 15, lambda row: row.get("node") or "None assigned"),
    Field("PackedWith", 12, lambda row: ",".join(map(str, row.get("packed_with") or ()))),
    Field("Partition", 10, text_of("partition")),
    Field("Restarts", 8, text_of("restarts")),
    Field("Start", 19, _moment("start_s")),
    Field("StartLatency", 12, _latency),
    Field("State", 10, text_of("state")),
    Field("Submit", 19, _moment("submit_s")),
    Field("Suspends", 8, text_of("suspends")),
    Field("User", 9, text_of("user")),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-j", "--jobs", metavar="IDS", help="Only these jobs: 12,13_4.")
@click.option(
    "-u", "--user", "--uid", "users", metavar="NAMES", help="These users' (default: yours; root, -j: all)."
)
@click.option("-a", "--allusers", is_flag=True, help="All users' jobs.")
@click.option("-A", "--accounts", metavar="NAMES", help="Only these accounts' jobs.")
@click.option("-r", "--partition", "partitions", metavar="NAMES", help="Only these partitions' jobs.")
@click.option("-S", "--starttime", metavar="TIME", help="Start of the window (default: today's midnight).")
@click.option("-E", "--endtime", metavar="TIME", help="End of the window (default: now).")
@click.option("-s", "--state", "states", metavar="STATES", help="Jobs in these states during the window.")
@click.option("-T", "--truncate", is_flag=True, help="Cut times, GPU time included, to the window.")
@click.option("-X", "--allocations", is_flag=True, help="Jobs only, no steps (always so).")
@click.option("-n", "--noheader", is_flag=True, help="No heading.")
@click.option("-P", "--parsable2", is_flag=True, help="Values between bars.")
@click.option("-p", "--parsable", is_flag=True, help="Values between bars, one more at the end.")
@click.option("-b", "--brief", is_flag=True, help="JobID, State and ExitCode only.")
@click.option(
    "-o", "--format", "spec", metavar="FIELDS", help="Fields; NAME%20 sets a width, NAME%-20 from the left."
)
@click.option("-e", "--helpformat", is_flag=True, help="List the fields.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def acct(config: str | None, /, **options: Any) -> None:
    """Show what jobs used: GPU time held, run and parked, beside sacct's own fields."""
    if options["helpformat"]:
        click.echo(textwrap.fill(" ".join(f"{field.name:<14}" for field in FIELDS), 64))
        return
    spec = options["spec"] or (BRIEF if options["brief"] else DEFAULT)
    fields = choose_fields(spec, FIELDS)
    now_s = time.time()
    start_s, end_s = default_window(options, now_s)
    rows = sorted(query(config, "acct", _arguments(options, (start_s, end_s, now_s))), key=by_job_id)
    if not rows:
        require_users(parse_users(options["users"]))
    wanted = parse_job_ids(options["jobs"] or "")
    rows = [dict(row, now_s=now_s) for row in rows if not wanted or is_wanted(row, wanted)]
    partitions = parse_names(options["partitions"])
    if partitions is not None:
        rows = [row for row in rows if not set(partitions).isdisjoint(row["partition"].split(","))]
    if options["truncate"]:
        rows = [_truncated(row, start_s, end_s) for row in rows]
    for line in _lines(fields, rows, options):
        click.echo(line)


def default_window(options: dict[str, Any], now_s: float) -> tuple[float, float]:
    """Return sacct's window: midnight to now; from 1970 with -j; now alone with -s (DEFAULT TIME WINDOW).

    UsageError when it ends before it starts.
    """
    start, end = options.get("starttime"), options.get("endtime")
    jobs, states = options.get("jobs"), options.get("states")
    if start:
        start_s = parse_time(start, now_s)
    elif jobs:
        start_s = 0.0
    else:
        start_s = now_s if states else parse_time("midnight", now_s)
    unasked_s = start_s if states and start else now_s
    end_s = parse_time(end, now_s) if end else unasked_s
    require_window(start_s, end_s)
    return start_s, end_s


def _arguments(options: dict[str, Any], window: tuple[float, float, float]) -> dict[str, Any]:
    users = parse_users(options["users"])
    if users is None and not (options["allusers"] or options["jobs"] or os.geteuid() == 0):
        users = [getpass.getuser()]
    arguments: dict[str, Any] = {"start_s": window[0], "end_s": window[1], "now_s": window[2]}
    if options["truncate"]:
        arguments["truncate"] = True
    job_ids = {job.job_id for job in parse_job_ids(options["jobs"] or "")}
    if job_ids:
        arguments["job_ids"] = sorted(job_ids)
    if users:
        arguments["users"] = users
    if options["accounts"]:
        arguments["accounts"] = parse_names(options["accounts"])
    if options["states"]:
        arguments["states"] = list(parse_states(options["states"], STATE_CODES.values()))
    return arguments


def _truncated(row: dict[str, Any], start_s: float, end_s: float) -> dict[str, Any]:
    start, end = row.get("start_s"), row.get("end_s")
    cut = dict(row)
    if start:
        cut.update(start_s=max(start, start_s), end_s=min(end or end_s, end_s))
    return cut


def _lines(fields: list[Field], rows: list[dict[str, Any]], options: dict[str, Any]) -> Iterable[str]:
    header = not options["noheader"]
    if options["as_json"]:
        return [to_json({"jobs": rows})]
    if options["parsable"] or options["parsable2"]:
        return parsable_lines(fields, rows, header, trailing=options["parsable"])
    return sacct_lines(fields, rows, header)
