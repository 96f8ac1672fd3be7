"""`gandiva nodes`: nodes, GPUs and who holds what, in sinfo's manner."""

from __future__ import annotations

from functools import partial

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.queue import fold_numbers
from gandiva_slurm.cli.table import Field, Row, choose_fields, expand_codes, squeue_lines, text_of

_text = partial(text_of, missing="-")


def _holders(row: Row) -> str:
    """GPU numbers by job, free ones last: `0-1:12(user1) 2:13(user2)+14 3:-`, + where one is packed."""
    gpus: dict[str, list[int]] = {}
    for item in row.get("holders") or ():
        who = f"{item['job_id']}({item['user']})" if item.get("job_id") else "-"
        who += f"+{item['packed_with']}" if item.get("packed_with") else ""
        gpus.setdefault(who, []).append(item["gpu"])
    ordered = sorted(gpus.items(), key=lambda entry: (entry[0] == "-", entry[1]))
    return " ".join(f"{fold_numbers(numbers)}:{who}" for who, numbers in ordered) or "-"


def _strangers(row: Row) -> str:
    """Processes on GPUs not given to their job: `3:4711(12) 3:4712(-)`, GPU, pid and job."""
    rows = row.get("strangers") or ()
    return " ".join(f"{item['gpu']}:{item['pid']}({item['job_id'] or '-'})" for item in rows) or "-"


def _age(row: Row) -> str:
    return "-" if row.get("report_age_s") is None else f"{row['report_age_s']:.1f}s"


FIELDS = (
    Field("NodeList", 10, _text("node"), left=True),
    Field("State", 8, _text("state"), left=True),
    Field("Slurm", 10, _text("slurm_state"), left=True),
    Field("Type", 8, _text("type"), left=True),
    Field("GPUs", 4, _text("gpus")),
    Field("Slots", 5, _text("slots")),
    Field("Jobs", 4, lambda row: str(len(row.get("residents") or ()))),
    Field("Holders", 40, _holders, left=True),
    Field("Reason", 24, _text("reason"), left=True),
    Field("Strangers", 20, _strangers, left=True),
    Field("Generation", 10, _text("generation")),
    Field("Report", 7, _age),
)
DEFAULT = "NodeList,State,Slurm,Type,GPUs,Slots,Jobs,Holders,Reason"
CODES = {"N": "nodelist", "n": "nodelist", "t": "state", "T": "slurm", "G": "gpus", "E": "reason"}


@click.command(context_settings={"help_option_names": ["--help"]})
@click.option("-n", "--nodes", "wanted", metavar="NODES", help="Only these nodes: n[1-3].")
@click.option("-h", "--noheader", is_flag=True, help="No heading.")
@click.option(
    "-o", "--format", "spec", metavar="FIELDS", help="Fields (nodelist,holders%30) or sinfo's % codes."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def nodes(config: str | None, wanted: str | None, noheader: bool, spec: str | None, as_json: bool) -> None:
    """Show the nodes Gandiva slices, who holds which GPU, and their health."""
    fields = choose_fields(expand_codes(spec or DEFAULT, CODES), FIELDS)
    rows = query(config, "nodes", {})
    if wanted:
        names = _expand(wanted)
        rows = [row for row in rows if row["node"] in names]
    if as_json:
        click.echo(to_json({"nodes": rows}))
        return
    for line in squeue_lines(fields, rows, not noheader, fixed=bool(spec)):
        click.echo(line)


def _expand(text: str) -> set[str]:
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    from gandiva_slurm.model.errors import UsageError

    try:
        return set(NodeSet(text))
    except (NodeSetException, AssertionError) as err:  # AssertionError: a range beyond 32 bits
        raise UsageError(f"invalid node list {text!r} ({err}); allowed: n1,n[3-5]") from err
