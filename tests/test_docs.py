"""The documentation: its links lead somewhere, and nothing in it waits to be filled in."""

import re
from pathlib import Path

import pytest

from gandiva_slurm.model.job import STATES

ROOT = Path(__file__).parents[1]
FOREIGN = {".venv", "build", ".pytest_cache"}
PAGES = sorted(page for page in ROOT.rglob("*.md") if not FOREIGN & set(page.relative_to(ROOT).parts))
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def leads(target: Path, anchor: str) -> bool:
    """True where there is such a file, and in it such a heading."""
    if not anchor or not target.is_file():
        return target.exists() and not anchor
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(target.read_text()))
    return anchor in {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link[0]]
    missing = [link for link in links if not leads(page.parent / link[0] if link[0] else page, link[1])]
    assert not missing, f"{page}: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_waits_to_be_filled_in(page: Path) -> None:
    assert not re.search(r"@@|\bTBD\b", page.read_text())


def test_a_jobs_way_is_that_of_the_table() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.split("## A job's way\n")[1].split("\n\n")[0].splitlines()[3:]
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    ways = {row[0].split()[0]: {*row[2].split(" · ")} for row in told if row[0].split()[0] in STATES}
    assert {*ways, "ENDED"} == {*STATES}
    assert all(leads <= {*STATES[state].then} for state, leads in ways.items()), ways


def test_readme_opens_with_its_two_commands() -> None:
    head = (ROOT / "README.md").read_text().split("## What the demo shows")[0]
    targets = re.findall(r"^make (\w+)", head, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
