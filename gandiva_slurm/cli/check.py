"""`gandiva check`: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.model.errors import GandivaError, PeerError, UsageError

ERROR = "error"
#: What a node cannot do (`node.faults`), and what is to be done about it.
_FAULTS = {
    "devices": (
        "it cannot close others' GPUs to a job",
        "give it CAP_BPF and CAP_NET_ADMIN and a control group (docs/setup.md), or set node.gpu_files: none",
    ),
    "freeze": (
        "it cannot freeze parked jobs whole, and stops their processes by signals",
        "mount /sys/fs/cgroup where gandivad may write it (docs/setup.md), kernel 5.2 or newer",
    ),
    "slurmctld": (
        "it cannot ask slurmctld, so that `isolation` never acts on it",
        "see that `scontrol ping` works there as root",
    ),
}
#: Of another release.
_UNKNOWN = ("something is wrong there", "see gandivad's log on that node")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option(
    "--process-images",
    "images",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Instead: make and restore N images of a program's processes on this node, as root.",
)
@click.option("--user", metavar="NAME", help="As whom that program runs; nobody by default.")
@click.pass_obj
def check(config: str | None, as_json: bool, images: int | None, user: str | None) -> int:
    """Check configuration, Slurm and daemons; exit 1 if something is wrong."""
    if images is not None:
        rounds = importlib.import_module("gandiva_slurm.cli.image_rounds")
        return int(rounds.check(config, images, user or "nobody", as_json))
    if user is not None:
        raise UsageError("--user is of --process-images; next: give both, or neither")
    # Imported by name: most commands never need Slurm's adapters.
    checks = importlib.import_module("gandiva_slurm.slurm.check")
    files = importlib.import_module("gandiva_slurm.config")
    survey, told = asyncio.run(checks.run_checks(files.load_config(config))), dict[str, Any]()
    found = (*survey.findings, *_outdated(files.outdated(config)), *_daemons(config, told))
    findings = [dataclasses.asdict(finding) for finding in found]
    rounds = told.get("rounds", {})
    if as_json:
        slurm = dataclasses.asdict(survey.choice) if survey.choice else None
        click.echo(to_json({"slurm": slurm, "rounds": rounds, "findings": findings}))
    else:
        if survey.choice:
            click.echo(survey.choice.sentence)
        if rounds:
            late = f"{rounds['p50_ms']:.0f} ms, of the last one in a hundred {rounds['p99_ms']:.0f} ms"
            click.echo(f"turns: nodes hear of them {late} after they are due ({rounds['turns']} measured)")
        for line in report(findings):
            click.echo(line)
    return int(any(finding["level"] == ERROR for finding in findings))


def _outdated(sentences: Iterable[str]) -> Iterable[Any]:
    """What gandiva.yaml has of former releases."""
    warning = importlib.import_module("gandiva_slurm.slurm.finding").warning
    for sentence in sentences:
        yield warning("gandiva.yaml", sentence, "it is accepted for this release alone")


def _daemons(config: str | None, told: dict[str, Any]) -> Iterable[Any]:
    """What is not well with the controller and the nodes' daemons; into `told`: all that the first says."""
    finding = importlib.import_module("gandiva_slurm.slurm.finding")
    error = finding.error
    try:
        told |= query(config, "ping", {})
        nodes = query(config, "nodes", {})
    except GandivaError as err:
        # Whoever is not heard for want of munge has its cure in his sentence.
        cure = "start it (`systemctl start gandivactld`)" if isinstance(err, PeerError) else "then try again"
        yield error("gandivactld", str(err), cure)
        return
    if told["slurm_error"]:
        yield error("gandivactld", told["slurm_error"], "see that Slurm's commands work where it runs")
    if told["state_error"]:
        yield error("gandivactld", told["state_error"], "free or mend its state_dir")
    for sentence in told.get("policy_errors", ()):
        yield error("gandivactld", sentence, "mend what keeps it, or name another in gandiva.yaml: policy")
    for sentence in told.get("set_aside", ()):
        cure = "`gandiva why` has more; see gandivactld's log and report it"
        yield error("gandivactld", sentence, cure)
    for row in nodes:
        if row["state"] == "silent":
            yield error(f"gandivad on {row['node']}", row["reason"], "start it (`systemctl start gandivad`)")
        for fault in row.get("faults", ()):
            what, cure = _FAULTS.get(fault["what"], _UNKNOWN)
            yield finding.warning(f"gandivad on {row['node']}", f"{what}: {fault['why']}", cure)


def report(findings: Iterable[dict[str, Any]]) -> Iterable[str]:
    """One line a finding, worst first, and a last line that sums up."""
    rows = sorted(findings, key=lambda row: row["level"] != ERROR)
    for row in rows:
        yield f"{row['level']}: {row['text']}"
    errors = sum(row["level"] == ERROR for row in rows)
    yield f"{errors} errors, {len(rows) - errors} warnings" if rows else "no fault found"
