"""docs/claims.md says where each claim about GPUs was shown: words, tests and figures are there."""

import re
from pathlib import Path

import pytest

from tests.test_docs import leads
from tests.test_survives import names_in

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/claims.md"
TABLE = PAGE.read_text().split("## Papers' claims")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| [")]
#: A GPU's kind with the day, the simulated card, or that it was not shown; what stands in, behind it.
SHOWN = re.compile(r"([A-Z]\d{2,3}, \d{4}-\d\d-\d\d|simulated card|not shown)( \(.*\))?")


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_a_claim_is_in_its_page_and_what_shows_it_is_there(row: str) -> None:
    page, claim, shown, test, figures = (cell.strip() for cell in row.strip("|").split(" | "))
    named = re.fullmatch(r"\[(.+)\]\(.+\)", page)
    assert named and plain(claim) in plain((ROOT / named[1]).read_text()), row
    parts = [SHOWN.fullmatch(part) for part in shown.split("; ")]
    assert all(parts), shown
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert found and found[2] in names_in(ROOT / found[1]), test
    is_of_gpu = any(re.match(r"[A-Z]\d", part) for part in shown.split("; "))
    assert bool(figures.strip("| ")) == is_of_gpu, "what a GPU has shown has figures, and nothing else has"
    if is_of_gpu:
        link = re.fullmatch(r"\[.+\]\((.+)#(.+)\)", figures.strip("| "))
        assert link and leads(ROOT / "docs" / link[1], link[2]), figures
        assert re.search(r"\d{4}-\d\d-\d\d", shown)[0] in link[2], "of the same day"


def test_each_page_that_speaks_of_the_device_has_its_claims() -> None:
    pages = {re.match(r"\| \[(.+?)\]", row)[1] for row in ROWS}
    assert {"README.md", "SECURITY.md", "docs/using.md", "docs/mini.md"} <= pages
    assert len(ROWS) >= 20


def test_it_is_seen_where_a_claim_is_not_there() -> None:
    with pytest.raises(AssertionError):
        test_a_claim_is_in_its_page_and_what_shows_it_is_there(ROWS[0].replace("moved to", "left on"))
