"""A site's own history: `sacct -P` (or -p), so that it can be replayed.

One line a job: steps (12.batch, 12.0) are left out, and so is who had no GPU or never ran. Arrival is Submit,
run time is Elapsed; who was cancelled or failed ran as long as he ran. Times are taken as they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import Row, read_table

NEEDS = ("JobID", "Submit")
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([\w.-]+))?[=:](\d+)")
_TRES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")


def read(path: Path) -> Iterator[tuple[Row, Spec]]:
    """Yield the rows with their jobs, those that held GPUs for a time."""
    number = 0
    for row in read_table(path, NEEDS, None, separator="|"):
        if "." in row.text("JobID"):
            continue
        size, gpu_type = _gpus(row)
        length_ns = _length_s(row) * 10**9
        if size and length_ns:
            submit_ns = _time_s(row, "Submit") * 10**9
            types = (gpu_type,) if gpu_type else ()
            name, user, account = (row.text(column) for column in ("JobID", "User", "Account"))
            spec = Spec(number, name, user, size, submit_ns, length_ns, gpu_types=types, account=account)
            yield row, spec
            number += 1


def _gpus(row: Row) -> tuple[int, str]:
    """GPUs of a job and their type: AllocTRES=…,gres/gpu=4,gres/gpu:v100=4,…"""
    columns = [name for name in _TRES if name in row.fields]
    if not columns:
        raise row.error(f"no column tells GPUs; print one of {' '.join(_TRES)} with sacct's --format")
    text = next((row.text(name) for name in columns if "gpu" in row.text(name)), "")
    counts = {match[1] or "": int(match[2]) for match in _GPUS.finditer(text)}
    typed = {name: count for name, count in counts.items() if name}
    gpu_type = next(iter(typed)) if len(typed) == 1 else ""
    return counts.get("", sum(typed.values())), gpu_type


def _length_s(row: Row) -> int:
    """Seconds it ran: ElapsedRaw, Elapsed, or End - Start."""
    if row.text("ElapsedRaw"):
        return row.whole("ElapsedRaw")
    if row.text("Elapsed"):
        match = _ELAPSED.fullmatch(row.text("Elapsed"))
        if not match:
            raise row.error(f"Elapsed is {row.text('Elapsed')!r}; it takes [DAYS-]HH:MM:SS")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if "Start" not in row.fields or "End" not in row.fields:
        raise row.error("no column tells the run time; print Elapsed with sacct's --format")
    if {row.text("Start"), row.text("End")} & {"Unknown", "None", ""}:
        return 0
    return max(0, _time_s(row, "End") - _time_s(row, "Start"))


def _time_s(row: Row, column: str) -> int:
    text = row.text(column)
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.error(f"{column} is {text!r}; it takes YYYY-MM-DDTHH:MM:SS") from None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
