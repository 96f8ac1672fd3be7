"""How fast a gang is alone on its GPUs, and beside its mate: what packing is judged by. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from gandiva_slurm.policy.packing.tally import Tally

ALONE, PACKED = "alone", "packed"
#: Of fewer mini-batches no percentile is told.
LEAST_STEPS = 20


class Steps(NamedTuple):
    """What a mini-batch takes: the median and the 99th percentile, ns; 0: not known."""

    p50: int = 0
    p99: int = 0


UNKNOWN = Steps()


def percentiles(stamps: Iterable[int], since: int, now: int) -> Steps:
    """Return what the mini-batches took that began and ended in between, by when their boundaries were."""
    ends = sorted(stamp for stamp in stamps if since <= stamp <= now)
    took = sorted(end - begin for begin, end in pairwise(ends))
    if len(took) < LEAST_STEPS:
        return UNKNOWN
    return Steps(took[len(took) // 2], took[len(took) * 99 // 100])


@dataclass
class Gauge:
    """Mini-batches in each condition. A look ends the time since the last, in the condition of then."""

    alone: Tally = field(default_factory=Tally)
    packed: Tally = field(default_factory=Tally)
    condition: str = ""
    #: since when it is so; and what mini-batches took, as they were last looked at
    since: int = 0
    steps_alone: Steps = UNKNOWN
    steps_packed: Steps = UNKNOWN
    _steps: int = 0
    _when: int = 0

    def look(self, steps: int, now: int, condition: str) -> None:
        """Count since the last look; `condition` holds from now on, "" = neither."""
        ran = now - self._when
        if ran > 0 and self.condition:
            tally = self.alone if self.condition == ALONE else self.packed
            tally.add(max(0, steps - self._steps), ran)
        if condition != self.condition:
            self.since = now
        if ran > 0 or condition != self.condition:
            self._steps, self._when, self.condition = steps, now, condition

    def look_at_steps(self, stamps: Iterable[int], now: int) -> None:
        """Take what mini-batches take now, if there were enough of them in this condition."""
        steps = percentiles(stamps, self.since, now) if self.condition else UNKNOWN
        if steps.p50 and self.condition == ALONE:
            self.steps_alone = steps
        elif steps.p50:
            self.steps_packed = steps

    @property
    def noise(self) -> float:
        """How far off the ratio of the two rates may be, as a part of it."""
        return float((self.alone.noise**2 + self.packed.noise**2) ** 0.5)
