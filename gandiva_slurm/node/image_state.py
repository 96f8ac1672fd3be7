"""How a job stands with an image of its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gandiva_slurm.node import criu, procs
from gandiva_slurm.node.procs import ProcId

#: Why no image can be made where none is wanted.
OFF = "node.process_images is off"


@dataclass
class Image:
    """How a job stands with an image of its processes, which `imager` makes."""

    #: why none can be made; "": one can
    why_not: str = OFF
    #: it uses GPUs: it goes on on such of the same model alone
    has_card: bool = False
    #: what it has left of its files on nodes that it was moved from (`carried.Carried`), by node
    left: dict[str, list[list[Any]]] = field(default_factory=dict)
    #: it has no client: it is frozen whole, not parked, and its image is made of what it is then
    is_blind: bool = False
    #: the program that makes it, while it does
    maker: ProcId | None = None
    #: it is there: until it is deleted the job must not run
    is_whole: bool = False
    #: the one that is made is kept in case the node is lost: the job goes on here (`kept_images`)
    is_kept: bool = False
    #: when the next one may be made to be kept, and the mini-batches done by the last one; -1: there is none
    next_ns: int = 0
    kept_steps: int = -1
    #: it was restored here, and the mini-batches that its processes had done then
    is_restored: bool = False
    from_steps: int = 0
    #: for how long the incarnations that it goes on from had held their GPUs
    spent_ns: int = 0
    #: until when the image that it was restored from is there, should Slurm forget the start; 0: it is gone
    spare_until_ns: int = 0
    #: why this node could not restore it, and since when it waits to be started elsewhere ("": it does not)
    unfit: str = ""
    unfit_ns: int = 0
    #: what its task is told that stands for it: the root's pid here, and where it lives ("": not restored)
    root: str = ""
    #: what is being restored of it here (`elsewhere.Restore`); []: nothing is
    restoring: list[Any] = field(default_factory=list)

    @property
    def is_in_hand(self) -> bool:
        """True while an image is made: criu works, and undoes its work, by the job's own processes."""
        return self.maker is not None and (procs.is_alive(self.maker) or bool(criu.left_by(self.maker)))

    @property
    def keeps_still(self) -> bool:
        """True while the job must have no turn: an image is made, or is there."""
        return self.is_whole or self.maker is not None
