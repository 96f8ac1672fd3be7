"""What is left of a parked job on its GPUs, and whether the driver is to move it (ADR 0029).

At a boundary the rank itself moves its memory or holds it (client/tiers has that order). NVIDIA's process
checkpoint comes behind that, or before the freezer where there is no boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire import page as wire

#: What ranks may still hold after their park, before the driver is asked to move it. A context is not in it.
RESIDUE = 64 << 20


class Facts(NamedTuple):
    """What is known of a job and its node when the job is to give its GPUs back."""

    #: its ranks come to boundaries, and have not refused to park for too long
    is_parkable: bool
    #: ranks have said hello
    has_ranks: bool = False
    #: processes it is said to train with: its ranks' world, else its tasks
    processes: int = 1
    #: all of it is on this node
    is_whole: bool = True
    #: bytes that its ranks hold although they are parked
    held: int = 0
    #: why the driver cannot do it on this node, "" where it can
    driver: str = ""
    #: why the driver is not tried for this job any more, "" while it is
    failed: str = ""

    @property
    def has_moved(self) -> bool:
        """True when its ranks moved their memory themselves: little but a context is left of each."""
        return self.is_parkable and self.held <= RESIDUE


def why_not_driver(facts: Facts) -> str:
    """Say why the driver is not to move a job's memory; "" where it is."""
    if facts.driver or facts.failed:
        return facts.driver or facts.failed
    if not facts.is_whole:
        return "it runs on several nodes: the driver moves one process at a time"
    if facts.processes > 1:
        return f"it trains with {facts.processes} processes: the driver moves one at a time, and NCCL hangs"
    if facts.has_moved:
        return "its ranks moved their memory themselves: little but its context is left"
    if facts.has_ranks and not facts.is_parkable:
        return "its ranks would be stopped in the middle of a mini-batch"
    return ""


def held_bytes(resident: Resident) -> int:
    """Return what its parked ranks say that they still hold on their GPUs."""
    views = [rank.look() for rank in resident.ranks if rank.is_alive]
    return sum(view[wire.W_HELD] for view in views if view[wire.W_STATE] == wire.PARKED)


def told(resident: Resident) -> str:
    """Say what of a job's memory is where it need not be, and why; "" where all is as usual."""
    views = [rank.look() for rank in resident.ranks]
    kept = [view for view in views if view[wire.W_TIER_USED] == wire.TIER_HOLD and view[wire.W_HELD]]
    reasons = {text for text in map(error_text, kept) if text.startswith(wire.HELD_BECAUSE)}
    return "; ".join([*sorted(reasons), *_told_of_driver(resident)])


def _told_of_driver(resident: Resident) -> Iterator[str]:
    away = resident.away
    if away.is_out and away.bytes:
        yield f"the driver keeps {sum(away.bytes.values()) >> 20} MiB of GPU memory for it in the host's"
    if away.why:
        yield ", ".join(filter(None, (f"the driver could not move its memory: {away.why}", away.failed)))
