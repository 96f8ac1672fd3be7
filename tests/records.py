"""What tests read from the daemons' records: files of JSON lines, and the holds in a node's event log."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Held:
    """A hold: GPUs of one node from the grant to the release, or while the same mate shared them."""

    job_id: int
    restart: int
    user: str
    gpus: tuple[int, ...]
    t0_ns: int
    t1_ns: int
    shared_with: int = 0


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
        elif line["event"] == "release" or is_never_carried_out(line):
            now.discard((line["job"], line["restart"]))
    return now


def is_never_carried_out(line: dict[str, Any]) -> bool:
    """True for what a gandivad says that takes over a job whose last grant, if any, is not in the books.

    The one before it was killed between the line of its log and its state, which counts.
    """
    return line["event"] == "adopt" and not line["holds"]


def holds_of(events: Iterable[dict[str, Any]], until_ns: int = 0) -> list[Held]:
    """Every closed hold in a node's event log; with `until_ns` also those that are open, until then."""
    begun: dict[tuple[int, int], Held] = {}
    last: dict[tuple[int, int], str] = {}
    holds = []
    for line in events:
        key, now_ns = (line.get("job", 0), line.get("restart", 0)), line["mono_ns"]
        if line["event"] == "grant":
            assert key not in begun, f"granted twice: {line}"
            begun[key] = Held(*key, line.get("user", ""), tuple(line["gpus"]), now_ns, now_ns)
        elif line["event"] in ("packed", "unpacked"):
            pair = {line["job"], line["mate"]}
            for one in [one for one in begun if one[0] in pair]:
                holds.append(replace(begun[one], t1_ns=now_ns))
                (mate,) = pair - {one[0]}
                shared_with = mate if line["event"] == "packed" else 0
                begun[one] = replace(begun[one], t0_ns=now_ns, shared_with=shared_with)
        elif line["event"] == "release":
            holds.append(replace(begun.pop(key), t1_ns=now_ns))
        elif is_never_carried_out(line) and key in begun:
            hold = begun.pop(key)
            holds += [] if last[key] == "grant" else [replace(hold, t1_ns=now_ns)]
        last[key] = line["event"]
    holds += [replace(hold, t1_ns=until_ns) for hold in begun.values()]
    return [hold for hold in holds if hold.t1_ns > hold.t0_ns]


def share_of_turns(
    events: Iterable[dict[str, Any]], job: int, others: Collection[int], turns: int = 8
) -> float:
    """The job's part of what it and the others held in its last whole turns; NaN before it had so many.

    From the begin of one turn of the job to the begin of a later one: the others have had whole turns, too.
    Taken anew each time: the mean over a whole log comes past the right value on the way between wrong ones.
    """
    holds = [hold for hold in holds_of(events) if hold.job_id in {job, *others}]
    begins = [hold.t0_ns for hold in holds if hold.job_id == job]
    if len(begins) <= turns:
        return math.nan
    held = dict.fromkeys({job, *others}, 0.0)
    for hold in holds:
        both_ns = min(hold.t1_ns, begins[-1]) - max(hold.t0_ns, begins[-1 - turns])
        held[hold.job_id] += max(0, both_ns) * len(hold.gpus) / (2 if hold.shared_with else 1)
    return held[job] / sum(held.values())
