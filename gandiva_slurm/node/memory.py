"""GPU memory of the jobs of a node: what ranks tell of it on their pages, what NVML sees, what GPUs have.

Ranks' words are bounded, and steer nothing but who is packed with whom and how the memory of a shared GPU is
divided. That a parked job keeps memory which another needs is NVML's word alone: else a job could keep others
from their turns by saying so. What its ranks say only has NVML asked at once.
"""

from __future__ import annotations

from typing import NamedTuple

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import returning
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.tiers import RESIDUE
from gandiva_slurm.policy.packing.room import CONTEXT_BYTES
from gandiva_slurm.wire import page as wire

#: More than any GPU has: what a rank tells beyond it is nonsense.
SANE_BYTES = 1 << 44
#: A job that holds its GPUs is taken to keep again what it kept when it was parked last, for so long.
KEPT_NS = 60_000_000_000


class Memory(NamedTuple):
    """Bytes of all ranks together: now, at their peak (0: not all have told it), kept while parked."""

    live: int
    peak: int
    held: int
    #: how often memory ran out
    ooms: int
    #: the most that was in host memory, for the GPU was full
    spilled: int = 0


def memory_of(resident: Resident) -> Memory:
    """Return what a job's ranks say of its GPU memory."""
    views = [rank.look() for rank in resident.ranks]
    live, peak, held = (_sum(views, word) for word in (wire.W_LIVE, wire.W_PEAK, wire.W_HELD))
    is_told = bool(views) and all(view[wire.W_PEAK] for view in views)
    if peak <= len(views) and resident.usage.memory:  # not torch's: what NVML sees is all that is known
        is_told, peak = True, resident.usage.memory
    kept = (peak if resident.is_frozen else held) if resident.state == SUSPENDED else 0
    ooms, spilled = _sum(views, wire.W_OOMS), _sum(views, wire.W_SPILLED)
    return Memory(live, peak if is_told else 0, kept, ooms, spilled)


def card_bytes(node: Node, resident: Resident) -> int:
    """Return how much memory the smallest of its GPUs has; 0: not known."""
    cards = [node.card_bytes(gpu) for gpu in resident.gpus]
    return min(cards, default=0)


def is_unseen(node: Node, resident: Resident) -> bool:
    """True where NVML has not looked yet what is kept on its GPUs by one that says it keeps memory there."""
    if node.nvml is None:
        return False
    parked = [other for other in _others(node, resident) if other.state == SUSPENDED]
    return any(other.kept[1] <= other.since_ns and memory_of(other).held > RESIDUE for other in parked)


def lack(node: Node, resident: Resident) -> str:
    """Say what of its GPUs others keep while they are parked, so that it does not fit in; "" where it does.

    One whose peak is not known yet takes all of a GPU but the others' contexts. One whose memory did not come
    back when it was tried last lacks room until it is tried again, whatever is known of it.
    """
    if returning.rests(node, resident):
        return returning.told(node, resident)
    if node.nvml is None:
        return ""
    now, told = node.clock.mono(), memory_of(resident)
    peak = told.peak and told.peak + told.spilled  # what it spilled comes back, too
    context = min(CONTEXT_BYTES, _of_each(_kept(resident, now), resident) or CONTEXT_BYTES)
    need = _of_each(peak, resident) + context if peak else 0
    for gpu in resident.gpus:
        here = [other for other in _others(node, resident) if gpu in other.gpus]
        kept = {other.key.job_id: _of_each(_kept(other, now), other) for other in here}
        card = node.card_bytes(gpu)
        much = [job for job, size in kept.items() if size > CONTEXT_BYTES + RESIDUE]
        lacks = bool(much) if not need else need > card - sum(kept.values())
        if card and kept and lacks:
            keep = ", ".join(f"job {job} keeps {_mib(kept[job])}" for job in much or sorted(kept))
            wants = f"it needs {_mib(need)}" if need else "what it needs is not known yet"
            return f"of GPU {gpu}'s {_mib(card)} {keep}; {wants}"
    return ""


def _others(node: Node, resident: Resident) -> list[Resident]:
    """Those on its GPUs besides its mate, which may hold them at the same time (`policy/packing/room`)."""
    gpus, mate = {*resident.gpus}, node.local.mate_of(resident.key)
    others = [other for other in node.residents.values() if other is not resident and other.key != mate]
    return [other for other in others if not gpus.isdisjoint(other.gpus)]


def _kept(other: Resident, now: int) -> int:
    size, seen_ns = other.kept
    is_known = now - seen_ns < KEPT_NS if other.holds else seen_ns > other.since_ns
    return size if is_known else 0


def _of_each(size: int, resident: Resident) -> int:
    return -(-size // max(1, len(resident.gpus)))


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"


def _sum(views: list[tuple[int, ...]], word: int) -> int:
    return min(sum(view[word] for view in views), SANE_BYTES)
