"""`gandiva why`: one dominant reason, the evidence for it, and what will change it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import find_jobs, parse_job_id
from gandiva_slurm.cli.times import format_time

#: scontrol's words for the paths slurmd opens when it starts a job.
FILES = ("WorkDir=", "StdOut=", "StdErr=", "StdIn=")
ANSWER_S = 10.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.option("--story", is_flag=True, help="The job's history too.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def why(config: str | None, job: str, story: bool, as_json: bool) -> None:
    """Say why JOB is where it is, and what will change it."""
    wanted = parse_job_id(job)
    job_id = wanted.job_id if wanted.task is None else find_jobs(config, wanted, job)[0]
    data = query(config, "why", {"job_id": job_id, "story": story})
    if data.get("code") == "NoOutput":
        data["evidence"] = [*(data.get("evidence") or ()), *_files_of(job_id)]
    if as_json:
        click.echo(to_json(data))
        return
    for line in explain(data, job, story):
        click.echo(line)


def _files_of(job_id: int) -> list[str]:
    """Where the job's files were to lie; Slurm knows that for some minutes after its end (MinJobAge)."""
    try:
        told = subprocess.run(["scontrol", "show", "job", str(job_id)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [f"where they were to lie Slurm does not tell any more (scontrol show job {job_id})"]
    return [line.strip() for line in told.splitlines() if line.strip().startswith(FILES)]


def explain(data: dict[str, Any], job: str, story: bool) -> Iterable[str]:
    """Write the answer out: the state and its reason, then evidence, then what comes next."""
    code = f"{data['code']}: " if data.get("code") else ""
    yield f"job {job} is {data['state']}: {code}{data['sentence']}"
    for line in data.get("evidence") or ():
        yield f"    {line}"
    if data.get("next"):
        yield f"next: {data['next']}"
    if story:
        yield "story:"
        for line in data.get("story") or ():
            step = f"{line['from']} -> {line['to']}" if line["from"] != line["to"] else line["to"]
            yield f"    {format_time(line['t_s'])}  {step:<24}  {line['code']}: {line['text']}"
