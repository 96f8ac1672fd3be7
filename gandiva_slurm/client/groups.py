"""This rank's process groups: how long they wait for a peer before they give up, and what watches them."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, List

#: After so long without a sign of NCCL's watchdog thread torch's monitor ends the process, unless told.
HEARTBEAT_S = 480
_OFF = ("0", "false", "no", "off", "n")


def shortest_timeout_ms() -> int:
    """Return the smallest time-out of its groups and of what watches them; 0: none, or torch does not tell.

    Frozen for longer, in a collective, it would not go on: time counts while it stands still.
    """
    known = backends()
    found = [wait_s(one) for one in known]
    if any(is_nccl(one) for one in known):
        found.append(heartbeat_s())
    return int(min(filter(None, found), default=0) * 1000)


def heartbeat_s() -> int:
    """Return how many seconds torch's monitor of NCCL lets a process stand still; 0: it is off."""
    if os.environ.get("TORCH_NCCL_ENABLE_MONITORING", "1").lower() in _OFF:
        return 0
    try:
        return int(os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") or HEARTBEAT_S)
    except ValueError:
        return HEARTBEAT_S


def backends() -> List[Any]:
    """Return what all groups communicate by, in the order in which the groups were made."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    found: List[Any] = []
    if module is not None:
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            for group in list(module._world.pg_map):
                found += [group._get_backend(device) for device in group._device_types]
    return found


def wait_s(backend: Any) -> float:
    """Return how long a group waits for a peer; 0: it does not tell."""
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        return float(backend.options._timeout.total_seconds())
    return 0.0


def name_of(backend: Any) -> str:
    """Return what a group communicates by: nccl, gloo."""
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        return str(backend.name())
    return "of an unknown kind"


def is_nccl(backend: Any) -> bool:
    """Return True for NCCL's."""
    return name_of(backend) == "nccl"
