"""What is asked of gandivactld, argument by argument; UsageError names what is no such thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gandiva_slurm.model.errors import UsageError

#: SQLite's integers end in the year 2262, in nanoseconds; a later moment means that one.
LAST_S = 9.2e9

Args = Mapping[str, Any]


def text(args: Args, key: str) -> str | None:
    """Return a text; None: there is none."""
    value = args.get(key)
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"{key}: expected a text, got {str(value)[:40]!r}")


def texts(args: Args, key: str) -> frozenset[str] | None:
    """Return a list of texts; None: there is none."""
    value = args.get(key)
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return frozenset(value)
    raise UsageError(f"{key}: expected a list of texts, got {str(value)[:40]!r}")


def numbers(args: Args, key: str) -> frozenset[int] | None:
    """Return a list of whole numbers; None: there is none."""
    value = args.get(key)
    if value is None:
        return None
    if isinstance(value, list) and all(type(item) is int for item in value):
        return frozenset(value)
    raise UsageError(f"{key}: expected whole numbers, got {str(value)[:40]!r}")


def number(args: Args, key: str, default: float) -> float:
    """Return a moment in unix seconds, that of `default` where none is asked for."""
    value = args.get(key)
    if value is None:
        return default
    if type(value) in (int, float) and 0 <= value < 1e11:
        return min(float(value), LAST_S)
    raise UsageError(f"{key}: expected unix seconds, got {str(value)[:40]!r}")
