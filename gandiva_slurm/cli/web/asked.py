"""What a request asks for: the parameters behind its `?`, read or refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from multidict import MultiMapping

from gandiva_slurm.cli.jobids import parse_names
from gandiva_slurm.cli.times import parse_time, require_window
from gandiva_slurm.model.errors import UsageError

#: Rows of one answer, unless told, and at most.
DEFAULT_ROWS, MOST_ROWS = 100, 1000
#: A cluster has no more jobs.
MOST_OFFSET = 10_000_000

Words = Mapping[str, str]


@dataclass(frozen=True)
class Pages:
    """A part of many rows."""

    offset: int
    limit: int


def require_known(query: MultiMapping[str], known: tuple[str, ...]) -> Words:
    """Return the parameters; UsageError for one that is not known here, or is there twice."""
    for name in query:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise UsageError(f"unknown parameter {name[:40]!r}; allowed here: {allowed}")
        if len(query.getall(name)) > 1:
            raise UsageError(f"parameter {name} is there twice; put a comma between values")
    return dict(query)


def pages(words: Words) -> Pages:
    """Return which rows are asked for."""
    offset = _number(words, "offset", 0, range(MOST_OFFSET + 1))
    return Pages(offset, _number(words, "limit", DEFAULT_ROWS, range(1, MOST_ROWS + 1)))


def names(words: Words, key: str) -> list[str] | None:
    """Return a list of names; None: not asked for."""
    return parse_names(words.get(key))


def window(words: Words, start_s: float, now_s: float) -> tuple[float, float]:
    """Return the time asked for, in unix seconds; `start_s` where no beginning is told."""
    begin_s = parse_time(words["start"], now_s) if words.get("start") else start_s
    end_s = parse_time(words["end"], now_s) if words.get("end") else now_s
    require_window(begin_s, end_s)
    return begin_s, end_s


def _number(words: Words, key: str, default: int, allowed: range) -> int:
    text = words.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) in allowed):
        raise UsageError(f"invalid {key} {text[:40]!r}; allowed: {allowed[0]} to {allowed[-1]}")
    return int(text)
