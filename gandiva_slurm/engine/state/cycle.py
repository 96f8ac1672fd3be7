"""One call of the engine: what all of its steps read and write."""

from __future__ import annotations

from dataclasses import dataclass, field

from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.ids import JobKey


@dataclass
class Cycle:
    """One call of the engine: its state, the time, and the actions so far."""

    state: EngineState
    settings: EngineSettings
    now_ns: int
    actions: list[Action] = field(default_factory=list)
    #: jobs told to leave, each with a node that has just said that all it has of it has left
    left: set[tuple[int, str]] = field(default_factory=set)
    #: jobs that have just been said to keep their turn, to save themselves upon a signal
    ready: set[tuple[int, str]] = field(default_factory=set)
    #: by job: where a start of it that is not the newest still is; None: nobody has asked
    former: dict[int, tuple[str, JobKey]] | None = None
    #: the policy took too long in this cycle (of a recording)
    is_late: bool = False

    @property
    def slurm_ns(self) -> int:
        """This moment by the clock that Slurm's times are of."""
        return self.now_ns + self.state.skew_ns
