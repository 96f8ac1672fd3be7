"""How long jobs have GPUs at a time, by what it costs to change: quanta, slices of a turn, turns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gandiva_slurm.policy.port import JobView

#: Length of a slice over the cost of changing hands, and of a turn over the cost of a move; a quantum is the
#: least of both. So one part in 18 is lost at most.
_MIN_RUN = 18
#: What GPUs must be worth over the cost of a move there: the gain may not last as long as the turn.
_MOVE_TIMES = 3


@dataclass
class Pace:
    """Times in ns; what a move costs is a guess until one was measured."""

    quantum_ns: int
    switch_ns: int
    restart_ns: int

    def learn(self, jobs: Iterable[JobView]) -> None:
        """Take over what moves of these jobs took: the mean of those that were measured."""
        measured = [job.restart_ns for job in jobs if job.restart_ns]
        if measured:
            self.restart_ns = sum(measured) // len(measured)

    @property
    def slice_ns(self) -> int:
        """How long a job has GPUs that it hands over to others that live there."""
        return max(self.quantum_ns, _MIN_RUN * self.switch_ns)

    @property
    def turn_ns(self) -> int:
        """How long a job stays where it has come to."""
        return max(self.slice_ns, _MIN_RUN * self.restart_ns)

    @property
    def is_long(self) -> bool:
        """True when a turn is longer than a quantum."""
        return self.turn_ns > self.quantum_ns

    @property
    def loss(self) -> float:
        """The part of what GPUs are worth to a job that a move there takes away."""
        return _MOVE_TIMES * self.restart_ns / self.turn_ns

    @property
    def is_dear(self) -> bool:
        """True when a move is not worth a quantum on GPUs that others take turns on."""
        return _MOVE_TIMES * self.restart_ns > self.quantum_ns
