"""Events and actions as short JSON lists, and back: what the journal keeps of a cycle.

A thing is its kind's name and its fields in their order. Fields that a later release adds, at the end and
with defaults, can be missing; anything else that changes needs a new replay.SCHEMA.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gandiva_slurm.model import action, event
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import Event
from gandiva_slurm.model.ids import JobKey

Read = Callable[[Any], Any]


def lists(things: Iterable[Event | Action]) -> list[list[object]]:
    """Return what `dumps` can write of these; no copy is made of their fields."""
    return [[type(thing).__name__, *vars(thing).values()] for thing in things]


def dumps(data: object) -> str:
    """Return JSON text; data classes become lists of their fields' values, sets sorted lists."""
    return json.dumps(data, default=_bare, separators=(",", ":"))


def read_events(raw: Iterable[Sequence[Any]]) -> list[Event]:
    """Read what was written of events; KeyError, TypeError or ValueError when it is something else."""
    return [_EVENTS[name](fields) for name, *fields in raw]


def read_actions(raw: Iterable[Sequence[Any]]) -> list[Action]:
    """Read what was written of actions; raises as `read_events`."""
    return [_ACTIONS[name](fields) for name, *fields in raw]


@functools.cache
def reader(hint: Any) -> Read:
    """Return the function that reads values of this type from JSON data."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _class_reader(hint)
    if hint is JobKey:
        return lambda raw: JobKey(*raw)
    if hint is tuple or origin is tuple:
        return _tuple_reader(args)
    if origin is frozenset:
        return frozenset
    if origin is types.UnionType:
        (inner,) = (reader(arg) for arg in args if arg is not type(None))
        return lambda raw: None if raw is None else inner(raw)
    if hint in (str, int, float, bool):
        return lambda raw: raw
    raise TypeError(f"{hint} has no form in the journal; teach engine.codec")


def _class_reader(kind: Any) -> Read:
    hints = typing.get_type_hints(kind)
    names = [item.name for item in dataclasses.fields(kind)]
    reads = [reader(hints[name]) for name in names]

    def read(raw: Sequence[Any]) -> Any:
        if len(raw) > len(reads):
            raise ValueError(f"{kind.__name__} of {len(raw)} fields, this release knows {len(reads)}")
        values = (one(value) for one, value in zip(reads, raw, strict=False))
        return kind(**dict(zip(names, values, strict=False)))

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Read:
    if args[1:] == (...,):
        item = reader(args[0])
        return lambda raw: tuple(map(item, raw))
    reads = [reader(arg) for arg in args]
    return lambda raw: tuple(read(value) for read, value in zip(reads, raw, strict=True))


def _bare(value: object) -> list[Any]:
    if isinstance(value, frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value):
        return list(vars(value).values())
    raise TypeError(f"{type(value).__name__} has no form in the journal")


_EVENTS: dict[str, Read] = {kind.__name__: reader(kind) for kind in typing.get_args(event.Event)}
_ACTIONS: dict[str, Read] = {kind.__name__: reader(kind) for kind in typing.get_args(action.Action)}
