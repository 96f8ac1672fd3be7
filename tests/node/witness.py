"""What the jobs' own notes and the node's event log prove: that one gang or pack at a time had a GPU."""

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


def packs(events: Iterable[dict[str, Any]]) -> dict[frozenset[int], list[Interval]]:
    """When each two jobs held their GPUs together, by the log; a pack that lasts has no end."""
    begun: dict[frozenset[int], int] = {}
    found: dict[frozenset[int], list[Interval]] = {}
    for event in events:
        if event["event"] == "packed":
            pair = frozenset({event["job"], event["mate"]})
            assert pair not in begun, f"packed twice: {event}"
            begun[pair] = event["mono_ns"]
        elif event["event"] == "unpacked":
            pair = frozenset({event["job"], event["mate"]})
            found.setdefault(pair, []).append((begun.pop(pair), event["mono_ns"]))
        elif event["event"] == "adopt" and not event["holds"]:
            # As in `holds`: the grant that made it one of a pack was never carried out.
            begun = {pair: since for pair, since in begun.items() if event["job"] not in pair}
    for pair, begin in begun.items():
        found.setdefault(pair, []).append((begin, 1 << 63))
    return found


def overlaps(events: list[dict[str, Any]]) -> list[object]:
    """Holds of one GPU by two gangs at once that were not packed all that time."""
    together = packs(events)
    found = []
    for _, group in itertools.groupby(holds(events), key=lambda hold: hold[0]):
        for one, two in itertools.combinations(group, 2):
            both = (max(one[1], two[1]), min(one[2], two[2]))
            if both[0] < both[1] and not within(both, together.get(frozenset({one[3], two[3]}), [])):
                found.append((one, two))
    return found


def within(span: Interval, others: Iterable[Interval]) -> bool:
    """True when one of the others has all of it."""
    return any(begin <= span[0] and span[1] <= end for begin, end in others)
