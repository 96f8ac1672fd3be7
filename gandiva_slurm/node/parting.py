"""What each order does to a part of a span, and what its node does when the next order does not come."""

from __future__ import annotations

from gandiva_slurm.model import span as words
from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node import leaving
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.part import IN, OUT, RESERVE, Part, notice, phase_of, trouble_of
from gandiva_slurm.node.slicer import Slicer, is_leaving
from gandiva_slurm.wire.span import SpanOrder

_PARKING = (words.AIMING, words.HOLDING, words.RELEASING, words.FREEZING, words.RELEASED)
_OUTSIDE = (words.OFF, words.RESERVED, words.READY)
_MS = 1_000_000


class Parting:
    """Moves parts. Each order returns why it is refused, "" when it is obeyed."""

    def __init__(self, node: Node, slicer: Slicer) -> None:
        self._node = node
        self._slicer = slicer
        self._switcher = slicer.switcher

    def place(self, resident: Resident, where: str) -> None:
        """Take a word of a round: the GPUs of what is to come in are cleared, what is on may be told out."""
        part, phase = _part(resident), phase_of(resident)
        if phase == words.ON:
            part.wish = OUT if where in (words.OUT, words.BACK) else IN
        elif phase in _OUTSIDE:
            self._wish(resident, RESERVE if where == words.IN else OUT)

    def reserve(self, resident: Resident, order: SpanOrder) -> str:
        """Clear its GPUs, or keep them clear for longer."""
        if phase_of(resident) not in _OUTSIDE:
            return "" if phase_of(resident) == words.ON else f"the part is {phase_of(resident)}"
        _part(resident).word = words.IN
        self._wish(resident, RESERVE)
        self._slicer.fill()
        return ""

    def unreserve(self, resident: Resident, order: SpanOrder) -> str:
        """Give its cleared GPUs back."""
        if phase_of(resident) not in _OUTSIDE:
            return f"the part is {phase_of(resident)}: it holds its GPUs"
        _part(resident).word = words.OUT
        self._wish(resident, OUT)
        self._slicer.fill()
        return ""

    def go(self, resident: Resident, order: SpanOrder) -> str:
        """Let it in: its GPUs are clear."""
        if phase_of(resident) not in (words.READY, words.ON):
            return f"the part is {phase_of(resident)}: its GPUs are not clear"
        _part(resident).word = words.IN
        self._wish(resident, IN)
        self._slicer.fill()
        return ""

    def aim(self, resident: Resident, order: SpanOrder) -> str:
        """Tell its ranks to hold at a boundary."""
        node, now, part = self._node, self._node.clock.mono(), _part(resident)
        is_first = resident.state == RUNNING
        if not is_first and phase_of(resident) not in (words.AIMING, words.HOLDING):
            return f"the part is {phase_of(resident)}"
        is_loose = all(group.world == 1 for group in resident.sets)
        if is_loose != (order.at == 0):
            return f"told to stop at boundary {order.at}: its ranks have a world of {resident.world}"
        refusal = trouble_of(resident) or ("" if resident.has_client() else "not all its ranks can be parked")
        if is_first and leaving.has_floor(node, resident):
            refusal = "it keeps its turn, to save itself upon its signal"
        if is_first and refusal:
            return refusal
        if is_first:
            leaving.order_tier(resident, order.saves and leaving.is_movable(resident))
            step_ms = self._switcher.begin(resident, now)
            node.note("park", resident, now, how="span", world=resident.world, step_ms=step_ms, margin=[])
        part.wish, part.at = OUT, order.at
        part.until_ns = now + order.wait_ms * _MS + words.HOLD_BOUND_NS
        wake_by_ns = now + node.settings.max_park_ns
        for group in resident.sets:
            group.apply(group.part_gang().aim(order.at, group.views(), now, wake_by_ns))
        resident.ordered_ns = now
        self._switcher.follow(resident)
        return ""

    def commit(self, resident: Resident, order: SpanOrder) -> str:
        """Let the ranks that hold release."""
        now, part, phase = self._node.clock.mono(), _part(resident), phase_of(resident)
        if phase == words.RELEASED:
            part.since_ns = now
        if phase in (words.RELEASING, words.RELEASED):
            return ""
        if phase != words.HOLDING or order.at not in (0, part.at):
            unsaved = resident.leave.error if phase == words.ON else ""
            return unsaved or f"the part is {phase} at boundary {part.at}: its ranks do not hold"
        for group in resident.sets:
            group.apply(group.part_gang().commit(group.views(), group.alive(), now))
        resident.ordered_ns = now
        return ""

    def freeze(self, resident: Resident, order: SpanOrder) -> str:
        """Stop all its processes."""
        if phase_of(resident) in (words.FREEZING, words.RELEASED):
            return ""
        if resident.state != RUNNING and phase_of(resident) not in (words.AIMING, words.HOLDING):
            return f"the part is {phase_of(resident)}"
        if leaving.has_floor(self._node, resident):
            return "it keeps its turn, to save itself upon its signal"
        _part(resident).wish = OUT
        self._switcher.freeze(resident)
        return ""

    def free(self, resident: Resident, order: SpanOrder) -> str:
        """All parts have released: its GPUs may be given on."""
        if phase_of(resident) == words.OFF:
            return ""
        if phase_of(resident) != words.RELEASED:
            return f"the part is {phase_of(resident)}: it has not released"
        _part(resident).word = words.BACK if order.comes_back else words.OUT
        self._switcher.give_on(resident)
        self._switcher.forget(resident)
        self._slicer.fill()
        self._node.save()
        return ""

    def run(self, resident: Resident, order: SpanOrder) -> str:
        """Let it go on: its GPUs were not given on."""
        phase = phase_of(resident)
        if phase in _OUTSIDE:
            return f"the part is {phase}: its GPUs were given on; it comes in by GO"
        _part(resident).wish, _part(resident).word = IN, words.STAY
        if phase in _PARKING:
            self._switcher.call_back(resident, self._why(resident, "it could not be parked on another node"))
        return ""

    def blocker(self, resident: Resident) -> str:
        """Say who has a GPU that this part waits for and cannot be asked for it now, "" if nobody."""
        wait_ns = self._node.settings.client_wait_ns
        for other in self._node.holders():
            stays = other.state == RUNNING and (other.part is not None or other.must_stay(wait_ns))
            if stays and not is_leaving(other) and set(other.gpus) & set(resident.gpus):
                return f"job {other.key} has one of its GPUs and cannot be parked now"
        return ""

    def keep_bound(self, resident: Resident, now: int) -> None:
        """Do what is due when the next order has not come within its bound."""
        part, phase = _part(resident), phase_of(resident)
        notice(resident, now)
        if resident.halted_ns:
            return
        age_ns = now - part.since_ns
        if phase == words.OFF and part.has_begun:
            self._keep_park_bound(resident, now)
        elif phase == words.READY and part.wish == RESERVE and age_ns > words.READY_BOUND_NS:
            self._unreserve_silently(resident, "no GO came")
        elif phase == words.RESERVED and part.wish == RESERVE and age_ns > 2 * self._deadline_ns:
            self._unreserve_silently(resident, "its GPUs were not given back by others")
        elif phase == words.AIMING and now > max(part.until_ns, part.since_ns + words.HOLD_BOUND_NS):
            self._call_back(resident, "its ranks found no boundary, and no other order came")
        elif phase == words.HOLDING and age_ns > words.HOLD_BOUND_NS:
            self._call_back(resident, "its ranks held, and no COMMIT came")
        elif phase == words.RELEASING and age_ns > leaving.park_deadline_ns(self._node, resident):
            self._call_back(resident, "its ranks did not release in time")
        elif phase == words.RELEASED and age_ns > words.RELEASED_BOUND_NS:
            self._call_back(resident, "its ranks had released, and no FREE came")

    @property
    def _deadline_ns(self) -> int:
        return self._node.settings.park_deadline_ns

    def _keep_park_bound(self, resident: Resident, now: int) -> None:
        """A park's end, whatever the controller says: it comes on as soon as no other span has its GPUs."""
        settings = self._node.settings
        if leaving.is_out(self._node, resident):
            return
        if now < resident.bound_ns(settings.max_park_ns, settings.freeze_bound_ns, settings.quantum_ns):
            return
        others = [r for r in self._node.residents.values() if r.part is not None and r is not resident]
        if any(r.part and r.part.is_forced and set(r.gpus) & set(resident.gpus) for r in others):
            return
        self._node.note("overdue", resident, now)
        self._wish(resident, IN)
        self._slicer.fill()

    def _unreserve_silently(self, resident: Resident, why: str) -> None:
        self._node.note("unreserve", resident, why=why)
        self._wish(resident, OUT)
        self._slicer.fill()
        notice(resident, self._node.clock.mono())

    def _call_back(self, resident: Resident, why: str) -> None:
        self._switcher.call_back(resident, self._why(resident, why))
        notice(resident, self._node.clock.mono())

    def _wish(self, resident: Resident, wish: str) -> None:
        part = _part(resident)
        part.wish, part.is_clear = wish, part.is_clear and wish != OUT
        if wish == RESERVE:
            part.since_ns = self._node.clock.mono()

    def _why(self, resident: Resident, otherwise: str) -> str:
        errors = [group.gang.last_error for group in resident.sets if group.gang is not None]
        return next(filter(None, errors), "") or otherwise


def _part(resident: Resident) -> Part:
    assert resident.part is not None
    return resident.part
