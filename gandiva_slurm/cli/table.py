"""Tables in Slurm's two manners: squeue's (flowing columns) and sacct's (fixed width, dashes, cut with +)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gandiva_slurm.model.errors import UsageError

Row = Mapping[str, Any]

_WIDTH = re.compile(r"([\w()]+)(?:[%:](-?)(\d{1,9}))?")
#: The widest column: a line that a terminal, or a file, can still take.
_WIDEST = 4096
_CODE = re.compile(r"%(\.?)(\d*)([A-Za-z])")


@dataclass(frozen=True)
class Field:
    """One column: its heading, its width in sacct's manner, and how a row shows in it."""

    name: str
    width: int
    show: Callable[[Row], str]
    left: bool = False


def text_of(key: str, missing: str = "") -> Callable[[Row], str]:
    """Show a value as it is, `missing` where there is none."""
    return lambda row: missing if row.get(key) in (None, "") else str(row[key])


def choose_fields(spec: str, fields: Sequence[Field]) -> list[Field]:
    """Read `jobid,state%20,name%-30` (sacct) or `jobid:20` (squeue -O); UsageError lists every field."""
    known = {field.name.lower(): field for field in fields}
    chosen = []
    for part in spec.split(","):
        match = _WIDTH.fullmatch(part.strip())
        if not match or match[1].lower() not in known:
            names = " ".join(field.name for field in fields)
            raise UsageError(f"unknown field {part.strip()!r}; fields: {names} (NAME%20 sets a width)")
        field = known[match[1].lower()]
        if match[3]:
            if not 1 <= int(match[3]) <= _WIDEST:
                raise UsageError(f"invalid width {part.strip()!r}; allowed: 1 to {_WIDEST}")
            field = replace(field, width=int(match[3]), left=bool(match[2]))
        chosen.append(field)
    return chosen


def expand_codes(spec: str, codes: Mapping[str, str]) -> str:
    """Turn squeue's `%.8i %u` into `jobid%8,user`; a list of names comes back as it is."""
    if not spec.startswith("%"):
        return spec
    parts = []
    for dot, width, letter in _CODE.findall(spec):
        if letter not in codes:
            allowed = " ".join(f"%{code}" for code in sorted(codes))
            raise UsageError(f"unknown format code %{letter}; codes: {allowed}")
        parts.append(codes[letter] + (f"%{'' if dot else '-'}{width}" if width else ""))
    return ",".join(parts)


def _cell(field: Field, row: Row) -> str:
    """Write a value on one line: a job's name is its owner's text, line breaks and all."""
    return printable(field.show(row))


def printable(text: str) -> str:
    """Return a text on one line, without what would steer a terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def sacct_lines(fields: Sequence[Field], rows: Iterable[Row], header: bool) -> Iterable[str]:
    """Fixed columns, right-justified, headings over dashes, a cut value ends in +."""
    if header:
        yield " ".join(_fit(field.name, field) for field in fields)
        yield " ".join("-" * field.width for field in fields)
    for row in rows:
        yield " ".join(_fit(_cell(field, row), field) for field in fields)


def parsable_lines(
    fields: Sequence[Field], rows: Iterable[Row], header: bool, trailing: bool
) -> Iterable[str]:
    """Values between bars, nothing cut: what scripts read (-P; -p has one more bar at the end)."""
    end = "|" if trailing else ""
    if header:
        yield "|".join(field.name for field in fields) + end
    for row in rows:
        yield "|".join(_cell(field, row) for field in fields) + end


def squeue_lines(
    fields: Sequence[Field], rows: Iterable[Row], header: bool, fixed: bool = False
) -> Iterable[str]:
    """Columns as wide as their widest value, no dashes; `fixed` keeps the widths asked for."""
    table = [[field.name.upper() for field in fields]] if header else []
    table += [[_cell(field, row) for field in fields] for row in rows]
    widths = (
        [field.width for field in fields]
        if fixed
        else [max(map(len, column)) for column in zip(*table, strict=True)]
    )
    for line in table:
        cells = (_pad(cell, field, width) for cell, field, width in zip(line, fields, widths, strict=True))
        yield " ".join(cells).rstrip()


def _pad(cell: str, field: Field, width: int) -> str:
    return cell.ljust(width) if field.left else cell.rjust(width)


def _fit(text: str, field: Field) -> str:
    if len(text) > field.width:
        text = text[: field.width - 1] + "+" if field.width > 1 else text[: field.width]
    return text.ljust(field.width) if field.left else text.rjust(field.width)
