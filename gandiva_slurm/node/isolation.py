"""Fencing by silence: a node that hears neither controller nor slurmctld stops its jobs (ADR 0003).

Slurm sets such a node down after SlurmdTimeout and may start its jobs elsewhere; two incarnations of one
job must not write the same checkpoints. Where the site does not ask for it nothing is stopped: plain Slurm
jobs run on as well. What cannot be asked counts as there: a node on which `scontrol` fails is not alone.
"""

from __future__ import annotations

import asyncio

from gandiva_slurm.node.context import Node
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.slurm.port import SlurmPort

#: How often the silence is looked at, and slurmctld asked while the controller is silent.
LOOK_S = 5.0


class Isolation:
    """Asks slurmctld for a sign of life while the controller is silent."""

    def __init__(self, node: Node, watcher: Watcher, slurm: SlurmPort, look_s: float = LOOK_S) -> None:
        self._node = node
        self._watcher = watcher
        self._slurm = slurm
        self._look_s = look_s
        self._heard_ns = node.clock.mono()
        self._bound_ns = node.settings.isolation_ns

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._look_s)
            if self._bound_ns:
                await self._look(self._bound_ns)

    async def _look(self, bound_ns: int) -> None:
        node = self._node
        pause_ns = round(3 * self._look_s * 1e9)
        if not node.residents or node.clock.mono() - node.contact_ns < pause_ns:
            return
        if await self._slurm.ping() is not False:
            self._heard_ns = node.clock.mono()
        silent_ns = node.clock.mono() - max(self._heard_ns, node.contact_ns)
        if silent_ns <= bound_ns:
            return
        seconds = silent_ns // 1_000_000_000
        for resident in [r for r in node.residents.values() if not r.is_ending]:
            self._watcher.abandon(resident, f"neither gandivactld nor slurmctld was heard for {seconds} s")
