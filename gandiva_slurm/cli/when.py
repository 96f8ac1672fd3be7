"""`gandiva when`: when a job has its next turn, when it starts and when it ends, as far as is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import find_jobs, parse_job_id
from gandiva_slurm.cli.newcomer import newcomer_of
from gandiva_slurm.cli.times import format_duration, format_time
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.job import ENDED
from gandiva_slurm.model.wish import NEW_FORMS, parse_new, parse_wish

Row = Mapping[str, Any]
#: How long an answer may take: `--if` is worked out when it is asked.
ANSWER_S = 12.0
#: What is foretold, and the words for it.
WHAT = {"turn": "next turn", "start": "start", "end": "end"}
#: What every forecast takes for granted.
ASSUMES = (
    "no job is submitted, cancelled or changed, and no node fails",
    "jobs run as long as their like did, within their time limits",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="JOB")
@click.option("--new", "new", metavar="WHAT", help=f"Of a job that is not submitted yet: {NEW_FORMS}.")
@click.option("--test-only", "script", hidden=True, help="The same, by sbatch's words and this script.")
@click.option("--if", "wish", metavar="WISH", help="What if: tickets=200, gpus=2 or type=k80.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def when(config: str | None, /, **options: Any) -> None:
    """Say when JOB has its next turn, when it starts and when it ends.

    The range is one in which it falls eight times of ten.
    """
    words, new, script, wish = (options[name] for name in ("words", "new", "script", "wish"))
    as_json = options["as_json"]
    if script is not None:
        new = newcomer_of(words, script)
    if new is not None:
        _tell_newcomer(config, new, as_json)
        return
    if len(words) != 1:
        raise UsageError("name one job, or what one would ask for: --new gpus=2")
    (job,) = words
    wanted = parse_job_id(job)
    job_ids = [wanted.job_id] if wanted.task is None else find_jobs(config, wanted, job)
    args: dict[str, Any] = {"job_ids": job_ids}
    if wish is not None:
        parse_wish(job_ids[0], wish)
        args["if"] = wish
    data = query(config, "when", args, ANSWER_S)
    if as_json:
        click.echo(to_json({**data, "assumes": ASSUMES}))
        return
    for line in explain(data, job) if wish is None else explain_wish(data, job):
        click.echo(line)


def _tell_newcomer(config: str | None, new: str, as_json: bool) -> None:
    parse_new(new)
    data = query(config, "when", {"new": new}, ANSWER_S)
    if as_json:
        click.echo(to_json({**data, "assumes": ASSUMES}))
        return
    row, told = data["new"], data["forecast"]
    if row["why"]:
        click.echo(f"submitted now it would wait: {row['why']}")
        return
    for name in ("start", "end"):
        click.echo(f"submitted now: {WHAT[name]:<5} {range_words(row[name], told)}")


def explain_wish(data: Row, job: str) -> Iterator[str]:
    """Write out what would be, beside what is."""
    told = data["forecast"]
    for words, row in (("as it is", data["now"]), (f"with {data['wish']}", data["then"])):
        yield f"job {job} {words}"
        if row["why"]:
            yield f"    no time can be told: {row['why']}"
        else:
            yield from (f"    {WHAT[name]:<10} {range_words(row[name], told)}" for name in WHAT)
    yield f"by {told['runs']} runs forward of gandivactld's engine, of {format_time(told['of_s'])}"
    for line in (*ASSUMES, "with other GPUs a job takes the same GPU time"):
        yield f"    assumes: {line}"


def explain(data: Row, job: str) -> Iterator[str]:
    """Write the answer out."""
    (row,) = data["jobs"]
    yield f"job {job} is {row['state']}"
    told = data["forecast"]
    if row["state"] == ENDED:
        return
    if told is None or not row["is_told"]:
        yield f"    no forecast: {data['trouble'] or 'it came after the last one was made'}"
        return
    if row["why"]:
        yield f"    no time can be told: {row['why']}"
        return
    for name, words in WHAT.items():
        yield f"    {words:<10} {range_words(row[name], told)}"
    yield (
        f"forecast of {format_time(told['of_s'])}, {told['age_s']:.0f} s old, by {told['runs']} runs forward "
        f"of gandivactld's engine and {told['past_jobs']} past jobs"
    )
    for line in ASSUMES:
        yield f"    assumes: {line}"


def range_words(times: list[float | None] | None, told: Row) -> str:
    """Say when it is likeliest, how long that is from the forecast on, and the range."""
    if times is None:
        return "-"
    low_s, mid_s, high_s = times
    if mid_s is None:
        return f"after {format_time(told['reached_s'])}"
    if high_s is not None and high_s <= told["of_s"]:
        return f"{format_time(mid_s)}  it had come by then"
    wait = format_duration(mid_s - told["of_s"])
    high = f"after {format_time(told['reached_s'])}" if high_s is None else format_time(high_s)
    return f"{format_time(mid_s)}  in {wait}, 8 of 10 between {format_time(low_s)} and {high}"
