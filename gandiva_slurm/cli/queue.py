"""`gandiva queue`: the jobs, in squeue's manner."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import (
    JobId,
    by_job_id,
    is_wanted,
    parse_job_ids,
    parse_states,
    parse_users,
    require_users,
    show_job_id,
)
from gandiva_slurm.cli.table import Field, Row, choose_fields, expand_codes, squeue_lines, text_of
from gandiva_slurm.cli.times import format_duration, format_time
from gandiva_slurm.model.job import ENDED, HELD, REQUEUED, RUNNING, STARTING, STATES

_text = partial(text_of, missing="-")

#: What squeue's users call PENDING.
PENDING = (HELD, STARTING, REQUEUED)
DEFAULT = "JobID,User,State,GPUs,Type,Node(GPUs),Share,Rate,Parked,When,MovesBy,Reason"


def _share(row: Row) -> str:
    return "-" if row.get("share") is None else f"{100 * row['share']:.0f}%"


def _rate(row: Row) -> str:
    return f"{row['rate']:.1f}/s" if row.get("rate") else "-"


def _when(row: Row) -> str:
    """What comes next of a job, and how long after the forecast's moment: start+00:12:00."""
    when = row.get("when")
    if not when or row["state"] == ENDED:
        return "-"
    if when["why"]:
        return "unknown"
    what = "end" if row["state"] == RUNNING else "start" if row["state"] in PENDING else "turn"
    mid_s = (when.get(what) or [None, None, None])[1]
    if what == "start" and mid_s is not None and mid_s < when["of_s"]:  # it was requeued, and goes on
        what, mid_s = "turn", (when.get("turn") or [None, None, None])[1]
    return f"{what}+later" if mid_s is None else f"{what}+{format_duration(mid_s - when['of_s'])}"


def _place(row: Row) -> str:
    """Where a job is: n1(0-1), n[1-2](0-1) when its GPUs have the same numbers on all, else n1(0),n2(3)."""
    if not row.get("node"):
        return "-"
    parts = [(item["node"], fold_numbers(item["gpus"])) for item in row.get("places") or ()]
    if len({gpus for _, gpus in parts}) > 1:
        return ",".join(f"{node}({gpus or '?'})" for node, gpus in parts)
    gpus = parts[0][1] if parts else fold_numbers(row.get("gpu_ids") or ())
    return f"{row['node']}({gpus})" if gpus else str(row["node"])


def fold_numbers(numbers: Sequence[int]) -> str:
    """Write GPU numbers as Slurm writes sets: 0-2,5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


FIELDS = (
    Field("JobID", 10, show_job_id),
    Field("User", 8, _text("user"), left=True),
    Field("State", 12, _text("state"), left=True),
    Field("GPUs", 4, _text("gpus")),
    Field("Type", 6, _text("type"), left=True),
    Field("Node(GPUs)", 12, _place, left=True),
    Field("Share", 5, _share),
    Field("Rate", 8, _rate),
    Field("Parked", 8, lambda row: format_duration(row.get("parked_s")) or "-"),
    Field("When", 14, _when, left=True),
    Field("MovesBy", 8, _text("moves_by"), left=True),
    Field("Reason", 24, _text("reason"), left=True),
    Field("Name", 8, _text("name"), left=True),
    Field("Account", 10, _text("account"), left=True),
    Field("Partition", 9, _text("partition"), left=True),
    Field("Node", 10, _text("node"), left=True),
    Field("Nodes", 5, _text("nodes")),
    Field("Tickets", 7, _text("tickets")),
    Field("Restart", 7, _text("restart")),
    Field("Submit", 19, lambda row: format_time(row.get("submit_s"))),
    Field("Start", 19, lambda row: format_time(row.get("start_s"))),
    Field("Suspends", 8, _text("suspends")),
    Field("Reaims", 6, _text("reaims")),
    Field("Steps", 8, _text("steps")),
    Field("Ranks", 5, lambda row: f"{row.get('ranks') or 0}/{row.get('world') or 0}"),
    Field("Detail", 40, _text("detail"), left=True),
)
#: squeue's % codes that mean the same here.
CODES = {
    "i": "jobid",
    "A": "jobid",
    "u": "user",
    "T": "state",
    "t": "state",
    "j": "name",
    "a": "account",
    "P": "partition",
    "R": "reason",
    "r": "reason",
    "N": "node",
    "D": "nodes",
    "S": "start",
    "V": "submit",
    "b": "gpus",
}


@click.command(context_settings={"help_option_names": ["--help"]})
@click.option("-u", "--user", "users", metavar="NAMES", help="Only these users' jobs.")
@click.option("--me", is_flag=True, help="Only my own jobs.")
@click.option("-j", "--jobs", metavar="IDS", help="Only these jobs: 12,13_4.")
@click.option("-t", "--states", metavar="STATES", help="Only these states; `all` shows ended jobs too.")
@click.option("-h", "--noheader", is_flag=True, help="No heading.")
@click.option("-o", "--format", "spec", metavar="FIELDS", help="Fields (jobid,user%10) or squeue's % codes.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def queue(config: str | None, /, **options: Any) -> None:
    """Show the jobs Gandiva schedules, their share of the GPUs, and why they wait."""
    fields = choose_fields(expand_codes(options["spec"] or DEFAULT, CODES), FIELDS)
    wanted = parse_job_ids(options["jobs"] or "")
    users = [getpass.getuser()] if options["me"] else parse_users(options["users"])
    states = wanted_states(options["states"])
    asked = {"when": options["as_json"] or any(field.name == "When" for field in fields)}
    if wanted:
        asked["job_ids"] = [job.job_id for job in wanted]
    elif users is not None and len(users) == 1:
        asked["user"] = users[0]
    rows = sorted(query(config, "queue", asked), key=by_job_id)
    if not any(users is None or row["user"] in users for row in rows):
        require_users(users)
    rows = [row for row in rows if is_shown(row, users, wanted, states)]
    if options["as_json"]:
        click.echo(to_json({"jobs": rows}))
        return
    for line in squeue_lines(fields, rows, not options["noheader"], fixed=bool(options["spec"])):
        click.echo(line)


def is_shown(
    row: Row, users: list[str] | None, wanted: Sequence[JobId], states: Sequence[str] | None
) -> bool:
    """Filter the controller's rows the way squeue's options do; without -t all but ended jobs are shown."""
    return (
        (users is None or row["user"] in users)
        and (not wanted or is_wanted(row, wanted))
        and (row["state"] != "ENDED" if states is None else row["state"] in states)
    )


def wanted_states(text: str | None) -> tuple[str, ...] | None:
    """PENDING is what Slurm shows for the states before a start."""
    if text is None:
        return None
    if text.strip().lower() == "all":
        return tuple(STATES)
    found = parse_states(text, (*STATES, "PENDING"))
    return (*found, *PENDING) if "PENDING" in found else found
