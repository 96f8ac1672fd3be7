"""What `gandiva doctor` says of a gang's process groups and of CUDA graphs, a line a subject. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def told(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say of a script, by the facts of its first rank, what its gang and its graphs mean for parks."""
    gang = facts.get("gang") or {}
    if gang:
        yield "groups", _communicators(gang)
        yield "watchdogs", _watchdogs(gang)
    if gang.get("nvls"):
        yield "nvls", (
            "NCCL may use NVLink SHARP, which neither NCCL's suspend nor the driver's tier releases; "
            "next: NCCL_NVLS_ENABLE=0, where its memory is to go"
        )
    if facts.get("graphs"):
        yield "graphs", (
            "it has captured CUDA graphs, or has memory pools of its own: its memory stays on the GPU while "
            "it is parked, but by tier vmm; a step that is one graph is not paused within"
        )


def _communicators(gang: dict[str, Any]) -> str:
    names = ", ".join(gang["backends"]) or "of an unknown kind"
    if not gang["nccl"]:
        return f"{names}: they keep no memory of a GPU"
    if gang["is_suspended"]:
        return f"{names} {gang['nccl']}: suspended while it is parked (GANDIVA_NCCL; not run on a GPU yet)"
    kept = f"{names} {gang['nccl']}: they keep their memory while it is parked"
    if gang["suspend"]:
        return f"{kept}: {gang['suspend']}"
    next_step = "GANDIVA_NCCL=suspend in its environment has them give it back (not run on a GPU yet)"
    return f"{kept}; next: {next_step}"


def _watchdogs(gang: dict[str, Any]) -> str:
    waits, beats = gang["timeout_s"], gang["heartbeat_s"]
    least = min(filter(None, (waits, beats)), default=0)
    monitor = f", NCCL's monitor {beats:g} s" if beats else ""
    bound = f"frozen in mid-step it is woken after {least / 2:g} s, or freeze_bound_s of the site if less"
    return f"its groups wait {waits:g} s{monitor}: {bound}; a park at a boundary has no such bound"
