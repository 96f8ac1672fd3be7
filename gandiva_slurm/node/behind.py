"""A parked job is a checkpoint: its ranks write themselves to disk while they are parked (ADR 0059).

What has held its GPUs for `checkpoint_parked` since it was asked last is asked with its next park. Its GPUs
are given on as ever; it is frozen when its ranks have written, or when its time for that is over, and charged
for what it ran. What a rank says on its page buys no more than that time. The next turn ends a writing that
is not through: what was whole before is whole still, and it is asked again when it is due again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import leaving
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.wire import page as wire

#: A job runs to write itself for a quarter of `checkpoint_parked` at most, and for 5 s at the least.
PART, LEAST_NS = 4, 5_000_000_000
#: Its pages are looked at so often meanwhile, in seconds.
LOOK_S = 0.02

Shut = Callable[[Resident], None]


def is_due(node: Node, resident: Resident, now: int) -> bool:
    """True when the park that is about to be ordered is to be written: a turn later would be too late.

    Of a gang of several nodes none is: its parts would have to be asked at one boundary.
    """
    every_ns, counts = node.settings.checkpoint_parked_ns, resident.counts
    if not every_ns or resident.part is not None or not leaving.is_movable(resident):
        return False
    held_ns = counts.held_ns + max(0, now - resident.charged_ns)
    return held_ns - counts.asked_held_ns + node.local.quantum_ns > every_ns


def begins(node: Node, resident: Resident, park_ns: int, shut: Shut) -> bool:
    """It has parked, which took so long: return whether it writes itself, and is frozen by `shut` later."""
    resident.is_writing = resident.is_writing and not resident.is_frozen
    if not resident.is_writing:
        return False
    now = node.clock.mono()
    resident.counts.asked_held_ns = resident.counts.held_ns
    until_ns = now + max(LEAST_NS, node.settings.checkpoint_parked_ns // PART)
    if not resident.is_trusted:
        resident.awake_from_ns, resident.awake_until_ns = now, until_ns
    _look(node, resident, Window(now - park_ns, resident.since_ns, until_ns), shut)
    return True


class Window(NamedTuple):
    """When the park was ordered, when it had arrived, and how long it may write."""

    asked_ns: int
    parked_ns: int
    until_ns: int


def _look(node: Node, resident: Resident, window: Window, shut: Shut) -> None:
    """Freeze it when it is through, or its time is over; look again soon until then."""
    now = node.clock.mono()
    if node.residents.get(resident.key) is not resident or resident.is_ending:
        return
    is_parked = resident.state == SUSPENDED and resident.since_ns == window.parked_ns
    pages = [rank.look() for rank in resident.ranks]
    if is_parked and any(page[wire.W_SAVING] for page in pages) and now < window.until_ns:
        asyncio.get_running_loop().call_later(LOOK_S, _look, node, resident, window, shut)
        return
    if is_parked:
        shut(resident)
    resident.is_writing = False
    is_whole = bool(pages) and all(page[wire.W_SAVED] == page[wire.W_STATE_SEQ] for page in pages)
    took_ms = (now - window.asked_ns) / 1e6
    node.note("written" if is_whole else "unwritten", resident, now, took_ms=round(took_ms, 3))
