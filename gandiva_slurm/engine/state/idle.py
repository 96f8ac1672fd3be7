"""What is known of a job that holds GPUs and does nothing with them (`lifecycle/idleness`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Idle:
    """`told_ns`: since when that is told, 0: it is not; `parked_ns`: since when others go before it."""

    told_ns: int = 0
    parked_ns: int = 0
    #: for how long its GPUs had been idle when it was to have them all the same, to see whether it works now
    tried_s: int = 0
