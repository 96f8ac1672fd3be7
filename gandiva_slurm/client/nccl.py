"""NCCL's own memory, given back while a rank is parked: torch suspends and resumes its communicators.

GANDIVA_NCCL=suspend asks for it, where NCCL (2.29.7 and newer) and torch (2.12 and newer) can. All ranks of a
communicator do both, in one order: a park has all of them at one boundary, with nothing under way. Both are
waited for without a bound, which is why it has to be asked for. Not run on a GPU yet.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Tuple

from gandiva_slurm.client import groups
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.notice import say

#: NCCL has it from this release on.
LEAST: Tuple[int, ...] = (2, 29, 7)
#: How torch begins to say that a communicator has not been made yet: there is nothing to suspend.
_NOT_MADE = "NCCL communicator not initialized"


def is_wanted() -> bool:
    """Return True where the job asks for it, and it can be done."""
    return os.environ.get("GANDIVA_NCCL") == "suspend" and not why_not()


def version() -> str:
    """Return NCCL's version, as torch was built with it; "" where it has none."""
    return ".".join(map(str, _version()))


def why_not() -> str:
    """Say why communicators cannot be suspended here, "" where they can."""
    found = backends()
    if not found:
        return "no group uses NCCL"
    if _version() < LEAST:
        release, least = version() or "of an unknown release", ".".join(map(str, LEAST))
        return f"NCCL is {release}, it has that from {least} on"
    return "" if all(hasattr(one, "suspend") for one in found) else "this torch does not offer it"


def backends() -> List[Any]:
    """Return what this rank's NCCL groups communicate by, in the order in which they were made."""
    return [one for one in groups.backends() if groups.is_nccl(one)]


def gang() -> Dict[str, Any]:
    """Return what `gandiva doctor` tells of this rank's groups; nothing without any."""
    known, ours = groups.backends(), backends()
    if not known:
        return {}
    return {
        "backends": sorted({groups.name_of(one) for one in known}),
        "timeout_s": min(filter(None, map(groups.wait_s, known)), default=0.0),
        "heartbeat_s": groups.heartbeat_s() if ours else 0,
        "nccl": version() if ours else "",
        "suspend": why_not() if ours else "",
        "is_suspended": is_wanted(),
        "nvls": bool(ours) and os.environ.get("NCCL_NVLS_ENABLE", "") != "0",
    }


def suspend() -> List[Any]:
    """Suspend all communicators that have been made; return them. One that fails leaves none suspended."""
    done: List[Any] = []
    for backend in backends():
        try:
            backend.suspend()
            done.append(backend)
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            if _NOT_MADE not in str(err):
                say(f"its communicators keep their memory while it is parked ({type(err).__name__}: {err})")
                resume(done)
                return []
    return done


def resume(suspended: List[Any]) -> None:
    """Resume them, in the order in which they were suspended; what was resumed is taken off the list."""
    while suspended:
        suspended[0].resume()
        del suspended[0]


def _version() -> Tuple[int, ...]:
    torch = sys.modules.get("torch")
    try:
        return tuple(int(part) for part in torch.cuda.nccl.version()[:3])  # type: ignore[union-attr]
    except Exception:  # a torch without NCCL
        return ()
