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
#: What comes within this of the forecast comes at once.
AT_ONCE_S = 1.0
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
        told = _newcomer(config, newcomer_of(words, script))
        click.echo("\n".join(would_be(told)))
        return
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


def _newcomer(config: str | None, new: str) -> Any:
    parse_new(new)
    return query(config, "when", {"new": new}, ANSWER_S)


def _tell_newcomer(config: str | None, new: str, as_json: bool) -> None:
    data = _newcomer(config, new)
    if as_json:
        click.echo(to_json({**data, "assumes": ASSUMES}))
        return
    row, told = data["new"], data["forecast"]
    if row["why"]:
        click.echo(f"submitted now it would wait: {row['why']}")
        return
    for name in ("start", "end"):
        click.echo(f"submitted now: {WHAT[name]:<5} {range_words(row[name], told)}")


def would_be(data: Row) -> Iterator[str]:
    """Say of a job that is not submitted yet, in few words, what sbatch shows of it."""
    row, told = data["new"], data["forecast"]
    if row["why"]:
        yield f"would wait: {row['why']}"
        return
    for name in ("start", "end"):
        yield f"would {name} {_wait_words(row[name], told)}"


def _wait_words(times: list[float | None] | None, told: Row) -> str:
    """Say how long it is until then, and the range."""
    of_s, reached_s = told["of_s"], told["reached_s"]
    if times is None or times[1] is None:
        return f"in more than {format_duration(reached_s - of_s)}"
    low_s, mid_s, high_s = in_order(times, of_s)
    if high_s is not None and high_s - of_s < AT_ONCE_S:
        return "at once"
    high = "later" if high_s is None else format_duration(high_s - of_s)
    return f"in about {format_duration(mid_s - of_s)} (between {format_duration(low_s - of_s)} and {high})"


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
    of_s, reached_s = told["of_s"], told["reached_s"]
    if times is None:
        return "-"
    if times[1] is None:
        return f"after {format_time(reached_s)}"
    if times[2] is not None and max(times[1], times[2]) <= of_s:
        return f"{format_time(times[1])}  it had come by then"
    low_s, mid_s, high_s = in_order(times, of_s)
    if high_s is not None and high_s - of_s < AT_ONCE_S:
        return f"{format_time(mid_s)}  at once"
    wait = format_duration(mid_s - of_s)
    high = f"after {format_time(max(reached_s, mid_s))}" if high_s is None else format_time(high_s)
    return f"{format_time(mid_s)}  in {wait}, 8 of 10 between {format_time(low_s)} and {high}"


def in_order(times: list[float | None], of_s: float) -> tuple[float, float, float | None]:
    """Return the range from its begin to its end, none of it before the forecast was made; None: open.

    A range is corrected by past errors, and its ends are not of one run: they may be the wrong way round.
    """
    low_s, mid_s, high_s = times
    assert mid_s is not None
    mid_s = max(mid_s, of_s)
    low_s = mid_s if low_s is None else min(max(low_s, of_s), mid_s)
    return low_s, mid_s, None if high_s is None else max(high_s, mid_s)
