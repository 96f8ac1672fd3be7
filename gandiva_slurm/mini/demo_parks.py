"""Parks by the nodes' logs, and which of them cut a step, by what the scripts wrote down themselves."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gandiva_slurm.mini.demo_holds import Event, Span

NS_PER_MS = 1_000_000
#: A lone rank is frozen when it comes to no boundary for so long (`node.leaving.LEAST_OVERRUN_NS`).
STALLED_NS = 1_000_000_000
#: By job and rank, when each step began and ended.
Steps = Mapping[int, Sequence[Sequence[Span]]]


@dataclass(frozen=True)
class Park:
    """One suspension: when it was ordered, when its last rank had released, when it was told to go on."""

    job_id: int
    ordered_ns: int
    parked_ns: int
    resumed_ns: int
    is_off: bool
    reaims: int
    #: how many boundaries ahead a gang was told to meet; 0 for a single rank, which takes the next one
    margin: int = 0
    #: by its control group, wherever it was
    is_frozen: bool = False

    @property
    def ms(self) -> float:
        """From the order until the GPUs were free."""
        return (self.parked_ns - self.ordered_ns) / NS_PER_MS


@dataclass(frozen=True)
class Boundaries:
    """Where parks were: those for which the scheduler is to blame, and those set apart."""

    #: off a boundary by the node's own word
    off: int
    #: steps that were under way while their job was parked, by the scripts
    cut: int
    #: frozen while clients were waited for, and in a mini-batch that had run on alone for a second
    unasked: Sequence[Park]
    stalled: Sequence[Park]

    @property
    def ok(self) -> bool:
        """True when all that count were at a boundary."""
        return self.off == 0 and self.cut == 0

    def __str__(self) -> str:
        text = f"{self.cut} steps cut by a park by the scripts' own steps"
        text += f", {len(self.unasked)} frozen while clients were waited for" if self.unasked else ""
        return text + (f", {len(self.stalled)} frozen after a second in one step" if self.stalled else "")


def parks_in_events(events: Iterable[Event]) -> list[Park]:
    """Every suspension that came about."""
    orders: dict[tuple[int, int], int] = {}
    parked: dict[tuple[int, int], Event] = {}
    found = []
    for event in events:
        key = (event.get("job", 0), event.get("restart", 0))
        if event["event"] == "park":
            orders[key] = event["mono_ns"]
        elif event["event"] == "parked":
            parked[key] = event
        elif event["event"] in ("resume", "ended") and key in parked:
            found.append(_park(key, orders[key], parked.pop(key), event["mono_ns"]))
    found += [_park(key, orders[key], event, 1 << 63) for key, event in parked.items()]
    return sorted(found, key=lambda park: park.ordered_ns)


def _park(key: tuple[int, int], ordered_ns: int, parked: Event, resumed_ns: int) -> Park:
    is_off = bool(parked.get("off_boundary"))
    reaims, margin = (int(parked.get(name, 0)) for name in ("reaims", "margin"))
    is_frozen = bool(parked.get("frozen"))
    return Park(key[0], ordered_ns, parked["mono_ns"], resumed_ns, is_off, reaims, margin, is_frozen)


def boundaries(parks: Sequence[Park], steps: Steps) -> Boundaries:
    """Judge where these parks were."""
    unasked = before_clients(parks)
    stalled = [park for park in parks if _is_stalled(park, steps.get(park.job_id, ()))]
    apart = set(unasked) | set(stalled)
    counted = [park for park in parks if park not in apart]
    cut = sum(_cuts(park, rank) for park in counted for rank in steps.get(park.job_id, ()))
    return Boundaries(sum(park.is_off for park in counted), cut, unasked, stalled)


def before_clients(parks: Sequence[Park]) -> list[Park]:
    """Return the parks in which a job was frozen before its first one at a boundary.

    On a busy machine a rank's first step may begin while the clients of others are still waited for: a park
    before they have come freezes it. A job that never comes to park at a boundary is not excused.
    """
    first_ns: dict[int, int] = {}
    for park in parks:
        if not park.is_frozen and not park.is_off:
            first_ns.setdefault(park.job_id, park.ordered_ns)
    return [
        park
        for park in parks
        if park.is_frozen and not park.is_off and park.ordered_ns < first_ns.get(park.job_id, 0)
    ]


def _is_stalled(park: Park, ranks: Sequence[Sequence[Span]]) -> bool:
    """True where a lone rank was frozen that had come to no boundary for a second, by its own steps.

    One step may have begun since the order: a rank may just have passed a boundary when it was told.
    """
    if not (park.is_frozen and park.is_off and len(ranks) == 1):
        return False
    told, frozen = (bisect.bisect_left(ranks[0], (at_ns, 0)) for at_ns in (park.ordered_ns, park.parked_ns))
    return frozen - told <= 1 and park.parked_ns - park.ordered_ns >= STALLED_NS


def _cuts(park: Park, rank: Sequence[Span]) -> bool:
    """True where a step of this rank was under way in a park: one off a boundary, as the script saw it."""
    # Steps of a rank follow each other: the last that began before the end of the park decides.
    last = bisect.bisect_left(rank, (park.resumed_ns, 0)) - 1
    return last >= 0 and rank[last][1] > park.parked_ns


def awake(events: Sequence[Event], steps: Steps) -> list[tuple[int, Span]]:
    """Return (job, span) of each step, without the parks that are set apart, in which it was frozen."""
    found = boundaries(parks_in_events(events), steps)
    frozen = sorted(chain(found.unasked, found.stalled), key=lambda park: park.parked_ns)
    return [
        (job_id, part)
        for job_id, ranks in steps.items()
        for span in chain.from_iterable(ranks)
        for part in parts_awake(span, [park for park in frozen if park.job_id == job_id])
    ]


def parts_awake(step: Span, frozen: Iterable[Park]) -> list[Span]:
    """Return a step's span without these parks of its job, in which it was frozen, sorted by time."""
    began_ns, ended_ns = step
    parts = []
    for park in frozen:
        if began_ns < park.parked_ns < ended_ns:
            parts.append((began_ns, park.parked_ns))
            began_ns = min(park.resumed_ns, ended_ns)
    return [*parts, (began_ns, ended_ns)]
