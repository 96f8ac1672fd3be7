"""The daemon's time: CLOCK_MONOTONIC for what lasts, and for dates real time that follows the system's.

It is slewed to the system's, so that holds touch and never overlap. Where the system's clock was set, or the
host suspended, dates jump with it, and what lasts at that moment is cut there (`Ledger.redate`).
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

#: The fastest correction towards the system's real time, per second (500 ppm, as ntpd slews).
SLEW_NS_PER_S = 500_000
#: What is further off was set, or is a suspend: slewing it would take more than half an hour.
STEP_NS = 1_000_000_000


class Clock:
    """CLOCK_MONOTONIC plus an offset that follows CLOCK_REALTIME."""

    def __init__(self, offset_ns: int | None = None) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns() if offset_ns is None else offset_ns

    def mono(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC: what the ranks' pages use."""
        return time.monotonic_ns()

    def real(self, mono_ns: int | None = None) -> int:
        """Unix nanoseconds of now, or of a monotonic moment of this boot."""
        return (self.mono() if mono_ns is None else mono_ns) + self.offset_ns

    def correct(self) -> int:
        """Move the offset towards the system's, once a second; return by how much dates have jumped."""
        error = time.time_ns() - self.real()
        step_ns = error if abs(error) > STEP_NS else 0
        self.offset_ns += step_ns or max(-SLEW_NS_PER_S, min(SLEW_NS_PER_S, error))
        return step_ns


@functools.cache  # read before descriptors can run out, and the same for as long as this process lives
def host_boot() -> str:
    """A name for this boot of the host: monotonic times and process ids mean nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
