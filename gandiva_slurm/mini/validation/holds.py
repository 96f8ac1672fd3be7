"""Who held which GPUs when, and what was trained meanwhile, by the nodes' event logs and the jobs' notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gandiva_slurm.mini.validation.live import Recorded, Step

#: How a hold came to its end: parked in its turn's end; saved, to go on elsewhere; or with the job.
PARKED, SAVED, ENDED = "parked", "saved", "ended"


@dataclass(frozen=True)
class Hold:
    """A job on its GPUs, from a node's `grant` to its `release`: unix nanoseconds."""

    name: str
    restart: int
    node: str
    gpus: tuple[int, ...]
    t0_ns: int
    t1_ns: int
    end: str
    #: the first since the job was started, or started again
    is_first: bool
    #: those of its first rank inside
    steps: Sequence[Step] = field(default=(), repr=False)

    @property
    def head_ns(self) -> int:
        """Held before its first mini-batch."""
        return self.steps[0].began_ns - self.t0_ns if self.steps else self.t1_ns - self.t0_ns

    @property
    def tail_ns(self) -> int:
        """Held after its last mini-batch."""
        return self.t1_ns - self.steps[-1].ended_ns if self.steps else 0


def holds_of(recorded: Recorded) -> list[Hold]:
    """Every hold of the run, in the order in which they began."""
    names = {job_id: name for name, job_id in recorded.ids.items()}
    opened: dict[str, Mapping[str, Any]] = {}
    ends: dict[str, str] = {}
    begun: set[tuple[str, int]] = set()
    found: list[Hold] = []
    for event in recorded.events:
        name, what = names.get(event.get("job", 0)), event["event"]
        if name is None:
            continue
        if what == "grant":
            opened[name], ends[name] = event, ENDED
        elif what == "parked":
            ends[name] = PARKED
        elif what == "release" and name in opened:
            run = (name, event["restart"])
            kind = (ends[name], run not in begun)
            found.append(_hold(recorded, name, opened.pop(name), event["t_ns"], kind))
            begun.add(run)
        elif what == "saved":  # just behind the release
            last = max(index for index, hold in enumerate(found) if hold.name == name)
            found[last] = replace(found[last], end=SAVED)
    return sorted(found, key=lambda hold: hold.t0_ns)


def _hold(
    recorded: Recorded, name: str, grant: Mapping[str, Any], t1_ns: int, kind: tuple[str, bool]
) -> Hold:
    inside = [step for step in recorded.steps[name] if grant["t_ns"] <= step.began_ns < t1_ns]
    gpus = tuple(grant["gpus"])
    return Hold(name, grant["restart"], grant["node"], gpus, grant["t_ns"], t1_ns, *kind, inside)
