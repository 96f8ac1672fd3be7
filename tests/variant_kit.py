"""A known-wrong variant of the product: what it is, where its function lies, and how it is put in."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: The make targets that may run a variant's tests; "demo": its test is a command, run only when asked for.
TARGETS = ("test", "test-all", "demo")


class Stale(Exception):
    """A variant that cannot be put in any more: its function or its text is not there, or not once."""


class Variant(NamedTuple):
    """One change that makes the product wrong, and the tests that must fail with it.

    `where` is FILE:FUNCTION, as in gandiva_slurm/node/park.py:Gang.park; `old` must stand there once. `tests`
    are pytest's node ids or files. With `command` the test is a program instead, run in the copy: it must end
    with other than 0 and say `says`; {python} in it is the copy's. `why`: why not in `make test`.
    """

    name: str
    where: str
    old: str
    new: str
    wrong: str
    tests: tuple[str, ...] = ()
    target: str = "test"
    why: str = ""
    command: tuple[str, ...] = ()
    says: str = ""

    @property
    def path(self) -> str:
        """The file it changes, relative to the repository's root."""
        return self.where.partition(":")[0]

    @property
    def function(self) -> str:
        """The function it changes, by its qualified name."""
        return self.where.partition(":")[2]


def changed(variant: Variant, text: str) -> str:
    """Return the file's text with the variant in it; Stale when it does not apply."""
    finders = {".py": _in_python, ".c": _in_c, ".lua": _in_lua}
    suffix = Path(variant.path).suffix
    if suffix not in finders:
        raise Stale(f"{variant.name}: {variant.path}: functions are found in {', '.join(finders)} only")
    places = finders[suffix](text, variant.function)
    if len(places) != 1:
        raise Stale(f"{variant.name}: {variant.path} has {len(places)} functions {variant.function}, not one")
    lines = text.splitlines(keepends=True)
    first, end = places[0]
    body = "".join(lines[first:end])
    if body.count(variant.old) != 1:
        times = body.count(variant.old)
        raise Stale(f"{variant.name}: {variant.where} has {times} times, not once: {variant.old!r}")
    wrong = body.replace(variant.old, variant.new)
    if suffix == ".py":
        _check_python(variant, wrong)
    return "".join(lines[:first]) + wrong + "".join(lines[end:])


def put_in(variant: Variant, root: Path) -> None:
    """Change the file below `root`: it is replaced, never written into, for it may be linked elsewhere."""
    path = root / variant.path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as err:
        raise Stale(f"{variant.name}: {variant.path}: {err.strerror}") from None
    result = changed(variant, text)
    path.unlink()
    path.write_text(result, encoding="utf-8")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function of a syntax tree by its qualified name, as in Class.method or outer.inner."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        is_named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from functions(node, f"{prefix}{node.name}." if is_named else prefix)


def _in_python(text: str, name: str) -> list[tuple[int, int]]:
    return [span for known, span in _spans(text) if known == name]


@functools.cache
def _spans(text: str) -> list[tuple[str, tuple[int, int]]]:
    """The functions of a file, each with its first line, from 0, and the one behind its last."""
    found = functions(ast.parse(text))
    return [(name, (node.lineno - 1, node.end_lineno or node.lineno)) for name, node in found]


def _in_c(text: str, name: str) -> list[tuple[int, int]]:
    """A definition begins in the first column and ends with a brace there."""
    is_head = re.compile(rf"^[a-z].*\b{name}\(.*[^;]$").match
    return _between(text, lambda line: bool(is_head(line)), lambda line: line == "}")


def _in_lua(text: str, name: str) -> list[tuple[int, int]]:
    is_head = re.compile(rf"^(local )?function {re.escape(name)}\(").match
    return _between(text, lambda line: bool(is_head(line)), lambda line: line == "end")


def _between(text: str, begins: Callable[[str], bool], ends: Callable[[str], bool]) -> list[tuple[int, int]]:
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if begins(line)]
    tails = [n for n, line in enumerate(lines) if ends(line)]
    return [(head, next((tail for tail in tails if tail > head), len(lines) - 1) + 1) for head in heads]


def _check_python(variant: Variant, function: str) -> None:
    try:
        compile(f"if True:\n{function}" if function[0].isspace() else function, variant.path, "exec")
    except SyntaxError as err:
        raise Stale(f"{variant.name}: {variant.where} does not compile with it: {err}") from None
