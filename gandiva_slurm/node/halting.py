"""Halting a job: all of it is frozen at once, whatever it does, until it may go on (`isolation`).

A halted job gives its GPUs back, frozen where it is, as any other that is frozen whole: it is charged until
its last process stands still. It has no turns, does not breathe, and no signal wakes it.
"""

from __future__ import annotations

import logging

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.slicer import Slicer

log = logging.getLogger(__name__)


def halt(node: Node, slicer: Slicer, resident: Resident, why: str) -> None:
    """Freeze all of a job now."""
    resident.words.halted_ns = node.clock.mono()
    node.note("halt", resident, why=why, state=resident.state)
    log.warning("job %s: frozen: %s", resident.key, why)
    stand_still(slicer, resident)
    slicer.fill()


def stand_still(slicer: Slicer, resident: Resident) -> None:
    """Bring a halted job to a stand, in whatever state it is."""
    if resident.state == SUSPENDED:
        slicer.switcher.shut(resident)
        slicer.switcher.keep_still(resident)
    else:
        slicer.switcher.freeze(resident, at_once=True)


def go_on(node: Node, slicer: Slicer, resident: Resident) -> None:
    """It was not started elsewhere: it has turns again."""
    node.note("unhalt", resident, after_s=(node.clock.mono() - resident.halted_ns) // 1_000_000_000)
    log.info("job %s: goes on: it was not started elsewhere", resident.key)
    resident.words.halted_ns = 0
    if resident.is_trusted and not resident.is_frozen:
        slicer.switcher.thaw(resident)
    node.save()
    slicer.fill()
