"""How fast a job is in one condition: mini-batches and time, of late, and how sure that is. Pure.

The windows' median, not their mean: a start-up, a first step or a stall makes some windows slow, never fast,
and on an H200 the mean of a job's first seconds told 194 ms for steps of 94 ms (docs/measurements.md).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

#: A window is closed when it has both; so many are kept, older ones are forgotten.
WINDOW_NS, WINDOW_STEPS, WINDOWS = 500_000_000, 5, 40
#: Nothing is told of fewer: of one or two, seldom looked at, those of a start-up would be the median.
LEAST_WINDOWS = 5
NS_PER_S = 1_000_000_000
#: Of normal noise: its standard deviation over its median absolute deviation, and its median's error over its
#: mean's.
MAD_TO_DEVIATION, MEDIAN_ERROR = 1.4826, math.sqrt(math.pi / 2)


@dataclass
class Tally:
    """Mini-batches in windows of running time."""

    windows: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0
    ns: int = 0

    def add(self, steps: int, ns: int) -> None:
        """Count what was seen since the last look; a look in which nothing ran counts as well."""
        self.steps += steps
        self.ns += ns
        if self.ns >= WINDOW_NS and self.steps >= WINDOW_STEPS:
            self.windows.append((self.steps, self.ns))
            self.steps = self.ns = 0
            del self.windows[:-WINDOWS]

    @property
    def rate(self) -> float:
        """Mini-batches a second; 0.0: too little was seen."""
        return statistics.median(self._rates()) if len(self.windows) >= LEAST_WINDOWS else 0.0

    @property
    def noise(self) -> float:
        """The standard error of the rate, as a part of it; 0.0 while there is no rate."""
        count, rate = len(self.windows), self.rate
        if not rate:
            return 0.0
        deviation = MAD_TO_DEVIATION * statistics.median(abs(one - rate) for one in self._rates())
        return MEDIAN_ERROR * deviation / rate / math.sqrt(count)

    def _rates(self) -> list[float]:
        return [steps * NS_PER_S / ns for steps, ns in self.windows]
