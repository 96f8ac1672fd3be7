"""Reading Slurm's JSON: every value is fetched by name and type, and an error names the field.

All forms are read: 22.05's plain values; those of 23.02 and later, where a number that may be missing is
`{"set": true, "infinite": false, "number": 7}` and states are lists; and their short form (`+complex`), with
null for what is missing and "Infinity" for what has no limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from gandiva_slurm.model.errors import SlurmUnreachable

T = TypeVar("T")


#: Slurm's number for "no limit", in 32 bits and in 64.
INFINITE = frozenset({2**32 - 1, 2**64 - 1})


class Fields:
    """One record of an answer. A number Slurm does not know (null, not set) reads as 0, a text as ""."""

    __slots__ = ("_raw", "_where")

    def __init__(self, raw: Mapping[str, Any], where: tuple[str, str, int]) -> None:
        self._raw = raw
        self._where = where

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._get(key)
        return value if isinstance(value, str) else self._absent(key, value, "", "a text")

    def number(self, key: str, infinite: int = 0) -> int:
        """Return an integer; `infinite` where Slurm has no limit."""
        return self.number_or_none(key, infinite) or 0

    def number_or_none(self, key: str, infinite: int = 0) -> int | None:
        """Return an integer, or None where Slurm has none."""
        value = self._get(key)
        if type(value) is dict:
            value = self._counted(key, value)
        if value == "Infinity":
            return infinite
        if type(value) is int:
            return infinite if value in INFINITE else value
        nothing: int | None = None
        return self._absent(key, value, nothing, "a number")

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value = self._get(key)
        return value if isinstance(value, bool) else self._absent(key, value, False, "true or false")

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; one text is a list of one."""
        value = self._get(key)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        nothing: tuple[str, ...] = ()
        return self._absent(key, value, nothing, "a list of words")

    def has(self, key: str) -> bool:
        """True when the record has the field, be it null."""
        return key in self._raw

    def is_text(self, key: str) -> bool:
        """True when the field is one text."""
        return isinstance(self._get(key), str)

    def is_record(self, key: str) -> bool:
        """True when the field is a record of its own."""
        return isinstance(self._get(key), dict)

    def record(self, key: str) -> Fields:
        """Return a record within this one."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise SlurmUnreachable(f"{self._name(key)}: expected a record, got {repr(value)[:60]}; {ADVICE}")
        command, table, index = self._where
        inner = f"{table}[{index}].{key}" if index >= 0 else f"{table}.{key}"
        return Fields(value, (command, inner, -1))

    def _counted(self, key: str, value: dict[str, Any]) -> int | None:
        told = value.get("set"), value.get("infinite"), value.get("number")
        if [type(item) for item in told] != [bool, bool, int]:
            return self._absent(key, value, None, "a number")
        is_set, is_infinite, number = told
        return min(INFINITE) if is_infinite else number if is_set else None

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
        return f"{command}: {table}{f'[{index}]' if index >= 0 else ''}.{key}"


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
