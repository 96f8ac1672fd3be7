"""How fast a gang is alone on its GPUs, and beside its mate: what packing is judged by. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gandiva_slurm.policy.packing.tally import Tally

ALONE, PACKED = "alone", "packed"


@dataclass
class Gauge:
    """Mini-batches in each condition. A look ends the time since the last, in the condition of then."""

    alone: Tally = field(default_factory=Tally)
    packed: Tally = field(default_factory=Tally)
    condition: str = ""
    _steps: int = 0
    _when: int = 0

    def look(self, steps: int, now: int, condition: str) -> None:
        """Count since the last look; `condition` holds from now on, "" = neither."""
        ran = now - self._when
        if ran > 0 and self.condition:
            tally = self.alone if self.condition == ALONE else self.packed
            tally.add(max(0, steps - self._steps), ran)
        if ran > 0 or condition != self.condition:
            self._steps, self._when, self.condition = steps, now, condition

    @property
    def noise(self) -> float:
        """How far off the ratio of the two rates may be, as a part of it."""
        return float((self.alone.noise**2 + self.packed.noise**2) ** 0.5)
