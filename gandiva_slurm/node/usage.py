"""What is seen of a job's use of its GPUs from outside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """What NVML sees of a job's processes on its GPUs: bytes, percent of the time (-1: not known).

    `steps` it had done then; `idle_looks`: in how many looks in a row it told of steps and used no GPU;
    `idle_ns`: for how long it held its GPUs since it was seen to use them last.
    """

    memory: int = 0
    percent: int = -1
    steps: int = 0
    idle_looks: int = 0
    idle_ns: int = 0
