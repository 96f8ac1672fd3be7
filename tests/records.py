"""What tests read from the daemons' records: files of JSON lines, and the holds in a node's event log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Held:
    """A closed hold: GPUs of one node from the grant to the release."""

    job_id: int
    restart: int
    user: str
    gpus: tuple[int, ...]
    t0_ns: int
    t1_ns: int


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log of JSON lines; one that is being written is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def open_grants(events: Iterable[dict[str, Any]]) -> set[tuple[int, int]]:
    """Incarnations that hold GPUs by a node's event log."""
    now: set[tuple[int, int]] = set()
    for line in events:
        if line["event"] == "grant":
            now.add((line["job"], line["restart"]))
        elif line["event"] == "release":
            now.discard((line["job"], line["restart"]))
    return now


def holds_of(events: Iterable[dict[str, Any]]) -> list[Held]:
    """Every closed hold in a node's event log."""
    begun: dict[tuple[int, int], dict[str, Any]] = {}
    holds = []
    for line in events:
        key = (line.get("job", 0), line.get("restart", 0))
        if line["event"] == "grant":
            assert key not in begun, f"granted twice: {line}"
            begun[key] = line
        elif line["event"] == "release":
            first = begun.pop(key)
            holds.append(
                Held(*key, first.get("user", ""), tuple(first["gpus"]), first["mono_ns"], line["mono_ns"])
            )
    return holds
