"""`gandiva report`: who had what in a week or a month, for those who answer for a group or a cluster."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from gandiva_slurm.cli import report_mail
from gandiva_slurm.cli.client import query, to_json
from gandiva_slurm.cli.jobids import parse_names, parse_users, require_users
from gandiva_slurm.cli.report_plot import plot, require_drawable
from gandiva_slurm.cli.table import Field, Row, printable, text_of
from gandiva_slurm.cli.times import format_time, parse_time, require_window
from gandiva_slurm.model.errors import UsageError

#: How long it waits for gandivactld: a month of ten million holds is read in some seconds.
ANSWER_S = 60.0
#: What is added up, of the rows of one user or account.
_SUMS = (
    "jobs", "gpu_held_s", "gpu_parking_s", "gpu_packed_s", "gpu_parked_s", "gpu_seen_s", "gpu_busy_s",
    "gpu_exclusive_s", "waited_s", "begun", "began_s",
)  # fmt: skip
#: A spreadsheet takes what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _hours(key: str) -> Any:
    return lambda row: f"{row[key] / 3600:.1f}"


def _part(part: str, whole: str) -> Any:
    return lambda row: "-" if row[whole] <= 0 else f"{100 * row[part] / row[whole]:.0f}%"


def _idle(row: Row) -> str:
    return "-" if row["gpu_seen_s"] <= 0 else f"{100 * (1 - row['gpu_busy_s'] / row['gpu_seen_s']):.0f}%"


def _wait(row: Row) -> str:
    return "-" if not row["begun"] else f"{row['began_s'] / row['begun'] / 60:.1f}"


def _gain(row: Row) -> str:
    return f"{max(0.0, row['gpu_exclusive_s'] - row['gpu_held_s']) / 3600:.1f}"


FIELDS = (
    Field("Account", 0, text_of("account", "-"), left=True),
    Field("User", 0, text_of("user", "-"), left=True),
    Field("Type", 0, text_of("type", "-"), left=True),
    Field("Jobs", 0, text_of("jobs")),
    Field("GPU hours", 0, _hours("gpu_held_s")),
    Field("Share", 0, _part("gpu_held_s", "all_held_s")),
    Field("Entitled", 0, lambda row: "-" if row["entitled"] is None else f"{100 * row['entitled']:.0f}%"),
    Field("Parking", 0, _part("gpu_parking_s", "gpu_held_s")),
    Field("Idle", 0, _idle),
    Field("Parked hours", 0, _hours("gpu_parked_s")),
    Field("Mean wait min", 0, _wait),
    Field("Exclusive hours", 0, _hours("gpu_exclusive_s")),
    Field("Freed hours", 0, _gain),
)
#: Of what rows are made.
BY = {"account": ("account",), "user": ("account", "user"), "type": ("account", "user", "type")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--last", type=click.Choice(["week", "month"]), help="The last whole one (default: week).")
@click.option("-S", "--starttime", metavar="TIME", help="Start of the window instead.")
@click.option("-E", "--endtime", metavar="TIME", help="End of the window (default: now).")
@click.option("-A", "--accounts", metavar="NAMES", help="Only these accounts.")
@click.option("-u", "--users", metavar="NAMES", help="Only these users.")
@click.option("--by", type=click.Choice([*BY]), default="user", help="A row for each (default: user).")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated, instead of Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, in seconds.")
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: PNG, SVG or HTML.")
@click.option("--mail", metavar="ADDRESS", help="Show a mail for each account; {account} is its name.")
@click.option("--send", is_flag=True, help="Send those mails, by this machine's sendmail.")
@click.pass_obj
def report(config: str | None, /, **options: Any) -> None:
    """Report GPU time by account and user: held, idle, waiting, and what sharing gained."""
    window, path = _window(options, time.time()), options["plot"]
    _require_sense(options)
    users, accounts = parse_users(options["users"]), parse_names(options["accounts"])
    args = {"start_s": window[0], "end_s": window[1], "users": users, "accounts": accounts}
    told = {key: value for key, value in args.items() if value is not None}
    data = query(config, "report", told, ANSWER_S)
    if not data["rows"]:
        require_users(users)
    rows = grouped(data["rows"], BY[options["by"]])
    fields = [field for field in FIELDS if field.name.lower() not in {*BY} - {*BY[options["by"]]}]
    if path is not None:
        total = total_of(rows)
        plot(path, fields, rows, total, window, [*summary(total)])
    if options["mail"]:
        _mail(options, fields, rows, window)
        return
    if options["as_json"]:
        click.echo(to_json({"window": data["window"], "rows": rows}))
        return
    for line in csv_lines(fields, rows) if options["as_csv"] else markdown(fields, rows, window):
        click.echo(line)


def _require_sense(options: dict[str, Any]) -> None:
    """UsageError: options that do not go together, or name what cannot be; before anything is asked."""
    if options["plot"] is not None:
        require_drawable(options["plot"])
    if options["mail"] is not None:
        report_mail.require_address(options["mail"])
    if options["mail"] and (options["as_csv"] or options["as_json"]):
        raise UsageError("--mail writes Markdown; leave --csv and --json out")
    if options["send"] and not options["mail"]:
        raise UsageError("--send sends what --mail ADDRESS shows; name the address")


def _mail(
    options: dict[str, Any], fields: Sequence[Field], rows: Sequence[Row], window: tuple[float, float]
) -> None:
    """Show each account's mail, or send all of them."""
    accounts, others = report_mail.accounts_of(rows)
    for name in others:
        click.echo(f"gandiva: --mail: {printable(name)!r} can be no part of an address; left out", err=True)
    mails = {}
    for account in accounts:
        lines = markdown(fields, [row for row in rows if row["account"] == account], window)
        mails[account] = report_mail.message(options["mail"], account, [*lines])
    if options["send"]:
        report_mail.send(mails)
    for mail in mails.values():
        shown = f"To: {mail['To']}\nSubject: {mail['Subject']}\n\n{mail.get_content()}"
        click.echo(f"sent to {mail['To']}" if options["send"] else shown)
    if not options["send"]:
        click.echo(f"{len(mails)} mails, none sent; --send sends them", err=True)


def _window(options: dict[str, Any], now_s: float) -> tuple[float, float]:
    """Return the time asked for: the last whole week (from Monday) or month, unless it is named."""
    start, end = options["starttime"], options["endtime"]
    if options["last"] and (start or end):
        raise UsageError("--last names a window, and so do -S and -E; use one of the two")
    if end and not start:
        raise UsageError("-E ends a window that -S must begin")
    if start:
        window = parse_time(start, now_s), parse_time(end, now_s) if end else now_s
        require_window(*window)
        return window
    today = datetime.fromtimestamp(now_s).replace(hour=0, minute=0, second=0, microsecond=0)
    if options["last"] == "month":
        until = today.replace(day=1)
        return (until - timedelta(days=1)).replace(day=1).timestamp(), until.timestamp()
    until = today - timedelta(days=today.weekday())
    return (until - timedelta(days=7)).timestamp(), until.timestamp()


def grouped(rows: Sequence[Row], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Add rows up by these keys, each with the GPU time of all; the entitlement of a group is its users'."""
    all_held_s = sum(row["gpu_held_s"] for row in rows)
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    due: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        group = groups.setdefault(key, {**dict(zip(keys, key, strict=True)), **dict.fromkeys(_SUMS, 0)})
        for name in _SUMS:
            group[name] += row[name]
        if row["entitled"] is not None:
            due.setdefault(key, {})[row["user"]] = row["entitled"]
    for key, group in groups.items():
        group["entitled"] = sum(due[key].values()) if key in due else None
        group["all_held_s"] = all_held_s
    return [groups[key] for key in sorted(groups)]


def total_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the sums over rows as a row, of account "all"."""
    sums = {name: sum(row[name] for row in rows) for name in _SUMS}
    return {**sums, "entitled": None, "all_held_s": sums["gpu_held_s"], "account": "all"}


def markdown(fields: Sequence[Field], rows: Sequence[Row], window: tuple[float, float]) -> Iterable[str]:
    """Write a page: the window, a table with its total, and what its columns mean."""
    start, end = (format_time(moment) for moment in window)
    yield f"# GPU time from {start} to {end}"
    yield ""
    if not rows:
        yield "No job was in the queue."
        return
    yield "| " + " | ".join(field.name for field in fields) + " |"
    yield "|" + "|".join("---" if field.left else "---:" for field in fields) + "|"
    for row in (*rows, total_of(rows)):
        yield "| " + " | ".join(_cell(field.show(row)) for field in fields) + " |"
    yield ""
    yield from summary(total_of(rows))


def summary(total: Row) -> Iterable[str]:
    """Say what the sums mean, in lines of a Markdown list."""
    held, exclusive = total["gpu_held_s"], total["gpu_exclusive_s"]
    started = f"{exclusive / 3600:.1f} GPU hours"
    yield f"- Jobs were started on GPUs for {started}, and held them for {held / 3600:.1f}."
    if held > 0:
        freed = max(0.0, exclusive - held) / 3600
        yield (
            f"- With GPUs of their own they would have kept {freed:.1f} GPU hours from others: sharing put "
            f"{exclusive / held:.2f} started GPU hours on each that was held."
        )
    packed = total["gpu_packed_s"]
    if packed > 0:
        yield f"- For {packed / 7200:.1f} GPU hours two jobs trained on one GPU at the same time."
    yield "- Idle is what NVML saw; - where it saw nothing. Entitled is by Slurm's shares (docs/using.md)."


def csv_lines(fields: Sequence[Field], rows: Sequence[Row]) -> Iterable[str]:
    """Write rows for a spreadsheet, without the total; none of their texts is a formula there."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(field.name for field in fields)
    for row in rows:
        cells = (printable(field.show(row)) for field in fields)
        writer.writerow("" if cell == "-" else _plain(cell) for cell in cells)
    yield from out.getvalue().splitlines()


def _plain(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _cell(text: str) -> str:
    """A cell of Markdown: names are Slurm's, and may have anything in them."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
