"""The fast clock: at a quantum's end, and when something changes, who holds the GPUs next (ADR 0009).

Everything is charged by the time it was held. What is chosen and must wait for its GPUs is `wanted` until
the last of them is free; what cannot be taken from its holder now stays, is charged as overrun, and the
rest is chosen around it. When all residents fit, all are chosen and nothing moves.

Spans, jobs of several nodes, are not chosen here: the controller forces their parts in and out (`span`), its
rounds are the quantum's end, and the local gangs are chosen around them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import leading, packs
from gandiva_slurm.node.charging import LEAD_NS, charge, due_ns
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.leaving import has_floor, is_out
from gandiva_slurm.node.memory import is_unseen, lack
from gandiva_slurm.node.part import IN, notice
from gandiva_slurm.node.switch import MS, Switcher
from gandiva_slurm.slicing.starvation import Starving

#: With nobody here there is nothing to wake for.
_IDLE_NS = 3600_000 * MS


class Slicer:
    """Decides for one node; `run` keeps the quantum, everything else calls `fill`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.switcher = Switcher(node, self.fill)
        self.wanted: list[JobKey] = []
        self.quantum_end_ns = 0
        #: when the controller's last round ended a quantum here
        self.round_ns = 0
        self._decided_ns = 0
        self._starving: Starving[JobKey] = Starving()
        self._alarm = asyncio.Event()

    async def run(self) -> None:
        """Decide at each quantum's end, and before a park's bound, for ever."""
        while True:
            self._alarm.clear()
            left_ns = self._next_ns() - self._node.clock.mono()
            if left_ns <= 0:
                self.quantum()
                continue
            # wait_for would lose a cancellation that comes together with the alarm.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_ns / 1e9):
                    await self._alarm.wait()

    def quantum(self) -> None:
        """A quantum has ended: charge, level the passes, choose anew."""
        node, now = self._node, self._node.clock.mono()
        self.charge(now)
        leading.look(node, now)
        node.local.settle()
        self._decided_ns, self.quantum_end_ns = now, self._end_ns(now)
        for resident in node.residents.values():
            resident.pause_quanta = max(0, resident.pause_quanta - 1)
            resident.leave.rest_quanta = max(0, resident.leave.rest_quanta - 1)
        runnable, overdue = self._runnable(), self._overdue(now)
        yielding = [resident.key for resident in node.holders()]
        forced = self._forced()
        on_merit = node.local.choose(runnable, forced, overdue, yielding)
        for resident in node.holders():
            if resident.state != SUSPENDING:
                resident.overrun_from_ns = (
                    None if resident.key in on_merit else resident.overrun_from_ns or now
                )
        pinned = [*forced, *self._must_stay()]
        first = [*overdue, *self._starved(runnable, overdue)]
        chosen = node.local.choose(runnable, pinned, first, yielding)
        self._starving.note(node.local.waiters({*runnable, *chosen}), chosen)
        self._apply(chosen)
        if node.residents:
            node.save()
        self._alarm.set()

    def round(self) -> None:
        """The controller says that the quantum has ended; this node's own timer waits half a one longer."""
        self.round_ns = self._node.clock.mono()
        self.quantum()

    def fill(self) -> None:
        """Something changed within a quantum: give idle GPUs to whoever fits beside those that run.

        GPUs are taken away only for a span that is to come in, and from an opportunistic gang for a
        guaranteed one.
        """
        node, now = self._node, self._node.clock.mono()
        if not node.residents:
            self.wanted, self.quantum_end_ns = [], 0
            return
        self.charge(now)
        # The first to come begins a quantum; a plan may have made it shorter. One that is just over stays so.
        end_ns = self._end_ns(now)
        self.quantum_end_ns = min(self.quantum_end_ns or end_ns, end_ns)
        forced = self._forced()
        claimed = {gpu for key in forced for gpu in node.residents[key].gpus}
        stays, apart = set(self._must_stay()), packs.apart(node)
        kept = [
            resident
            for resident in node.holders()
            if not is_leaving(resident)
            and (resident.key in stays or not leading.must_go(node, resident))
            and (resident.key in stays or resident.key not in apart)
            and (resident.part or resident.key in stays or self._may_stay(resident, claimed))
        ]
        busy = claimed | {gpu for resident in kept for gpu in resident.gpus}
        wanted = [node.residents[key] for key in self.wanted if self._is_ready(key)]
        waiting = [r.key for r in wanted if r.part is None and busy.isdisjoint(r.gpus)]
        pinned = {*forced, *(resident.key for resident in kept), *waiting}
        runnable, overdue = self._runnable(), self._overdue(now)
        firm = {*forced, *stays, *(resident.key for resident in kept if resident.part)}
        pinned -= node.local.giving_way(runnable, firm, overdue, pinned)
        self._apply(node.local.choose(runnable, pinned, overdue))
        self._alarm.set()

    def look_again(self) -> None:
        """When to decide next may have changed."""
        self._alarm.set()

    def take_back(self, resident: Resident) -> None:
        """A parked gang trains again by itself (it heard no beat for too long): it holds its GPUs."""
        node, now = self._node, self._node.clock.mono()
        if resident.part is not None:
            resident.part.wish = IN
        self.switcher.grant(resident)
        self.switcher.thaw(resident)
        node.note("strayed", resident, now)
        node.save()
        for group in resident.sets:
            group.gang = None
            group.apply(group.form().adopt(group.views(), now))
        self.switcher.follow(resident)
        self.quantum_end_ns = min(self.quantum_end_ns, now + LEAD_NS)
        self._alarm.set()

    def _apply(self, chosen: Collection[JobKey]) -> None:
        node = self._node
        for resident in node.holders():
            is_asked = resident.state == RUNNING and resident.part is None
            if is_asked and resident.key not in chosen and not resident.is_ending:
                self.switcher.park(resident)
        self.wanted = [
            key for key in chosen if not node.residents[key].holds or is_leaving(node.residents[key])
        ]
        self._grant()

    def _grant(self) -> None:
        """Give those that wait their GPUs, all or none, once nobody else holds one of them."""
        node = self._node
        ready = []
        for key in self.wanted:
            resident = node.residents[key]
            is_clear = self._is_ready(key) and node.is_free(resident.gpus, key)
            if resident.part is not None:
                resident.part.is_clear = is_clear
            if is_clear and (resident.part is None or resident.part.wish == IN):
                self.switcher.grant(resident)
                ready.append(resident)
            notice(resident, node.clock.mono())
        if not ready:
            return
        self.wanted = [key for key in self.wanted if not node.residents[key].holds]
        node.save()
        for resident in ready:
            self.switcher.go(resident)
            notice(resident, node.clock.mono())

    def _is_ready(self, key: JobKey) -> bool:
        resident = self._node.residents.get(key)
        is_here = resident is not None and resident.state == SUSPENDED and resident.may_have_turns
        if resident is None or not is_here or resident.part is not None:
            return is_here
        if is_unseen(self._node, resident):
            self._node.look_soon.set()
            return False
        return not lack(self._node, resident)

    def charge(self, now: int) -> None:
        """Charge all that hold up to now."""
        for resident in self._node.holders():
            charge(self._node, resident, now)
        packs.measure(self._node, now)

    def _may_stay(self, resident: Resident, claimed: Collection[int]) -> bool:
        return not is_out(self._node, resident) and set(claimed).isdisjoint(resident.gpus)

    def _runnable(self) -> list[JobKey]:
        local = [r for r in self._node.residents.values() if r.may_have_turns and r.part is None]
        return [resident.key for resident in local if not self._is_out(resident)]

    def _is_out(self, resident: Resident) -> bool:
        is_short = not resident.holds and bool(lack(self._node, resident))
        return is_short or is_out(self._node, resident) or leading.is_out(self._node, resident)

    def _forced(self) -> list[JobKey]:
        """Return the spans whose parts hold their GPUs here, or are to."""
        spans = [r for r in self._node.residents.values() if r.part is not None and r.part.is_forced]
        return [resident.key for resident in spans if resident.may_have_turns]

    def _must_stay(self) -> list[JobKey]:
        wait_ns = self._node.settings.client_wait_ns
        own = [r for r in self._node.holders() if r.part is None and not is_leaving(r)]
        return [r.key for r in own if has_floor(self._node, r) or r.must_stay(wait_ns)]

    def _overdue(self, now: int) -> list[JobKey]:
        return [
            resident.key
            for resident in self._parked()
            if due_ns(self._node, resident) <= now or leading.must_save(self._node, resident)
        ]

    def _starved(self, runnable: Collection[JobKey], overdue: Collection[JobKey]) -> list[JobKey]:
        """Return those passed over for too long that come in no overdue gang's way, whose bound is kept."""
        residents = self._node.residents
        due = {gpu for key in overdue for gpu in residents[key].gpus}
        starved = [key for key in self._starving.starved() if key in runnable]
        return [key for key in starved if due.isdisjoint(residents[key].gpus)]

    def _parked(self) -> list[Resident]:
        """Return the local gangs that are parked, to come back; the bounds of spans are kept in `span`."""
        parked = [r for r in self._node.residents.values() if r.state == SUSPENDED and r.part is None]
        node, parked = self._node, [r for r in parked if not r.halted_ns]
        return [resident for resident in parked if not is_out(node, resident) and not lack(node, resident)]

    def _next_ns(self) -> int:
        """The next moment to decide at: the quantum's end, or a bound before it, once for each bound."""
        if not self._node.residents:
            return self._node.clock.mono() + _IDLE_NS
        dues = [due_ns(self._node, resident) for resident in self._parked()]
        late_ns = leading.late_ns(self._node)
        lates = [] if late_ns is None else [late_ns]
        return min([self.quantum_end_ns, *lates, *(due for due in dues if due > self._decided_ns)])

    def _end_ns(self, now: int) -> int:
        """When this quantum ends if nobody says so; a controller's round is waited for half one longer."""
        quantum_ns = self._node.local.quantum_ns
        led_until_ns = self.round_ns + quantum_ns * 3 // 2 if self.round_ns else 0
        return led_until_ns if led_until_ns > now else now + quantum_ns


def is_leaving(resident: Resident) -> bool:
    """True when its GPUs will be free soon: it parks, ends, or is a span that is told out."""
    is_told_out = resident.part is not None and not resident.part.is_forced
    return resident.state == SUSPENDING or resident.is_ending or is_told_out
