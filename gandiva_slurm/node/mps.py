"""NVIDIA's Multi-Process Service: a job may be given a part of its GPU's threads when it starts.

A process has it from the making of its CUDA context to its end, also while it has the GPU alone; the control
daemon can only lower it. So it is for opportunistic jobs, where the site wants it. The rest is the duty's.
Source: NVIDIA's MPS documentation (nvidia-cuda-mps-control.pid, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE).
"""

from __future__ import annotations

import os
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


def environment(percent: int) -> dict[str, str]:
    """Return what bounds a job to this part of the threads; nothing at 0, or without the control daemon."""
    if not percent or not is_there():
        return {}
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
