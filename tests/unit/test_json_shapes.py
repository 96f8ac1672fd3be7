"""docs/commands.schema.json is what the shapes say, and no reader of an older one is let down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gandiva_slurm.cli.client import VERSION
from gandiva_slurm.cli.json_shapes import PRINTED, schemas

TOP = Path(__file__).parents[2]
#: The same file of the first release that had one.
FIRST = TOP / "tests/data/commands.schema.v1.json"
INTEGER = {"type": "integer"}


def readable(old: Any, new: Any, where: str = "") -> list[str]:
    """Say where what `new` allows is not what a reader of `old` expects: a field gone, or of another kind."""
    if "$ref" in old or "$ref" in new:
        return [] if old.get("$ref") == new.get("$ref") else [f"{where}: another shape"]
    kinds = [{one.get("type") for one in shape.get("anyOf", [shape])} for shape in (old, new)]
    if not kinds[1] <= kinds[0]:
        return [f"{where}: {kinds[1]} instead of {kinds[0]}"]
    promised = new.get("required", [])
    lost = [f"{where}.{name} is gone" for name in old.get("required", []) if name not in promised]
    both = old.get("properties", {}).keys() & new.get("properties", {}).keys()
    for name in sorted(both):
        lost += readable(old["properties"][name], new["properties"][name], f"{where}.{name}")
    if "items" in old:
        lost += readable(old["items"], new.get("items", {}), f"{where}[]")
    return lost


def test_the_published_file_is_that_of_the_shapes() -> None:
    text = (TOP / "docs/commands.schema.json").read_text()
    assert json.loads(text) == schemas(), "docs/using.md says how it is written anew"


def test_a_reader_of_what_version_1_began_with_reads_this() -> None:
    old, new = json.loads(FIRST.read_text()), schemas()
    assert VERSION == 1, "a new version begins anew: keep its first file beside that of version 1"
    assert old["properties"].items() <= new["properties"].items()
    pairs = [(shape, new["$defs"][name], name) for name, shape in old["$defs"].items()]
    assert not [line for pair in pairs for line in readable(*pair)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda job: job["properties"].pop("state"), ""),
        (lambda job: job["required"].remove("state"), "Job.state is gone"),
        (lambda job: job["properties"].update(state={"type": "integer"}), "Job.state: {'integer'}"),
        (lambda job: job["properties"].update(gpus={"anyOf": [INTEGER, {"type": "null"}]}), "Job.gpus: "),
        (lambda job: job["properties"]["gpu_ids"].update(items={"type": "string"}), "Job.gpu_ids[]: "),
        (lambda job: job["properties"]["places"].update(items=INTEGER), "Job.places[]: another"),
    ],
)
def test_what_would_let_a_reader_down_is_found(change: Any, told: str) -> None:
    """The first alone is none: a field that may be missing was never promised."""
    new = json.loads(FIRST.read_text())["$defs"]["Job"]
    change(new)
    lost = readable(json.loads(FIRST.read_text())["$defs"]["Job"], new, "Job")
    assert [line.startswith(told) for line in lost] == ([True] if told else [])


def test_rows_are_held_to_them_to_the_field() -> None:
    good = {"job_id": 7, "was": 0, "priority": 5}
    PRINTED["update"].model_validate({"version": 1, "jobs": [good]})
    for bad in ({"jobs": [good | {"new": 1}]}, {"jobs": [good | {"job_id": "seven"}]}, {}):
        with pytest.raises(ValidationError):
            PRINTED["update"].model_validate({"version": 1, **bad})
