"""What a node says of an incarnation, as the engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Sighting:
    """An incarnation that a node reports, with the GPUs it is bound to (none: to none yet)."""

    gpus: tuple[int, ...] = ()
    #: how the node slices it, as it said last; "" = it has not said
    state: str = ""
    reason: str = ""
    detail: str = ""
    #: since when it should not be there; 0 = it should
    odd_ns: int = 0
    #: its tasks are stopped before they begin
    is_unborn: bool = False
    #: it can save itself and go on elsewhere
    is_movable: bool = False
    #: asked for, so that the action is emitted once; the node's plan names it as long as it is seen
    is_fenced: bool = False
    #: mini-batches a second alone on its GPUs (the last that was told) and beside its mate; 0: not measured
    rate_alone: float = 0.0
    rate_packed: float = 0.0
    rate_noise: float = 0.0
    #: bytes: of its smallest GPU, of its tensors at their peak, what it kept there in its last park;
    #: 0: not known (or nothing kept)
    card_bytes: int = 0
    peak_bytes: int = 0
    held_bytes: int = 0
    #: how often it asked for more GPU memory than there was
    ooms: int = 0
    #: what it saves can be loaded by another number of ranks
    is_elastic: bool = False
