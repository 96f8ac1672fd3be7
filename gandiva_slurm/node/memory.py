"""GPU memory of the jobs of a node: what their ranks tell of it on their pages, and how much their GPUs have.

Ranks' words are bounded, and steer nothing but who is packed with whom and how the memory of a shared GPU is
divided.
"""

from __future__ import annotations

from typing import NamedTuple

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.wire import page as wire

#: More than any GPU has: what a rank tells beyond it is nonsense.
SANE_BYTES = 1 << 44


class Memory(NamedTuple):
    """Bytes of all ranks together: now, at their peak (0: not all have told it), kept while parked."""

    live: int
    peak: int
    held: int
    #: how often memory ran out
    ooms: int


def memory_of(resident: Resident) -> Memory:
    """Return what a job's ranks say of its GPU memory."""
    views = [rank.look() for rank in resident.ranks]
    live, peak, held = (_sum(views, word) for word in (wire.W_LIVE, wire.W_PEAK, wire.W_HELD))
    is_told = bool(views) and all(view[wire.W_PEAK] for view in views)
    if peak <= len(views) and resident.usage.memory:  # not torch's: what NVML sees is all that is known
        is_told, peak = True, resident.usage.memory
    kept = (peak if resident.is_frozen else held) if resident.state == SUSPENDED else 0
    return Memory(live, peak if is_told else 0, kept, _sum(views, wire.W_OOMS))


def card_bytes(node: Node, resident: Resident) -> int:
    """Return how much memory the smallest of its GPUs has; 0: not known."""
    cards = [node.card_bytes(gpu) for gpu in resident.gpus]
    return min(cards, default=0)


def _sum(views: list[tuple[int, ...]], word: int) -> int:
    return min(sum(view[word] for view in views), SANE_BYTES)
