"""Who this process is: its rank and world, found at the first boundary, when the script has set itself up."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, NamedTuple, Optional

#: Slurm numbers steps from 0; batch, extern, interactive and the like start here.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Identity(NamedTuple):
    """This process within its gang. `master` and `backend` are empty outside a process group."""

    rank: int
    world: int
    master: str
    backend: str


def find_identity() -> Identity:
    """Read rank and world from a launcher's environment, else torch.distributed, else an srun step."""
    env = os.environ
    group = process_group()
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, world = number("RANK"), number("WORLD_SIZE", 1)
    elif group is not None:
        rank, world = group.get_rank(), group.get_world_size()
    elif _in_numbered_step():
        rank, world = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS", 1)
    else:
        rank, world = 0, 1
    address = env.get("MASTER_ADDR", "")
    master = f"{address}:{env.get('MASTER_PORT', '')}" if address else ""
    return Identity(rank, max(world, rank + 1), master, group.get_backend() if group else "")


def hello(identity: Identity, kind: int) -> Dict[str, Any]:
    """Return the first message of a rank to its node; the node takes pid and uid from the socket itself."""
    torch = sys.modules.get("torch")
    return {
        "hello": 1,
        "start": start_ticks(),
        **identity._asdict(),
        "torch": str(getattr(torch, "__version__", "")),
        "kind": kind,
        "job": number("GANDIVA_JOB", number("SLURM_JOB_ID")),
        "restart": number("GANDIVA_RESTART", number("SLURM_RESTART_COUNT")),
    }


def start_ticks() -> int:
    """Return this process's start time in clock ticks since boot: with the pid it names the process."""
    with open("/proc/self/stat", "rb") as stat:
        # The command's name, field 2, is in brackets and may hold blanks and brackets itself.
        return int(stat.read().rpartition(b")")[2].split()[19])


def process_group() -> Optional[Any]:
    """Return torch.distributed where the script has initialised its process group."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _in_numbered_step() -> bool:
    # A batch script with --ntasks=2 has SLURM_NTASKS=2 and SLURM_PROCID=0, yet is a single process.
    return 0 <= number("SLURM_STEP_ID", -1) < _FIRST_SPECIAL_STEP and "SLURM_PROCID" in os.environ


def number(name: str, default: int = 0) -> int:
    """Return a number of the environment; `default` where it is missing or none."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default
