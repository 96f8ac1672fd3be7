"""Who held which GPU when, by the nodes' own logs, and whether two that were no pack did at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Span = tuple[int, int]
Event = Mapping[str, Any]
#: by two jobs, when they shared their GPUs
Packs = Mapping[frozenset[int], Sequence[Span]]


def holds_in_events(events: Iterable[Event]) -> list[tuple[str, int, int, Span]]:
    """(node, GPU, job, span) of each hold, from `grant` to `release`; one without an end lasts for ever.

    A grant after which the next gandivad finds the job without GPUs was logged and never carried out.
    """
    open_since: dict[tuple[str, int, int], Event] = {}
    found = []
    for event in events:
        key = (event["node"], event.get("job", 0), event.get("restart", 0))
        if event["event"] == "grant":
            open_since[key] = event
        elif event["event"] == "release" and key in open_since:
            found.append((key, open_since.pop(key), event["mono_ns"]))
        elif event["event"] == "adopt" and not event["holds"]:
            open_since.pop(key, None)
    found += [(key, grant, 1 << 63) for key, grant in open_since.items()]
    return [
        (key[0], gpu, key[1], (grant["mono_ns"], end)) for key, grant, end in found for gpu in grant["gpus"]
    ]


def packs_in_events(events: Iterable[Event]) -> Packs:
    """When each two jobs shared their GPUs, by the nodes' own logs; a pack without an end lasts for ever."""
    found: dict[frozenset[int], list[Span]] = {}
    for event in events:
        if event["event"] in ("packed", "unpacked"):
            spans = found.setdefault(frozenset({event["job"], event["mate"]}), [])
            if event["event"] == "packed":
                spans.append((event["mono_ns"], 1 << 63))
            elif spans:
                spans[-1] = (spans[-1][0], event["mono_ns"])
    return found


def count_overlaps(spans: Iterable[tuple[Any, int, Span]], packs: Packs) -> int:
    """How often a (GPU, job, span) begins while the span of another, no mate then, has not ended there."""
    overlaps = 0
    ends: dict[Any, dict[int, int]] = {}
    for gpu, job, (began, ended) in sorted(spans, key=lambda item: item[2]):
        others = ends.setdefault(gpu, {})
        for other, end in others.items():
            both = (began, min(end, ended))
            shared = packs.get(frozenset({job, other}), ())
            is_packed = any(since <= both[0] and both[1] <= until for since, until in shared)
            overlaps += other != job and end > began and not is_packed
        others[job] = max(others.get(job, 0), ended)
    return overlaps


def overlaps_in_events(events: Sequence[Event]) -> int:
    """GPUs granted while another gang held them, no mate, by the nodes' own logs."""
    spans = (((node, gpu), job, span) for node, gpu, job, span in holds_in_events(events))
    return count_overlaps(spans, packs_in_events(events))
