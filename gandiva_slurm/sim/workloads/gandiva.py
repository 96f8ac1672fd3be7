"""Our own format: a CSV with everything a job can ask for (docs/simulator.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.policy.port import CELLS, GUARANTEED, OPPORTUNISTIC
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.workloads.rows import Row, read_table

NEEDS = ("job_id", "submit_s", "gpus")
KNOWS = (
    "length_s", "model", "steps", "user", "tickets", "priority", "class", "vc", "gpu_types", "min_gpus",
    "max_gpus", "pack", "migrate", "account", "cell", "priority_later",
)  # fmt: skip
_S = 10**9
_CHANGE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?):(\d{1,3})")


def read(path: Path) -> Iterator[tuple[Row, Spec]]:
    """Yield the rows with their jobs; a job has length_s, or model and steps."""
    for number, row in enumerate(read_table(path, NEEDS, KNOWS)):
        length_ns = max(1, row.ns("length_s", _S)) if row.text("length_s") else 0
        if not length_ns and not (row.text("model") and row.text("steps")):
            raise row.error("a job has length_s, or model and steps")
        size = row.whole("gpus", 1)
        yield (
            row,
            Spec(
                job_id=number,
                name=row.text("job_id", str(number)),
                user=row.text("user"),
                size=size,
                submit_ns=row.ns("submit_s", _S),
                length_ns=length_ns,
                steps=row.whole("steps", 1) if row.text("steps") else 0,
                model=row.text("model"),
                tickets=_bounded(row, "tickets", 100, 1, 1000),
                priority=_bounded(row, "priority", 50, 0, 100),
                job_class=_one_of(row, "class", (GUARANTEED, OPPORTUNISTIC)),
                vc=row.text("vc"),
                gpu_types=tuple(filter(None, row.text("gpu_types").split("+"))),
                min_size=_bounded(row, "min_gpus", size, 1, size),
                max_size=_bounded(row, "max_gpus", size, size, 10**6),
                can_pack=_one_of(row, "pack", ("auto", "never")) == "auto",
                cell=_one_of(row, "cell", ("", *CELLS, "any")),
                can_migrate=_one_of(row, "migrate", ("auto", "never")) == "auto",
                account=row.text("account"),
                priorities=_later(row, "priority_later"),
            ),
        )


def _bounded(row: Row, column: str, default: int, least: int, most: int) -> int:
    value = row.whole(column) if row.text(column) else default
    if not least <= value <= most:
        raise row.error(f"{column} is {value}; it takes {least}..{most}")
    return value


def _later(row: Row, column: str) -> tuple[tuple[int, int], ...]:
    """Read `600:80+1200:10`: what its owner makes of the priority so many seconds after submission."""
    changes: list[tuple[int, int]] = []
    for part in filter(None, row.text(column).split("+")):
        match = _CHANGE.fullmatch(part.strip())
        at_ns = round(float(match[1]) * _S) if match else -1
        if not match or int(match[2]) > 100 or at_ns <= (changes[-1][0] if changes else -1):
            raise row.error(f"{column} is {row.text(column)!r}; it takes SECONDS:0..100+…, later and later")
        changes.append((at_ns, int(match[2])))
    return tuple(changes)


def _one_of(row: Row, column: str, words: tuple[str, ...]) -> str:
    """Return one of the words, the first where nothing is said."""
    word = row.text(column, words[0])
    if word not in words:
        raise row.error(f"{column} is {word!r}; it takes {' or '.join(filter(None, words))}")
    return word
