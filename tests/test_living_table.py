"""docs/slurm.md says what becomes of everything users do: each row has its test, its words are ours."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from gandiva_slurm.model.reason import CATALOGUE

ROOT = Path(__file__).parents[1]
CLUSTER, DOCKER = ROOT / "tests/cluster", ROOT / "tests/docker"
HEADS = tuple(f"| {what} | what Gandiva does | shown | test |" for what in ("who does what", "what breaks"))


class Row(NamedTuple):
    """One line of the table."""

    action: str
    answer: str
    shown: str
    test: str


def rows() -> list[Row]:
    """Both tables, without their heads."""
    page = (ROOT / "docs/slurm.md").read_text()
    tables = [page.split(head + "\n")[1].split("\n\n")[0].splitlines()[1:] for head in HEADS]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for table in tables for line in table]


def names_of_tests(path: Path) -> set[str]:
    """The tests of a file, by name."""
    tree = ast.parse(path.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.action[:40])
def test_every_row_has_its_test(row: Row) -> None:
    match = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", row.test)
    assert match, row
    place = next(path for path in (CLUSTER / match[1], DOCKER / match[1]) if path.exists())
    assert match[2] in names_of_tests(place), row


def test_every_test_of_living_has_its_row() -> None:
    named = {row.test.strip("`") for row in rows()}
    paths = [*CLUSTER.glob("test_living_*.py"), CLUSTER / "test_troubles.py"]
    files = [(path.name, names_of_tests(path)) for path in paths]
    written = {f"{name}::{test}" for name, tests in files for test in tests}
    assert len(written) >= 22
    assert written <= named, written - named


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.action[:40])
def test_the_words_shown_are_ours(row: Row) -> None:
    lua = "".join(path.read_text() for path in (ROOT / "slurm_conf").glob("*.lua"))
    for sentence in re.findall(r'"([^"]+)"', row.shown):
        assert sentence in lua, sentence
    codes = re.findall(r"`([A-Z]\w+)`", row.shown)
    assert all(code in CATALOGUE for code in codes), codes
