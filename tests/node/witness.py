"""What the jobs' own notes and the node's event log prove: that one gang at a time had a GPU."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_STEP = struct.Struct("=QQ")
#: A step longer than this was frozen in the middle: only that it began is known.
LONGEST_STEP_NS = 150_000_000

Interval = tuple[int, int]


def read_steps(path: Path) -> list[Interval]:
    """The steps a script noted: (begin, end), monotonic ns."""
    data = path.read_bytes()
    return [_STEP.unpack_from(data, at) for at in range(0, len(data) - _STEP.size + 1, _STEP.size)]


def overlapping(first: Iterable[Interval], second: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs of steps, one of each, that were under way at the same time."""
    marked = sorted([(*step, 0) for step in _whole(first)] + [(*step, 1) for step in _whole(second)])
    found = []
    latest: dict[int, Interval] = {}
    for begin, end, side in marked:
        other = latest.get(1 - side)
        if other is not None and other[1] > begin:
            found.append((other, (begin, end)))
        mine = latest.get(side)
        if mine is None or end > mine[1]:
            latest[side] = (begin, end)
    return found


def _whole(steps: Iterable[Interval]) -> list[Interval]:
    return [(begin, min(end, begin + 1) if end - begin > LONGEST_STEP_NS else end) for begin, end in steps]


def holds(events: Iterable[dict[str, Any]]) -> list[tuple[int, int, int, int]]:
    """(gpu, begin, end, job) of every hold in an event log; one that lasts ends with the log."""
    begun: dict[int, tuple[int, list[int]]] = {}
    found = []
    last = 0
    for event in events:
        last = event["mono_ns"]
        if event["event"] == "grant":
            assert event["job"] not in begun, f"granted twice: {event}"
            begun[event["job"]] = (last, event["gpus"])
        elif event["event"] == "release":
            begin, gpus = begun.pop(event["job"])
            found += [(gpu, begin, last, event["job"]) for gpu in gpus]
        elif event["event"] == "adopt" and not event["holds"]:
            # Killed between the line and the books, which count: that grant was never carried out.
            begun.pop(event["job"], None)
    for job, (begin, gpus) in begun.items():
        found += [(gpu, begin, last, job) for gpu in gpus]
    return sorted(found)


def overlaps(events: Iterable[dict[str, Any]]) -> list[object]:
    """Holds of one GPU by two gangs at once."""
    by_gpu = itertools.groupby(holds(events), key=lambda hold: hold[0])
    pairs = itertools.chain.from_iterable(itertools.pairwise(list(group)) for _, group in by_gpu)
    return [(one, two) for one, two in pairs if two[1] < one[2]]


def held_ns(events: list[dict[str, Any]], jobs: Iterable[int], since_ns: int, until_ns: int) -> int:
    """GPU time these jobs held between two moments."""
    mine = [hold for hold in holds(events) if hold[3] in set(jobs)]
    return sum(max(0, min(end, until_ns) - max(begin, since_ns)) for _, begin, end, _ in mine)
