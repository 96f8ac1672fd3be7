"""What is measured of a job where it lives: the node tells it, the engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Of `saved_s`: there is no whole file. The same as in wire.page, which the training process has, too.
NO_FILE = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one incarnation on one node; 0: not known, or not measured yet."""

    #: it can save itself and go on elsewhere
    is_movable: bool = False
    #: why it cannot, by its own word
    unmoved: str = ""
    #: the framework that saves it; "" where it is attached by its script, or cannot
    framework: str = ""
    #: what it saves, or has saved to leave, can be loaded by another number of ranks
    is_elastic: bool = False
    #: mini-batches a second alone on its GPUs, and beside the job it is packed with
    rate_alone: float = 0.0
    rate_packed: float = 0.0
    #: how far off the ratio of the two may be, as a part of it
    rate_noise: float = 0.0
    #: bytes: of its smallest GPU, of all its ranks' tensors at their peak (ranks that use no GPU memory tell
    #: 1), what they keep on their GPUs while parked
    card_bytes: int = 0
    peak_bytes: int = 0
    held_bytes: int = 0
    #: how often its ranks asked for more GPU memory than there was
    ooms: int = 0
    #: when the newest whole file of its own checkpoints was written, in unix seconds; NO_FILE: there is none
    saved_s: int = 0
    #: seconds in which it has held its GPUs since NVML saw it use them last
    idle_s: int = 0
    #: why its node could not restore it from its image ("": it has, or there is none)
    unrestored: str = ""
    #: that was no fault of the image's or the node's: the node may well restore the job another time
    is_fit_again: bool = False
    #: it goes on from an image of a GPU program: on GPUs of the model it was on alone
    keeps_type: bool = False
    #: the job beside which `rate_packed` was measured; 0: none
    mate: int = 0

    @property
    def measured(self) -> Measured:
        """This alone, of a message that says more."""
        return Measured(**{item.name: getattr(self, item.name) for item in fields(Measured)})
