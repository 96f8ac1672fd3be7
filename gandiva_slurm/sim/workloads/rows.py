"""What the formats share: tables with a header, fields that must be numbers, errors that name the row."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from gandiva_slurm.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file: fields by column, and where it stands."""

    file: str
    line: int
    fields: dict[str, str]

    def error(self, wrong: str) -> UsageError:
        """Make the error that tells what is wrong with this row."""
        return UsageError(f"{self.file}:{self.line}: {wrong}")

    def text(self, column: str, default: str = "") -> str:
        """Return a field, without blanks around it."""
        return (self.fields.get(column) or "").strip() or default

    def number(self, column: str, least: int = 0) -> Decimal:
        """Return a field that must be a number, not below `least`."""
        text = self.text(column)
        try:
            value = Decimal(text)
        except InvalidOperation:
            raise self.error(f"{column} is {text!r}; it takes a number") from None
        if not value.is_finite() or value < least:
            raise self.error(f"{column} is {text}; it takes a number from {least}")
        return value

    def whole(self, column: str, least: int = 0) -> int:
        """Return a field that must be a whole number."""
        value = self.number(column, least)
        if value != int(value):
            raise self.error(f"{column} is {value}; it takes a whole number")
        return int(value)

    def ns(self, column: str, unit_ns: int) -> int:
        """Return a time, in ns; the column has it in units of so many ns."""
        return int(self.number(column) * unit_ns)


def read_table(
    path: Path, needs: Collection[str], knows: Collection[str] | None, separator: str = ","
) -> Iterator[Row]:
    """Yield the rows of a table with a header line; `knows` None: any other column may be there too."""
    lines = read_lines(path)
    reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE if separator == "|" else 0)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in needs if name not in header]
    unknown = [] if knows is None else [name for name in header if name not in {*needs, *knows}]
    twice = [name for number, name in enumerate(header) if name and name in header[:number]]
    for wrong, names in (("no column", missing), ("unknown columns", unknown), ("twice the column", twice)):
        if names:
            takes = f"it takes {' '.join(needs)}" + (f" and may have {' '.join(knows)}" if knows else "")
            raise UsageError(f"{path}:1: has {wrong} {' '.join(names)}; {takes}")
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise UsageError(f"{path}:{reader.line_num}: {len(cells)} fields, the header has {len(header)}")
        yield Row(str(path), reader.line_num, dict(zip(header, cells, strict=True)))


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file; UsageError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path}: not a text file ({err.reason})") from err
