"""YAML with the line of every key, for errors that say where; keys given twice and aliases are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gandiva_slurm.model.errors import ConfigError

#: By key path (list items by their number): its line, from 1.
Lines = Mapping[tuple[str, ...], int]


#: A configuration has fewer keys, items and values than this: a site of 10,000 nodes has 20,000 addresses.
MOST_NODES = 25_000
#: What is longer than this is no number that anybody means; YAML's base 60 would take its square in time.
MOST_DIGITS = 64


class _DuplicateKey(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(path)
        self.path, self.line = path, line


class _Alias(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Loader(yaml.SafeLoader):
    """What a value cannot be (a month 13, a number of 5,000 digits) is told with its line; no aliases."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _Alias(self.peek_event().start_mark.line + 1)  # type: ignore[no-untyped-call]
        self._nodes += 1
        if self._nodes > MOST_NODES:
            why, mark = f"more than {MOST_NODES:,} keys and values", self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, why, mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        try:
            if kind in ("int", "float") and len(node.value) > MOST_DIGITS:
                raise ValueError(kind)
            return super().construct_object(node, deep)
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as err:
            raise yaml.constructor.ConstructorError(
                None, None, f"cannot be read as {kind!r}; write a plain value", node.start_mark
            ) from err


def parse(text: str, file: Path) -> tuple[Any, Lines]:
    """Return the data of a text and its lines; ConfigError names `file`, the line and what is wrong."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_lines(node, ()))
        return (None if node is None else loader.construct_document(node)), lines
    except (yaml.YAMLError, RecursionError) as err:
        mark = getattr(err, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{where}: not YAML: {getattr(err, 'problem', None) or err}") from err
    except _Alias as err:
        text = "an alias (*name) of another place; write its value out"
        raise ConfigError(f"{file}:{err.line}: {text}") from err
    except _DuplicateKey as err:
        raise ConfigError(f"{file}:{err.line}: {err.path}: given twice; keep one") from err


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield (key path, line) for each key and list item."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            here = (*path, str(key.value))
            if here in seen:
                raise _DuplicateKey(".".join(here), key.start_mark.line + 1)
            seen.add(here)
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, str(index)), item.start_mark.line + 1
            yield from _lines(item, (*path, str(index)))
