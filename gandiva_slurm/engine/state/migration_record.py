"""What the engine remembers of a job's moves (`moving` has the rules), and its JSON form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gandiva_slurm.engine.state.plain import build

HOUR_NS = 3600 * 10**9


@dataclass
class Travels:
    """A job's moves: the one under way, and what is known from those before."""

    #: when moves of the last hour were decided
    moved_ns: list[int] = field(default_factory=list)
    #: from the decision until it runs again, there or elsewhere, or the move is given up
    is_moving: bool = False
    #: when it was told to have saved itself; 0: it has not, or its last move has been measured
    left_ns: int = 0
    #: how it saves itself in the move under way, or did in the last one: "" its ranks do, self, signal;
    #: anew: it had not begun
    by: str = ""
    #: when it was sent its signal: once in a move; 0: it was not
    signalled_ns: int = 0
    #: when Slurm was last asked to requeue it, and what it said against it
    asked_ns: int = 0
    error: str = ""
    #: since when it has ended in Slurm and is to be requeued (`forgotten`); 0: it has not
    forgotten_ns: int = 0
    #: moves that failed, in a row, and until when none is tried again
    failures: int = 0
    wait_until_ns: int = 0
    #: what its last move cost, from saved to attached again; 0: none was measured
    cost_ns: int = 0
    #: bytes: what its ranks' tensors on a node took of GPU memory at their peak; 0: not known
    peak_bytes: int = 0
    #: nodes that could not restore it from its image, and why
    unfit: dict[str, str] = field(default_factory=dict)
    #: the GPU type that its image goes on on, where that is of a GPU program; "": any
    kept_type: str = ""
    #: those of them that may another time, once it trains elsewhere
    unfit_once: tuple[str, ...] = ()
    #: when it ran first, unix time; 0: it has not
    first_run_ns: int = 0
    #: mini-batches a second while it ran alone, by GPU type
    rates: dict[str, float] = field(default_factory=dict)
    #: of an elastic job: its mini-batches a second by GPU type and size
    size_rates: dict[str, float] = field(default_factory=dict)
    #: its processes may be in an image, so its node told last; how often it died while one was made
    is_imaged: bool = False
    broken: int = 0
    #: the one size at which it can go on from what it saves; 0: any, or it saves nothing
    rigid_size: int = 0
    #: and on how many nodes; 0: as the size
    rigid_nodes: int = 0

    def begin(self, now_ns: int) -> None:
        """Count a move that was decided."""
        self.moved_ns = [*self.lately(now_ns), now_ns]
        self.is_moving = True
        self.left_ns = self.asked_ns = self.signalled_ns = 0
        self.by = self.error = ""

    def lately(self, now_ns: int) -> list[int]:
        """When moves were decided within the last hour."""
        return [at_ns for at_ns in self.moved_ns if now_ns - at_ns < HOUR_NS]

    def fail(self, now_ns: int, wait_ns: int, longest_ns: int) -> int:
        """Count a move that failed; return how long none is tried: twice as long after each."""
        self.give_up()
        self.failures += 1
        wait_ns = min(wait_ns << min(self.failures - 1, 30), longest_ns)
        self.wait_until_ns = now_ns + wait_ns
        return wait_ns

    def give_up(self) -> None:
        """It goes on elsewhere than it was to, for no fault of its own: the next move may come at once."""
        self.is_moving, self.left_ns = False, 0

    def begin_anew(self) -> None:
        """It is another incarnation: of this one nothing has been sent or told yet."""
        self.signalled_ns, self.is_imaged = 0, False

    def forget_unfit(self, but: Collection[str] = ()) -> None:
        """All nodes may restore it again, but these."""
        self.unfit = {name: why for name, why in self.unfit.items() if name in but}
        self.unfit_once = ()

    def arrive(self) -> None:
        """It runs again."""
        self.is_moving, self.failures, self.wait_until_ns = False, 0, 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Travels:
        """Read what the journal has of it."""
        travels = build(cls, raw)
        travels.moved_ns = list(travels.moved_ns)
        return travels
