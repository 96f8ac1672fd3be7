"""The house's rules that a test can keep: who imports whom, what pure rooms may not touch, lengths."""

from __future__ import annotations

import ast
import functools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gandiva_slurm"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Rooms from the top down; a room imports from lower lines only. Rooms on one line do not know each other.
FLOORS = (
    ("cli", "mini"),
    ("controller", "node", "sim"),
    ("slurm", "accounting"),
    ("wire",),
    ("engine",),
    ("policy",),
    ("slicing",),
    ("model",),
)
LEVEL = {room: len(FLOORS) - n for n, floor in enumerate(FLOORS) for room in floor}
#: Rooms of the engine, from the top down; what is not named lies above them all.
ENGINE_FLOORS = ("apply", "lifecycle", "state")
#: Settings, read by the worlds and the command line; of the rooms it may use the model alone.
LEVEL["config"], LEVEL["yaml_lines"] = LEVEL["model"] + 0.5, LEVEL["model"] + 0.25
LEVEL["sections"] = LEVEL["config_file"] = LEVEL["model"] + 0.25
#: The page's numbers are all that the client may know of us, and what the node shares with it.
CLIENT_MAY = {"gandiva_slurm.wire.page"}
#: A framework's callbacks are imported by scripts that have it, and by nothing of ours.
CLIENT_MAY_ALSO = {
    ("gandiva_slurm/client/lightning.py", "lightning"),
    ("gandiva_slurm/client/lightning.py", "pytorch_lightning"),
    ("gandiva_slurm/client/hf.py", "transformers"),
}

PURE = ("model", "slicing", "policy", "engine")
BANNED = {
    "asyncio",
    "datetime",
    "http",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
PURE_MAY = set(sys.stdlib_module_names) - BANNED | {"gandiva_slurm"}
#: A solver touches no world either; it is an extra, so that one file alone may need it.
PURE_MAY_ALSO = {("gandiva_slurm/policy/baselines/max_min.py", "scipy")}

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_MEDIAN_LINES = 10
MOST_PARAMETERS = 6
MOST_NESTING = 3


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports anywhere in it, with the line."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_imports_point_down_only() -> None:
    wrong = []
    for path in FILES:
        mine = LEVEL.get(room_of(path))
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "gandiva_slurm" or len(parts) < 2 or mine is None:
                continue
            theirs = LEVEL.get(parts[1])
            is_same_room = parts[1] == room_of(path)
            if theirs is not None and not is_same_room and theirs >= mine:
                wrong.append(f"{name_of(path)}:{line} imports {module}")
    assert wrong == []


def test_rooms_of_the_engine_import_down_only() -> None:
    wrong = []
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "engine" or parts[1] not in ENGINE_FLOORS:
            continue
        above = {"engine", "replay", "invariants", *ENGINE_FLOORS[: ENGINE_FLOORS.index(parts[1])]}
        wrong += [
            f"{name_of(path)}:{line} imports {module}"
            for line, module in imports_of(path)
            if module.split(".")[:2] == ["gandiva_slurm", "engine"] and module.split(".")[2:3]
            if module.split(".")[2] in above
        ]
    assert wrong == []


def test_client_stands_alone() -> None:
    """It lives in the user's Python: standard library, torch where the job has it, the page's numbers."""
    wrong = []
    may = set(sys.stdlib_module_names) | {"torch", "gandiva_slurm"}
    for path in FILES:
        if room_of(path) != "client":
            continue
        for line, module in imports_of(path):
            inner = module.startswith("gandiva_slurm.") and not module.startswith("gandiva_slurm.client")
            page = any(module == name or module.startswith(name + ".") for name in CLIENT_MAY)
            top = module.split(".")[0]
            is_known = top in may or (name_of(path), top) in CLIENT_MAY_ALSO
            if not is_known or (inner and not page and module != "gandiva_slurm.wire"):
                wrong.append(f"{name_of(path)}:{line} imports {module}")
    assert wrong == []


def test_nobody_but_the_node_imports_the_client() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in FILES
        if room_of(path) not in ("client", "cli", "mini", "__init__")
        for line, module in imports_of(path)
        if module.startswith("gandiva_slurm.client")
    ]
    assert wrong == []


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_touch_no_clock_chance_or_world(room: str) -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in FILES
        if room_of(path) == room
        for line, module in imports_of(path)
        if module.split(".")[0] not in PURE_MAY
        and (name_of(path), module.split(".")[0]) not in PURE_MAY_ALSO
    ]
    assert wrong == []


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_open_and_print_nothing(room: str) -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno} calls {node.func.id}"
        for path in FILES
        if room_of(path) == room
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
    ]
    assert wrong == []


def test_files_are_not_too_long() -> None:
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in sizes.items() if lines > MOST_FILE_LINES} == {}


def test_functions_are_not_too_long() -> None:
    long = {
        f"{name_of(path)}:{function.lineno} {function.name}": lines_of(function)
        for path in FILES
        for function in functions_of(path)
        if lines_of(function) > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_the_usual_function_is_short() -> None:
    lengths = [lines_of(function) for path in FILES for function in functions_of(path)]
    assert statistics.median(lengths) <= MOST_MEDIAN_LINES


def test_functions_take_few_parameters() -> None:
    many = {}
    for path in FILES:
        for function in functions_of(path):
            arguments = function.args
            names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            names = [name for name in names if name not in ("self", "cls")]
            if len(names) > MOST_PARAMETERS:
                many[f"{name_of(path)}:{function.lineno} {function.name}"] = len(names)
    assert many == {}


def nesting_of(body: list[ast.stmt], depth: int = 0) -> int:
    """How deep branches lie in branches; an elif is no deeper than its if; with and try do not branch."""
    deepest = depth
    for statement in body:
        blocks: list[list[ast.stmt]] = []
        if isinstance(statement, ast.If):
            blocks = [statement.body]
            is_elif = len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If)
            deepest = max(
                deepest,
                nesting_of(statement.orelse, depth + (0 if is_elif else 1)) if statement.orelse else 0,
            )
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            blocks = [statement.body, statement.orelse]
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            deepest = max(deepest, nesting_of(statement.body, depth))
            blocks = [handler.body for handler in getattr(statement, "handlers", [])]
        elif isinstance(statement, ast.Match):
            blocks = [case.body for case in statement.cases]
        deepest = max([deepest, *(nesting_of(block, depth + 1) for block in blocks if block)])
    return deepest


def test_blocks_are_not_nested_deeply() -> None:
    deep = {
        f"{name_of(path)}:{function.lineno} {function.name}": nesting_of(function.body)
        for path in FILES
        for function in functions_of(path)
        if nesting_of(function.body) > MOST_NESTING
    }
    assert deep == {}


def test_public_names_say_what_they_are() -> None:
    bare = []
    for path in FILES:
        tree = tree_of(path)
        if path.read_text(encoding="utf-8").strip() and ast.get_docstring(tree) is None:
            bare.append(f"{name_of(path)}: no docstring")
        for node in tree.body:
            is_public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_public and not node.name.startswith("_") and ast.get_docstring(node) is None:  # type: ignore[union-attr]
                bare.append(f"{name_of(path)}:{node.lineno} {node.name}")  # type: ignore[union-attr]
    assert bare == []
