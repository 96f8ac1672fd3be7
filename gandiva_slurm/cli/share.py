"""`gandiva share`: tickets against GPU time, in sshare's manner."""

from __future__ import annotations

import getpass
import os
import time
from typing import Any

import click

from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import parse_names, parse_users, require_users
from gandiva_slurm.cli.table import Field, Row, choose_fields, parsable_lines, sacct_lines, text_of
from gandiva_slurm.cli.times import format_duration, parse_time, require_window


def _ratio(key: str) -> Any:
    return lambda row: "" if row.get(key) is None else f"{row[key]:.6f}"


def _by_type(key: str) -> Any:
    def show(row: Row) -> str:
        parts = row.get(key) or {}
        return ",".join(f"{kind}={format_duration(gpu_s)}" for kind, gpu_s in parts.items())

    return show


FIELDS = (
    Field("Account", 20, text_of("account"), left=True),
    Field("User", 10, text_of("user")),
    Field("Tickets", 10, text_of("tickets")),
    Field("NormShares", 11, _ratio("norm_shares")),
    Field("GpuTime", 11, lambda row: format_duration(row.get("gpu_s"))),
    Field("EffectvShare", 13, _ratio("effectv_share")),
    Field("ServedFair", 10, _ratio("served_fair")),
    Field("TradedIn", 20, _by_type("traded_in")),
    Field("TradedOut", 20, _by_type("traded_out")),
    Field("FairShare", 10, _ratio("fair_share")),
    Field("GpuTimeRaw", 11, lambda row: "" if row.get("gpu_s") is None else str(round(row["gpu_s"]))),
    Field("Entitled", 11, _ratio("entitled_share")),
)
DEFAULT = "Account,User,Tickets,NormShares,GpuTime,EffectvShare,ServedFair,TradedIn,TradedOut"
#: Shown, too, where what was used before matters.
PAST_USE = "FairShare"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-u", "--users", metavar="NAMES", help="Only these users (default: you; root: all).")
@click.option("-A", "--accounts", metavar="NAMES", help="Only these accounts.")
@click.option("-a", "--all", "everybody", is_flag=True, help="All users.")
@click.option("-S", "--starttime", metavar="TIME", help="Start of the window (default: today's midnight).")
@click.option("-E", "--endtime", metavar="TIME", help="End of the window (default: now).")
@click.option("-n", "--noheader", is_flag=True, help="No heading.")
@click.option("-P", "--parsable2", is_flag=True, help="Values between bars.")
@click.option("-p", "--parsable", is_flag=True, help="Values between bars, one more at the end.")
@click.option("-o", "--format", "spec", metavar="FIELDS", help="Fields; NAME%20 sets a width.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def share(config: str | None, /, **options: Any) -> None:
    """Show users' tickets, the GPU time they got, and served over fair (1 is exactly fair)."""
    told = choose_fields(options["spec"] or DEFAULT, FIELDS)
    data = query(config, "share", _arguments(options))
    has_past = not options["spec"] and any(row.get("fair_share") is not None for row in data["users"])
    fields = choose_fields(f"{DEFAULT},{PAST_USE}", FIELDS) if has_past else told
    if not data["users"]:
        require_users(parse_users(options["users"]))
    if options["as_json"]:
        click.echo(to_json(data))
        return
    header = not options["noheader"]
    if options["parsable"] or options["parsable2"]:
        lines = parsable_lines(fields, data["users"], header, trailing=options["parsable"])
    else:
        lines = sacct_lines(fields, data["users"], header)
    for line in lines:
        click.echo(line)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    users, now_s = parse_users(options["users"]), time.time()
    if users is None and not options["everybody"] and os.geteuid() != 0:
        users = [getpass.getuser()]
    arguments: dict[str, Any] = {"users": users, "accounts": parse_names(options["accounts"])}
    for name, key in (("starttime", "start_s"), ("endtime", "end_s")):
        if options[name]:
            arguments[key] = parse_time(options[name], now_s)
    require_window(arguments.get("start_s", parse_time("midnight", now_s)), arguments.get("end_s", now_s))
    return {key: value for key, value in arguments.items() if value is not None}
