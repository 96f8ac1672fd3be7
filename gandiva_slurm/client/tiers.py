"""How a parked rank gives its device back: a tier releases at PARKED and restores before the next step.

Tiers that move memory off the device come later; they take the place of `HoldTier` in `client.stop`.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from gandiva_slurm.wire.page import TIER_HOLD

#: Longest wait for the device to finish the step it was given.
DRAIN_S = 2.0


class Released(NamedTuple):
    """Bytes of device memory a tier gave back, and what stays held."""

    released: int
    held: int


class HoldTier:
    """Keeps all memory; the rank only gives the device no work. Every tier has these three members."""

    number = TIER_HOLD

    def release(self) -> Released:
        """Wait until the device is idle and say what stays on it; TimeoutError when that takes too long."""
        cuda = _cuda_in_use()
        if cuda is None:
            return Released(0, 0)
        devices = [device for device in range(cuda.device_count()) if cuda.memory_allocated(device)]
        for device in devices:
            _drain(cuda, device, time.monotonic() + DRAIN_S)
        return Released(0, sum(cuda.memory_allocated(device) for device in devices))

    def restore(self) -> None:
        """Nothing was taken away."""


def _cuda_in_use() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _drain(cuda: Any, device: int, deadline: float) -> None:
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    while not event.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"device {device} was still busy {DRAIN_S:g} s after the step")
        time.sleep(0.0002)
