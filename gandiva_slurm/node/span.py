"""The parts of spans, jobs of several nodes: the controller's orders, and the bounds without it.

Which spans hold GPUs is decided for all their nodes at once, by the controller; its orders (`model.span`)
come one by one and are answered when they are fulfilled. Every wait for the next one has a bound: when the
controller is dead or cut off, what holds or has released goes on, and nobody's GPUs are given on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from gandiva_slurm.model import span as words
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import SUSPENDED, SUSPENDING
from gandiva_slurm.model.span import MISS, NO, ORDERS, STALE
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.leaving import has_floor
from gandiva_slurm.node.part import IN, has_ended, has_missed, held_time, notice, phase_of, stand_of
from gandiva_slurm.node.parting import Parting
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.wire.span import LONGEST_WAIT_MS, SpanAnswer, SpanOrder

#: Bounds are looked at so often: while a part waits for an order, and else.
BUSY_LOOK_S, LOOK_S = 0.05, 0.25
#: What ended residents had held is told for so long.
_PAST_NS = 600_000_000_000
_MS = 1_000_000

log = logging.getLogger(__name__)


class Spans:
    """Obeys orders about spans; `run` keeps their bounds."""

    def __init__(self, node: Node, slicer: Slicer) -> None:
        self._node = node
        self._slicer = slicer
        self._parting = Parting(node, slicer)
        #: the newest order to the whole node
        self._newest = (0, 0)
        self._lease_end_ns = 0
        self._acts: dict[str, Callable[[Resident, SpanOrder], str]] = {
            words.RESERVE: self._parting.reserve,
            words.UNRESERVE: self._parting.unreserve,
            words.GO: self._parting.go,
            words.AIM: self._parting.aim,
            words.COMMIT: self._parting.commit,
            words.FREEZE: self._parting.freeze,
            words.FREE: self._parting.free,
            words.RUN: self._parting.run,
        }

    async def run(self) -> None:
        """Keep the bounds, for ever."""
        if self._node.lease_ns:
            self._lease_end_ns = self._node.clock.mono() + self._node.lease_ns
        while True:
            phases = [phase_of(resident) for resident in self._parts()]
            is_quiet = all(phase in (words.OFF, words.ON) for phase in phases)
            await asyncio.sleep(LOOK_S if is_quiet else BUSY_LOOK_S)
            self.look()

    async def take(self, order: SpanOrder) -> SpanAnswer:
        """Obey an order and answer when it is fulfilled, refused, or its wait is over."""
        node = self._node
        if order.node != node.settings.node:
            raise PeerError(f"this is node {node.settings.node}, the order is for {order.node}")
        if order.what not in ORDERS:
            raise PeerError(f"unknown order {order.what!r}; update the older of the two daemons")
        node.contact_ns = node.voice_ns = node.clock.mono()
        if node.plan is not None and order.epoch_ns < node.plan.epoch_ns:
            return self._answer(order, STALE, "a newer controller has this node", None)
        if order.what in (words.GATHER, words.ROUND):
            return self._take_whole(order)
        resident = node.residents.get(order.key)
        if resident is None or resident.part is None or resident.is_ending:
            return self._answer(order, NO, f"no part of job {order.key} is here", None)
        return await self._take_part(order, resident)

    def look(self) -> None:
        """Act upon every bound that is over."""
        now = self._node.clock.mono()
        if self._lease_end_ns and now >= self._lease_end_ns:
            self._lease_end_ns = 0
            self._end_lease()
        is_waiting = False
        for resident in self._parts():
            if not resident.is_ending:
                self._parting.keep_bound(resident, now)
                is_waiting = is_waiting or phase_of(resident) == words.RESERVED
        if is_waiting:
            # Who could not be asked to park before can be now, perhaps.
            self._slicer.fill()

    def _take_whole(self, order: SpanOrder) -> SpanAnswer:
        number = (order.epoch_ns, order.seq)
        if number < self._newest:
            return self._answer(order, STALE, "a newer order was obeyed", None)
        is_new, self._newest = number > self._newest, number
        if order.what == words.ROUND and is_new:
            self._round(order)
        self._slicer.charge(self._node.clock.mono())
        return self._answer(order, "", "", None)

    def _round(self, order: SpanOrder) -> None:
        node = self._node
        told = {JobKey(job_id, restart): where for job_id, restart, where in order.spans}
        for resident in self._parts():
            where = told.get(resident.key, "")
            if where and resident.part is not None:
                resident.part.word = where
                self._parting.place(resident, where)
        node.lease_ns = order.lease_ms * _MS
        self._lease_end_ns = node.clock.mono() + node.lease_ns if node.lease_ns else 0
        self._slicer.round()
        for resident in self._parts():
            notice(resident, node.clock.mono())

    def _end_lease(self) -> None:
        """The controller is silent: what is on stays, and what it wanted on comes, as on every other node.

        A span that was to be out stays parked unless it was told to come back: it may share GPUs with
        another one on some other node, and half a gang that trains without the rest is worse than none.
        """
        names = []
        for resident in self._parts():
            part = resident.part
            assert part is not None
            if resident.state != SUSPENDED:
                part.wish = part.wish if resident.state == SUSPENDING else IN
            elif part.word in (words.IN, words.STAY, words.BACK) and not self._meets_other(resident):
                part.wish = IN
                names.append(str(resident.key))
        if self._parts():
            log.warning(
                "no round of the controller came in time; what comes in by itself: %s",
                ", ".join(names) or "nothing",
            )
            self._node.events.write("lease_over", jobs=names)
        self._slicer.fill()

    def _meets_other(self, resident: Resident) -> bool:
        others = [r for r in self._parts() if r is not resident and r.part is not None]
        wanted = [r for r in others if r.holds or (r.part is not None and r.part.wish == IN)]
        return any(set(other.gpus) & set(resident.gpus) for other in wanted)

    async def _take_part(self, order: SpanOrder, resident: Resident) -> SpanAnswer:
        part = resident.part
        assert part is not None
        number = (order.epoch_ns, order.seq)
        is_new = number > (part.epoch_ns, part.seq)
        if not part.obey(*number):
            return self._answer(order, STALE, "a newer order was obeyed", resident)
        refusal = self._acts[order.what](resident, order) if is_new else ""
        notice(resident, self._node.clock.mono())
        if refusal:
            return self._answer(order, NO, refusal, resident)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + min(order.wait_ms, LONGEST_WAIT_MS) / 1000
        verdict = self._verdict(order, resident)
        while verdict is None and loop.time() < end_s:
            part.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await part.news.wait()
            verdict = self._verdict(order, resident)
        return self._answer(order, *(verdict or (words.LATE, "not yet")), resident)

    def _verdict(self, order: SpanOrder, resident: Resident) -> tuple[str, str] | None:
        """Return what to answer now as (code, why), None while the order is under way."""
        part = resident.part
        assert part is not None
        if self._node.residents.get(resident.key) is not resident or resident.is_ending:
            return NO, f"job {resident.key} has ended here"
        if (part.epoch_ns, part.seq) != (order.epoch_ns, order.seq):
            return STALE, "a newer order was obeyed"
        phase, want = phase_of(resident), ORDERS[order.what][1]
        if phase == want or (order.what, phase) == (words.RESERVE, words.ON):
            return "", ""
        error = stand_of(resident, self._node.settings, 0).error
        if order.what == words.AIM:
            if has_missed(resident):
                return NO if has_ended(resident) else MISS, error
            return None if phase == words.AIMING else (NO, error or f"the part is {phase}")
        if order.what == words.RESERVE and phase == words.RESERVED:
            blocker = self._parting.blocker(resident)
            return (NO, blocker) if blocker else None
        if phase in _ON_THE_WAY[order.what]:
            return None
        error = resident.leave.error if order.what == words.COMMIT and resident.leave.error else error
        return NO, error or f"the part is {phase}"

    def _answer(self, order: SpanOrder, code: str, why: str, resident: Resident | None) -> SpanAnswer:
        node, now = self._node, self._node.clock.mono()
        is_whole = order.what in (words.GATHER, words.ROUND)
        told = self._parts() if is_whole else [resident] if resident is not None else []
        here = [job for job in told if node.residents.get(job.key) is job]
        node.past = {key: row for key, row in node.past.items() if now - row[1] < _PAST_NS}
        own = node.residents.values()
        held = [held_time(job, node.settings, now, has_floor(node, job)) for job in own]
        held += [row for row, _ in node.past.values()]
        return SpanAnswer(
            node=node.settings.node,
            boot=node.ledger.boot,
            epoch_ns=order.epoch_ns,
            seq=order.seq,
            ok=not code,
            code=code,
            why=why,
            parts=tuple(stand_of(job, node.settings, now) for job in here),
            held=tuple(held) if order.what == words.GATHER else (),
        )

    def _parts(self) -> list[Resident]:
        return [resident for resident in self._node.residents.values() if resident.part is not None]


#: Order → phases from which it still arrives where it is to.
_ON_THE_WAY: dict[str, tuple[str, ...]] = {
    words.RESERVE: (),
    words.UNRESERVE: (),
    words.GO: (words.READY,),
    words.COMMIT: (words.RELEASING,),
    words.FREEZE: (words.FREEZING,),
    words.FREE: (),
    words.RUN: (),
}
