"""Frozen jobs until their next turn: they breathe, wake for signals, and pay for what they run.

A park may last an hour, and time-outs inside a job go on by the wall clock: every few seconds it is thawed
for a moment, in which the threads that watch its process groups see each other alive. A signal that a process
wants to catch (`scancel`, a time limit, `--signal`) wakes it for as long as Slurm waits before it kills; that
is charged like GPU time, and bounded, for anybody of the job's user may send one.
"""

from __future__ import annotations

import asyncio

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import procs
from gandiva_slurm.node.charging import charge_awake
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.switch import Switcher

#: A frozen job is thawed for a moment in every so many beats (one a second): 0.2 % of the time, not charged.
#: torchrun's agents tell each other that they live every 5 s, and give one up after 15 s.
BREATH_BEATS, BREATH_S = 5, 0.01
#: A job that is to end or to save itself may run for Slurm's own KillWait (30 s), in all its life here and
#: once more for each 20 times as long that it has held its GPUs.
WAKE_NS, HELD_FOR_MORE = 30_000_000_000, 20


class Rest:
    """Looks after frozen jobs, once a beat."""

    def __init__(self, node: Node, switcher: Switcher) -> None:
        self._node = node
        self._switcher = switcher
        self._beats = 0

    def begin_beat(self) -> None:
        """A second has passed."""
        self._beats += 1

    def look_at(self, resident: Resident, now: int) -> bool:
        """Look at a suspended job; False when it is not frozen by its group.

        One of which an image is made, or is there, is not woken: what it did would be done twice.
        """
        if resident.image.is_whole:
            self._switcher.keep_still(resident)
        if resident.image.keeps_still:
            return True
        if resident.awake_until_ns:
            self._look_at_awake(resident, now)
            return True
        if not resident.is_shut:
            return False
        if not self._node.freezer.stands_still(resident):
            # A step has come with a group of its own, or a process sits in the kernel, where it runs nothing.
            self._node.freezer.shut(resident)
        if self._may_wake(resident) and any(map(procs.has_caught, _heads(resident))):
            self._wake(resident, now)
        elif self._is_to_breathe(resident):
            self._breathe(resident)
        return True

    def _is_to_breathe(self, resident: Resident) -> bool:
        """True once in some beats for parked ranks; one that was frozen in mid-step would go on with it."""
        is_parked = bool(resident.ranks) and not resident.stopped and not resident.is_frozen
        return is_parked and self._beats % BREATH_BEATS == 0

    def _may_wake(self, resident: Resident) -> bool:
        counts = resident.counts
        return counts.awake_ns - counts.written_ns < WAKE_NS + counts.held_ns // HELD_FOR_MORE

    def _wake(self, resident: Resident, now: int) -> None:
        self._node.note("woken", resident, now, why="a signal waits that it wants to catch")
        self._switcher.wake(resident)
        resident.awake_from_ns, resident.awake_until_ns = now, now + WAKE_NS

    def _look_at_awake(self, resident: Resident, now: int) -> None:
        charge_awake(self._node, resident, now)
        if resident.is_writing:
            return  # `behind` looks at it
        if now >= resident.awake_until_ns or not self._may_wake(resident):
            self._switcher.shut(resident)
            self._node.note("asleep", resident, now)

    def _breathe(self, resident: Resident) -> None:
        self._node.freezer.open(resident)
        asyncio.get_running_loop().call_later(BREATH_S, self._breathed, resident)

    def _breathed(self, resident: Resident) -> None:
        is_here = self._node.residents.get(resident.key) is resident
        if is_here and resident.image.keeps_still:
            return
        if is_here and resident.state == SUSPENDED and not resident.awake_until_ns and not resident.is_ending:
            self._switcher.shut(resident)


def _heads(resident: Resident) -> set[int]:
    """The processes that Slurm's signals reach first, and those that train."""
    tasks = {pid for stepd in resident.processes.stepds for pid in procs.children(stepd.pid)}
    return tasks | {rank.proc.pid for rank in resident.ranks}
