"""Processor time in loops: what adding the integers below 20 million takes, measured beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

_COUNT = 20_000_000

Result = TypeVar("Result")


class Took(NamedTuple):
    """Processor time of this process: in seconds, and in loops of the same moment."""

    cpu_s: float
    loops: float

    def __str__(self) -> str:
        return f"{self.loops:.2f} loops ({self.cpu_s:.2f} s)"


def loop_s() -> float:
    """Return the processor time of one loop, now."""
    start = time.process_time()
    total = 0
    for number in range(_COUNT):
        total += number
    return time.process_time() - start


def measured(act: Callable[[], Result]) -> tuple[Result, Took]:
    """Do something between two loops; return what it returned, and what it took."""
    before_s = loop_s()
    start = time.process_time()
    result = act()
    took_s = time.process_time() - start
    return result, Took(took_s, 2 * took_s / (before_s + loop_s()))
