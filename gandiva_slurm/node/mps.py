"""NVIDIA's Multi-Process Service: a job may be given a part of its GPU's threads and memory when it starts.

A process has it from the making of its CUDA context to its end, also while it has the GPU alone; the control
daemon can only lower it. So it is for opportunistic jobs, where the site wants it. The rest is the duty's.
A limit of memory holds for all that the process allocates, by torch or not. One MPS server has one user's
clients: others' wait, unless the site runs it for several. Not run on a GPU yet.
Source: NVIDIA's MPS documentation (nvidia-cuda-mps-control.pid, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA_MPS_CLIENT_PRIORITY).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

#: NVIDIA's default for the control daemon's pipes and its pid file; the environment may name another.
DIRECTORY = "/tmp/nvidia-mps"
#: The kernel keeps 15 letters of a program's name.
NAME = "nvidia-cuda-mps-control"[:15]


def is_there() -> bool:
    """Return True while the control daemon runs on this node."""
    directory = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DIRECTORY))
    try:
        pid = int((directory / "nvidia-cuda-mps-control.pid").read_text())
        return Path(f"/proc/{pid}/comm").read_text().strip() == NAME
    except (OSError, ValueError):
        return False


def environment(percent: int, memory_percent: int, cards: Sequence[int]) -> dict[str, str]:
    """Return what bounds a job to these parts of the threads and of the memory of its GPUs, `cards` in bytes.

    Nothing of what is 0, or without the control daemon. Memory is limited in MiB, by the job's own numbers of
    its GPUs, where all are known; kernels of a job so bounded go behind those of others.
    """
    if not (percent or memory_percent) or not is_there():
        return {}
    bounds = {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    if percent:
        bounds["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    if memory_percent and cards and all(cards):
        limits = [f"{number}={card * memory_percent // 100 >> 20}M" for number, card in enumerate(cards)]
        bounds["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
    return bounds
