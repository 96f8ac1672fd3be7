"""The device of a day's stage: CUDA's first, or the processor played as one (DEVICE=cpu)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from gandiva_slurm.client.device import CpuGauge, Cuda
from gandiva_slurm.node import nvml

IS_CPU = os.environ.get("DEVICE") == "cpu"
MIB = 1 << 20
#: Cycles for which the device sleeps once, to find how many it counts a second (`torch.cuda._sleep`).
PROBE_CYCLES = 50_000_000


class Card(NamedTuple):
    """What is known of the device; bytes."""

    name: str
    driver: str
    total: int
    free: int


@cache
def gauge() -> Any:
    """Return what counts the device's memory for the tier `torch`."""
    return CpuGauge(torch) if IS_CPU else Cuda(torch)


def card() -> Card:
    """Return what the device is."""
    if IS_CPU:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Card("the processor, played as a device", "none", size, size)
    free, total = torch.cuda.mem_get_info()
    import pynvml

    pynvml.nvmlInit()
    return Card(torch.cuda.get_device_name(), str(pynvml.nvmlSystemGetDriverVersion()), total, free)


def settled() -> None:
    """Wait until the device has nothing to do."""
    if not IS_CPU:
        torch.cuda.synchronize()


def best_s(work: Callable[..., Any], *args: Any, rounds: int = 8) -> float:
    """Return the seconds that work takes, the best of some rounds."""
    took = []
    for _ in range(rounds):
        settled()
        start = time.perf_counter()
        work(*args)
        settled()
        took.append(time.perf_counter() - start)
    return min(took)


def queue(seconds: float) -> None:
    """Give the device work for so long, and return at once; the processor does it here and now."""
    if IS_CPU:
        return
    cycles = PROBE_CYCLES / best_s(torch.cuda._sleep, PROBE_CYCLES, rounds=2)
    torch.cuda._sleep(int(cycles * seconds))


def used() -> int:
    """Return the bytes that this process has on the device, seen from outside."""
    if IS_CPU:
        return int(gauge().live())
    library = nvml.load()
    assert library is not None, "NVML does not work"
    mine = [use.memory for use in library.uses() if use.pid == os.getpid()]
    assert mine, "NVML numbers processes otherwise: is this a container?"
    return sum(mine)
