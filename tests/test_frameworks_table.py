"""docs/integrations.md, kind by kind: each cell names a test that is there, or says no or not run yet."""

import re
from pathlib import Path

import pytest

from tests.test_survives import names_in

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs/integrations.md").read_text().split("## Kind by kind\n", 1)[1].split("\n## ", 1)[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
KINDS = ("plain torch", "AMP", "torch.compile", "DDP", "FSDP2", "DeepSpeed", "Lightning", "Hugging Face",
         "accelerate", "CUDA graphs", "custom C++", "JAX")  # fmt: skip
A_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`( \(.+\))?")


def is_told(cell: str) -> bool:
    """True for a cell that says why not, or that it was not run, or names a test that is there."""
    found = A_TEST.fullmatch(cell)
    if found is None:
        return cell == "not run yet" or cell.startswith("no: ")
    return found[2] in names_in(ROOT / found[1])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_cell_is_shown_or_says_that_it_is_not(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(cells) == 5, row
    assert [cell for cell in cells[1:] if not is_told(cell)] == []


def test_each_kind_has_its_row() -> None:
    named = [row.split("|")[1] for row in ROWS]
    assert [kind for kind in KINDS if not any(kind in name for name in named)] == []


def test_it_is_seen_where_a_test_is_not_there() -> None:
    assert not is_told("`tests/attach/test_kinds.py::test_that_is_not_there`")
    assert not is_told("yes")
