"""docs/survives.md says what survives what: each row names a test that is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/survives.md"
LINES = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
ROWS = [line for line in LINES if not line.startswith("| fault |")]


def names_in(path: Path) -> set[str]:
    """The tests of a file: functions, and state machines as Hypothesis names them."""
    body = ast.parse(path.read_text()).body
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return named | {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:42])
def test_every_promise_has_its_test(row: str) -> None:
    *_, last = (cell.strip() for cell in row.strip("| ").split(" | "))
    match = re.fullmatch(r"`(tests/[\w/]+\.py)::([tT]est_?\w+)`", last)
    assert match, row
    assert match[2] in names_in(ROOT / match[1]), row


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 35
