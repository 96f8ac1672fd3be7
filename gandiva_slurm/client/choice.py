"""Which tiers may move a parked rank's memory, in the order they are tried: facts in, names and reasons out.

`torch` comes first, for whatever fails in it is undone; `vmm` is for memory whose addresses may not change,
as captured CUDA graphs have. Where none can, the memory is held. What a node can do is in node/tiers.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple

TORCH, VMM = "torch", "vmm"
#: What GANDIVA_TIER may say; CPU is a device that tests can do without a GPU.
AUTO, KEEP, CPU = "auto", "hold", "torch-cpu"


class Facts(NamedTuple):
    """What is known of a process when it is to move its memory."""

    #: one of AUTO, KEEP and CPU
    wish: str
    #: CUDA is in use
    is_on_cuda: bool
    #: why torch_memory_saver cannot be used, "" where it can
    saver: str
    #: tiers that failed for good in this process, and why
    never: Dict[str, str]


def movers(facts: Facts) -> Tuple[Tuple[str, ...], Dict[str, str]]:
    """Return the tiers to try, one after the other, and why each other is left out."""
    left_out = dict(facts.never)
    if facts.wish == CPU:
        left_out[VMM] = "the CPU is no device of it"
    elif facts.wish == KEEP or not facts.is_on_cuda:
        why = "GANDIVA_TIER is hold" if facts.wish == KEEP else "CUDA is not in use"
        left_out = {TORCH: why, VMM: why}
    elif facts.saver:
        left_out[VMM] = facts.saver
    return tuple(name for name in (TORCH, VMM) if name not in left_out), left_out
