"""The daemon's time: real time that neither jumps nor runs back, so that holds touch and never overlap."""

from __future__ import annotations

import functools
import time
from pathlib import Path

#: The fastest correction towards the system's real time, per second (500 ppm, as ntpd slews).
SLEW_NS_PER_S = 500_000


class Clock:
    """CLOCK_MONOTONIC plus an offset that follows CLOCK_REALTIME slowly."""

    def __init__(self, offset_ns: int | None = None) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns() if offset_ns is None else offset_ns

    def mono(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC: what the ranks' pages use."""
        return time.monotonic_ns()

    def real(self, mono_ns: int | None = None) -> int:
        """Unix nanoseconds of now, or of a monotonic moment of this boot."""
        return (self.mono() if mono_ns is None else mono_ns) + self.offset_ns

    def correct(self) -> None:
        """Move the offset towards the system's; called once a second."""
        error = time.time_ns() - self.real()
        self.offset_ns += max(-SLEW_NS_PER_S, min(SLEW_NS_PER_S, error))


@functools.cache  # read before descriptors can run out, and the same for as long as this process lives
def host_boot() -> str:
    """A name for this boot of the host: monotonic times and process ids mean nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
