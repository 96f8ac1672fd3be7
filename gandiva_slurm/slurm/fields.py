"""Reading Slurm's JSON: every value is fetched by name and type, and an error names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from gandiva_slurm.model.errors import SlurmUnreachable

T = TypeVar("T")


class Fields:
    """One record of an answer. A number Slurm does not know (null) reads as 0, a text as ""."""

    __slots__ = ("_raw", "_where")

    def __init__(self, raw: Mapping[str, Any], where: tuple[str, str, int]) -> None:
        self._raw = raw
        self._where = where

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._get(key)
        return value if isinstance(value, str) else self._absent(key, value, "", "a text")

    def number(self, key: str) -> int:
        """Return an integer."""
        value = self._get(key)
        return value if type(value) is int else self._absent(key, value, 0, "a number")

    def number_or_none(self, key: str) -> int | None:
        """Return an integer, or None where Slurm has none."""
        return None if self._get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value = self._get(key)
        return value if isinstance(value, bool) else self._absent(key, value, False, "true or false")

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._get(key)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        nothing: tuple[str, ...] = ()
        return self._absent(key, value, nothing, "a list of words")

    def _get(self, key: str) -> Any:
        try:
            return self._raw[key]
        except KeyError:
            raise SlurmUnreachable(f"{self._name(key)} is missing; {ADVICE}") from None

    def _absent(self, key: str, value: object, default: T, wanted: str) -> T:
        if value is None:
            return default
        raise SlurmUnreachable(f"{self._name(key)}: expected {wanted}, got {repr(value)[:60]}; {ADVICE}")

    def _name(self, key: str) -> str:
        command, table, index = self._where
        return f"{command}: {table}[{index}].{key}"


#: What to do when Slurm's answer has another shape than the versions we know.
ADVICE = "this Slurm prints another form of JSON than the versions gandiva was tried on (docs/slurm.md)"


def records(answer: str, command: str, table: str) -> list[Fields]:
    """Return the records of one JSON answer.

    When slurmctld does not answer, squeue and sinfo end with exit code 0 and an empty table, and tell
    so only in `errors` (seen on 22.05.8): an empty table there is no picture.
    """
    try:
        raw = json.loads(answer)
    except (ValueError, RecursionError) as err:
        raise SlurmUnreachable(f"{command}: not JSON ({err}); was it cut short?") from err
    if not isinstance(raw, dict) or not isinstance(raw.get(table), list):
        raise SlurmUnreachable(f"{command}: no list {table!r}; {ADVICE}")
    if raw.get("errors"):
        raise SlurmUnreachable(f"{command}: {_sentence(raw['errors'])}; is slurmctld up? (scontrol ping)")
    for index, item in enumerate(raw[table]):
        if not isinstance(item, dict):
            raise SlurmUnreachable(f"{command}: {table}[{index}]: expected a record; {ADVICE}")
    return [Fields(item, (command, table, index)) for index, item in enumerate(raw[table])]


def _sentence(errors: object) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    if not isinstance(first, dict):
        return str(first)[:200]
    return "; ".join(str(first[key]) for key in ("description", "error") if first.get(key)) or "error"
