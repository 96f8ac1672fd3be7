"""Which tiers may move a parked rank's memory, in the order they are tried: facts in, names out.

`torch` comes first, for whatever fails in it is undone; `vmm` is for memory whose addresses may not change,
as captured CUDA graphs have. Where none can, the memory is held. When a node has the driver move what is
left is in node/tiers.
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


def movers(facts: Facts) -> Tuple[str, ...]:
    """Return the tiers to try, one after the other."""
    if facts.wish == CPU:
        names: Tuple[str, ...] = (TORCH,)
    elif facts.wish == KEEP or not facts.is_on_cuda:
        names = ()
    else:
        names = (TORCH,) if facts.saver else (TORCH, VMM)
    return tuple(name for name in names if name not in facts.never)
