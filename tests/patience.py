"""How long tests wait: deadlines of a quiet machine, longer by as much as this one is slower now."""

from __future__ import annotations

import time

#: Additions in a loop, and their seconds on a quiet core of the machines that the deadlines were chosen on.
LOOP, QUIET_S = 1_000_000, 0.05
#: It is measured again when the last measurement is older.
FRESH_S = 20.0
#: No deadline is longer than this many times itself: what hangs is to be found today.
MOST = 6.0

_measured: tuple[float, float] | None = None


def slowness() -> float:
    """Return how many times longer work takes here, now, than on a quiet machine: from 1 to MOST.

    The clock on the wall counts, so that a processor shared with others is a slow one.
    """
    global _measured
    now_s = time.monotonic()
    if _measured is None or now_s - _measured[0] > FRESH_S:
        total = 0
        for number in range(LOOP):
            total += number
        took_s = time.monotonic() - now_s
        before = _measured[1] if _measured else 1.0
        # Half of what was known stays: one slice of a busy processor is no measurement.
        _measured = now_s, min(MOST, max(1.0, (took_s / QUIET_S + before) / 2))
    return _measured[1]


def deadline(seconds: float) -> float:
    """Return the moment, by time.monotonic(), until which a test waits for what takes `seconds` at most."""
    return time.monotonic() + seconds * slowness()
