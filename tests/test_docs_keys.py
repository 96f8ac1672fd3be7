"""Keys of gandiva.yaml, reasons and files that the pages name are there, with the defaults they tell."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from gandiva_slurm.config import Config, load_config
from gandiva_slurm.model.reason import CATALOGUE

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "slurm_conf/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
EXAMPLE = ROOT / "slurm_conf/gandiva.yaml"
#: What each site names itself: it has no default.
SITES_OWN = {"cluster": "mycluster", "partitions": ("gandiva",), "controller": {"host": "ctl1"}}
DEFAULTS = Config.model_validate(SITES_OWN)
#: As in gandiva.yaml, where a default of the program is a word there.
WORDS = {"node.refusal_bound_s": "auto"}

SECTIONS = [
    name for name, field in Config.model_fields.items() if isinstance(getattr(DEFAULTS, name), BaseModel)
]
KEY = re.compile(rf"`({'|'.join(SECTIONS)})\.(\w+)(?:: [^`]*)?`")
#: Endings of files' names, and JSON of `gandiva nodes`, which look like keys.
NO_KEYS = {"conf", "md", "py", "yaml", "json", "jsonl", "faults"}
#: `key` (… N by default), and `key` is N s
TOLD = re.compile(r"`(?:\w+\.)?(\w+)` (?:\((?:\S+, )?([\d.]+) by default\)|is ([\d.]+) s\b)")
SPAN = re.compile(r"`([^`\n]+)`")
ROOMS = ("tests", "docs", "slurm_conf", "gandiva_slurm", "container", "examples", "spank")
A_FILE = re.compile(rf"(?:{'|'.join(ROOMS)})/[\w./-]+")
ADR = re.compile(r"\bADR ((?:\d{4}(?:, | and )?)+)")


def default_of(key: str) -> Any:
    """The default of `key` or `section.key`; AttributeError when there is none of that name."""
    value: Any = DEFAULTS
    for name in key.split("."):
        value = getattr(value, name)
    return WORDS.get(key, value)


def table(page: Path, heading: str) -> Iterator[list[str]]:
    """The rows of the table that has this heading, as cells."""
    lines = page.read_text().split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    for line in lines:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_named_is_one(page: Path) -> None:
    named = {(section, key) for section, key in KEY.findall(page.read_text()) if key not in NO_KEYS}
    unknown = [".".join(key) for key in sorted(named) if not hasattr(getattr(DEFAULTS, key[0]), key[1])]
    assert not unknown


def test_the_example_has_every_key_with_its_default() -> None:
    assert load_config(EXAMPLE) == DEFAULTS
    shown = yaml.safe_load(EXAMPLE.read_text())
    assert shown.keys() == Config.model_fields.keys()
    for section in SECTIONS:
        assert shown[section].keys() == type(getattr(DEFAULTS, section)).model_fields.keys(), section


def test_the_administrators_table_tells_the_defaults() -> None:
    rows = [*table(ROOT / "docs/admin.md", "key | default | change it when")]
    assert len(rows) > 15
    for keys, told, _ in rows:
        for key in SPAN.findall(keys):
            assert yaml.safe_load(told) == default_of(key), key


def test_defaults_told_in_passing_are_those_of_the_program() -> None:
    keys = {name: name for name in Config.model_fields}
    for section in SECTIONS:
        keys |= {name: f"{section}.{name}" for name in type(getattr(DEFAULTS, section)).model_fields}
    found = [
        (page.name, name, float(one or other))
        for page in PAGES
        for name, one, other in TOLD.findall(page.read_text())
        if name in keys
    ]
    assert len(found) >= 2
    assert not [it for it in found if default_of(keys[it[1]]) != it[2]]


def test_reasons_of_the_administrators_page_are_there() -> None:
    codes = [
        code for row in table(ROOT / "docs/admin.md", "code | what it wants") for code in SPAN.findall(row[0])
    ]
    assert len(codes) > 8 and {*codes} <= CATALOGUE.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_decisions_named_are_there(page: Path) -> None:
    text = page.read_text()
    names = {match[0] for span in SPAN.findall(text) if (match := A_FILE.match(span.split("::")[0]))}
    missing = [
        name
        for name in sorted(names)
        if not re.search(r"/[A-Z]+/", name) and not any(ROOT.glob(f"{name.rstrip('/.')}*"))
    ]
    numbers = {number for told in ADR.findall(text) for number in re.findall(r"\d{4}", told)}
    missing += [
        f"ADR {number}" for number in sorted(numbers) if not any(ROOT.glob(f"docs/adr/{number}-*.md"))
    ]
    assert not missing
