"""Data classes to plain JSON data and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Data classes to dictionaries, tuples and sets to lists, in one pass."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def build(kind: type[T], raw: Mapping[str, Any]) -> T:
    """Build a data class of plain fields; lists become tuples, fields of a newer version are dropped."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values = {name: item for name, item in raw.items() if name in known}
    return kind(**{name: tuple(item) if isinstance(item, list) else item for name, item in values.items()})


def readable(raws: Iterable[Any], read: Callable[[Any], T], unread: list[str]) -> list[T]:
    """Read those records that can be; of each other a sentence."""
    found = []
    for raw in raws:
        try:
            found.append(read(raw))
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            unread.append(f"a record, {str(raw)[:100]}...: {err!r}")
    return found
