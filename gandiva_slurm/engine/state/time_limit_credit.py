"""What the engine remembers of parked time and time limits (`timelimit` has the rule), and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SECOND_NS = 10**9


@dataclass
class Parked:
    """Time one node says a job was parked there. Its counter begins anew when the node's state was lost."""

    total_ns: int = 0
    last_ns: int = 0

    def count(self, told_ns: int) -> None:
        """Take in the node's counter."""
        self.total_ns += told_ns - self.last_ns if told_ns >= self.last_ns else told_ns
        self.last_ns = told_ns


@dataclass
class Giving:
    """What of a job's limit in Slurm is parked time, and what is being asked of Slurm now."""

    restart: int
    given_s: int = 0
    #: the limit asked for and the one it was asked from; 0 = nothing is under way
    asked_s: int = 0
    from_s: int = 0
    asked_ns: int = 0
    #: of the limit, what the incarnations have used that this one goes on from by an image
    spent_s: int = 0
    parked: dict[str, Parked] = field(default_factory=dict)

    def parked_s(self, nodes: tuple[str, ...]) -> int:
        """Seconds in which it held no GPU anywhere, as far as all its nodes have told."""
        told = [self.parked[name].total_ns for name in nodes if name in self.parked]
        return min(told) // SECOND_NS if told and len(told) == len(nodes) else 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Giving:
        """Read what the journal has of it."""
        parked = {node: Parked(**told) for node, told in raw["parked"].items()}
        return cls(**{**raw, "parked": parked})
