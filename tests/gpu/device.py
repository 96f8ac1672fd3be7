"""The device of the GPU floor's tests: CUDA's first, or the simulated card, in small (DEVICE=sim of day.sh).

GANDIVA_ACCELERATOR names it, as for the client. What is written for the one runs on the other: `of_device`
takes torch's module of that kind, `kind()` is its name in `tensor.to`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gandiva_slurm.client import accelerator
from gandiva_slurm.client.device import Cuda
from gandiva_slurm.node import nvml

IS_SIM = accelerator.kind() != accelerator.CUDA
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
#: Cycles for which the device sleeps once, to find how many it counts a second (`torch.cuda._sleep`).
PROBE_CYCLES = 50_000_000
#: How variables begin that name the simulated card.
_WORDS = ("GANDIVA_ACCELERATOR", "GANDIVA_CARD")
#: The simulated card of a day's stage, and what each process's context takes of it.
SIM_TOTAL, SIM_CONTEXT = 1024 * MIB, 32 * MIB


class Card(NamedTuple):
    """What is known of the device; bytes."""

    name: str
    driver: str
    total: int
    free: int


def kind() -> str:
    """Return the device's name in PyTorch; it can be used from now on."""
    of_device()
    return accelerator.kind()


@cache
def of_device() -> Any:
    """Return torch.cuda, or torch's module for the simulated card."""
    if IS_SIM:
        from tests.device import backend

        torch.set_num_threads(1)
        return backend.install()
    return torch.cuda


@cache
def gauge() -> Any:
    """Return what counts the device's memory for the tier `torch`."""
    of_device()
    return Cuda(torch)


def card() -> Card:
    """Return what the device is."""
    free, total = of_device().mem_get_info()
    return Card(of_device().get_device_name(), _driver(), total, free)


def _driver() -> str:
    if IS_SIM:
        return "none"
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def settled() -> None:
    """Wait until the device has nothing to do."""
    of_device().synchronize()


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
    """Give the device work for so long, and return at once."""
    if IS_SIM:
        of_device().queue_work(seconds)
        return
    cycles = PROBE_CYCLES / best_s(torch.cuda._sleep, PROBE_CYCLES, rounds=2)
    torch.cuda._sleep(int(cycles * seconds))


def used() -> int:
    """Return the bytes that this process has on the device, seen from outside."""
    library = nvml.load()
    assert library is not None, "NVML does not work"
    mine = [use.memory for use in library.uses() if use.pid == os.getpid()]
    assert mine, "NVML numbers processes otherwise: is this a container?"
    return sum(mine)


def environment(**more: str) -> dict[str, str]:
    """Return what a training's process has of this one's: nothing of Slurm's or a job's, but its device."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    kept |= own_words()
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])
    return kept | more


def own_words() -> dict[str, str]:
    """Return what names the device in this process's environment; of CUDA's first nothing does."""
    return {key: value for key, value in os.environ.items() if key.startswith(_WORDS)}


def make_sim(path: Path) -> dict[str, str]:
    """Make a simulated card; return what a stage on it has in its environment."""
    from tests.device import backend, build, card

    card.make(path, SIM_TOTAL, SIM_CONTEXT)
    return backend.environment(build.library(), path)


if __name__ == "__main__":
    # As words of the shell: `export $(python -m tests.gpu.device FILE)`.
    import sys

    print(*(f"{name}={value}" for name, value in make_sim(Path(sys.argv[1])).items()))
