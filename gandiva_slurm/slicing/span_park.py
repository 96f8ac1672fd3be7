"""How one span changes hands: the controller's half of hold, commit, free over nodes (ADR 0015). Pure.

    out:  AIM ─ all hold ─► COMMIT ─ all released ─► FREE ─► off          (no client: FREEZE ─► FREE)
           └ a miss: AIM again, further ahead; five times at most         (refuses for too long: the same)
    in:   RESERVE ─ all ready ─► GO ─► on                                 (not all: UNRESERVE ─► off)
    whatever fails before FREE: RUN to all ─► on, for nothing was given away
    torn, and its rest can never come in: FREEZE what is on ─► FREE ─► off
    to be moved: out, and between COMMIT and `released` every rank saves itself

A stage is one order to each of its nodes; it is over when all have fulfilled it or one has failed it. The
driver sends what it is given, and tells of each order once how it ended: `answered` or `lost`. `tick` now and
then renews the bounds that nodes keep by themselves. `outcome` says where the span is when all is done; what
was lost on the way is left to the next round, which asks every node how its part stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gandiva_slurm.model.span import (
    AIM,
    AIMING,
    COMMIT,
    FREE,
    FREEZE,
    FREEZING,
    GO,
    HOLDING,
    IN,
    LATE,
    LEAVE,
    MISS,
    OFF,
    ON,
    ORDERS,
    OUT,
    RELEASED,
    RELEASING,
    RESERVE,
    RUN,
    UNRESERVE,
    PartStand,
)
from gandiva_slurm.slicing.domains import has_all_ranks, is_solo

#: Aims that may be missed in one park, and times an order that got lost is sent again.
MAX_REAIMS, MAX_RESENDS = 5, 3
#: Before anything is measured: a step.
FIRST_STEP_NS = 10_000_000
#: The next boundary will do when a step is so many times longer than an order is under way.
NEXT_IS_SAFE = 20
#: Never aim further ahead than this.
WIDEST_MARGIN = 128
#: All ranks hold within this long of the time the aim should take, or four steps: else aim again.
HOLD_NS, HOLD_STEPS = 250_000_000, 4
#: How often an order that may take long is repeated: it renews the bounds of parts that wait for slower ones,
#: and reaches one that it got lost to while that still holds.
RENEW_NS = 1_000_000_000
#: How long an order that is done at once may take, and a taking back, which waits for ranks that release.
PROMPT_NS, BACK_NS = 1_000_000_000, 5_000_000_000
#: Where a span may end up beside ON and OFF.
TORN = "torn"
#: Phases of a part in mid-turn.
MOVING = frozenset((AIMING, HOLDING, RELEASING, FREEZING, RELEASED))
_RENEWED = frozenset((COMMIT, RESERVE))


class Stood(NamedTuple):
    """How a part stood, by an answer to a question that was sent at `asked_ns`."""

    part: PartStand
    asked_ns: int


class Send(NamedTuple):
    """An order to be sent to a node. `number` names it in `answered` and `lost`."""

    number: int
    node: str
    what: str
    at: int
    wait_ns: int
    saves: bool = False
    comes_back: bool = False


class Mark(NamedTuple):
    """A stage and when it began, for the record."""

    stage: str
    at_ns: int


@dataclass(frozen=True)
class MoveSettings:
    """`rtt_ns`: an order and its answer, smoothed; `deadline_ns`: the longest clearing, aiming, releasing.

    `save_ns`: how much longer a release may take before which the ranks save themselves.
    """

    deadline_ns: int = 30_000_000_000
    rtt_ns: int = 5_000_000
    save_ns: int = 300_000_000_000


class SpanMove:
    """One change of hands, or the mending of one that another controller left."""

    def __init__(
        self,
        stood: Mapping[str, Stood],
        to: str,
        settings: MoveSettings,
        *,
        freezes: bool = False,
        saves: bool = False,
    ) -> None:
        """`stood`: all parts, by node; `to`: IN or OUT; `freezes`: out unasked; `saves`: out to be moved."""
        self.nodes = tuple(stood)
        self.to = to
        self.settings = settings
        self.freezes = freezes
        self.saves = saves
        #: once it is out, and the controller silent, it may come in by itself: as the last round has it
        self.comes_back = False
        self.stood = dict(stood)
        self.stage = ""
        self.outcome = ""
        self.error = ""
        #: the boundary aimed at, how far ahead that was, and how often it was missed
        self.at = self.margin = self.reaims = 0
        self.marks: list[Mark] = []
        self._number = self._resends = self._misses = 0
        self._open: dict[str, Send] = {}
        self._done: set[str] = set()
        self._targets: tuple[str, ...] = ()
        self._renewed_ns = 0
        self._is_torn = False

    @property
    def kind(self) -> str:
        """What its end says of the span: IN, OUT, FREEZE, or LEAVE where not all of it has saved itself."""
        if self.freezes:
            return FREEZE
        came = any(mark.stage == COMMIT for mark in self.marks)
        has_saved = all(stood.part.has_saved for stood in self.stood.values())
        return LEAVE if self.saves and came and not has_saved else self.to

    def begin(self, now_ns: int) -> list[Send]:
        """Return the first orders."""
        parts = [stood.part for stood in self.stood.values()]
        moving = [node for node in self.nodes if self._phase(node) in MOVING]
        if moving:
            return self._enter(RUN, moving, now_ns)
        if self.to == IN:
            return self._reserve(now_ns)
        holders = [node for node in self.nodes if self._phase(node) == ON]
        if self.freezes or len(holders) < len(self.nodes) or not has_all_ranks(parts):
            # Without a client, or with half of its ranks parked, it comes to no boundary; or it refuses to.
            return self._enter(FREEZE, holders, now_ns)
        return self._aim(now_ns)

    def answered(
        self, number: int, is_ok: bool, code: str, why: str, stood: Stood | None, now_ns: int
    ) -> list[Send]:
        """An order was answered."""
        order = self._close(number)
        if stood is not None and order is not None:
            self.stood[order.node] = stood
        if order is None or self.outcome:
            return []
        if is_ok and self._is_there(order):
            self._done.add(order.node)
            return self._next(now_ns) if self._done.issuperset(self._targets) else []
        return self._failed(order, code or MISS, why or f"{order.what} was not done", now_ns)

    def lost(self, number: int, why: str, now_ns: int) -> list[Send]:
        """An order got no answer: whether it was obeyed is not known."""
        order = self._close(number)
        return [] if order is None or self.outcome else self._failed(order, "", why, now_ns)

    def tick(self, now_ns: int) -> list[Send]:
        """Repeat an order that takes long to all, or give it up."""
        if self.outcome or self.stage not in _RENEWED or now_ns - self._renewed_ns < RENEW_NS:
            return []
        if now_ns - self.marks[-1].at_ns > self._deadline_ns():
            why = f"not all had done {self.stage} within {self._deadline_ns() / 1e9:g} s"
            return self._back(why, now_ns) if self.stage == COMMIT else self._unreserve(why, now_ns)
        self._renewed_ns = now_ns
        self._done.clear()
        return [self._send(node) for node in self._targets]

    def _close(self, number: int) -> Send | None:
        """The order of this number, if it is the last one to its node."""
        found = [order for order in self._open.values() if order.number == number]
        return self._open.pop(found[0].node) if found else None

    def _is_there(self, order: Send) -> bool:
        """A node that says yes must also show it: where its part is, and which boundary it holds at."""
        part = self.stood[order.node].part
        if order.what == RESERVE and part.phase == ON:
            return True
        return part.phase == ORDERS[order.what][1] and (order.what != AIM or part.at == order.at)

    def _next(self, now_ns: int) -> list[Send]:
        """All have fulfilled the stage."""
        if self.stage == AIM:
            return self._enter(COMMIT, self.nodes, now_ns)
        if self.stage in (COMMIT, FREEZE):
            return self._enter(FREE, self._targets, now_ns)
        if self.stage == RESERVE:
            return self._enter(GO, self._targets, now_ns)
        if self.stage == RUN and not self.error and any(self._phase(node) != ON for node in self.nodes):
            # What was found in mid-turn runs again; the others follow.
            return self._reserve(now_ns)
        whole = OFF if self.stage in (FREE, UNRESERVE) else ON
        return self._end(whole if all(self._phase(node) == whole for node in self.nodes) else TORN, now_ns)

    def _failed(self, order: Send, code: str, why: str, now_ns: int) -> list[Send]:
        """One has not: `code` is empty when it did not answer."""
        if self.stage == AIM:
            is_late = now_ns - self.marks[0].at_ns > self.settings.deadline_ns
            is_lost = code not in (MISS, LATE) or self.reaims >= MAX_REAIMS or is_late
            return self._back(why, now_ns) if is_lost else self._aim_again(code, why, now_ns)
        if self.stage in (COMMIT, FREEZE):
            return self._back(why, now_ns)
        if self.stage == RESERVE:
            return self._unreserve(why, now_ns)
        if self.stage == GO and code:
            # Its GPUs were not clear any more: the others have begun, and wait for it.
            self._resends += 1
            return self._reserve(now_ns) if self._resends <= MAX_RESENDS else self._tear(order, why, now_ns)
        if self.stage in (GO, FREE, RUN) and code in ("", LATE) and self._resends < MAX_RESENDS:
            self._resends += 1
            return [self._send(order.node)]
        return self._tear(order, why, now_ns)

    def _tear(self, order: Send, why: str, now_ns: int) -> list[Send]:
        """It cannot be made to; the others are seen through, and the next round looks at all of them."""
        self.error = self.error or f"{order.node}: {why}"
        self._is_torn = self.stage != UNRESERVE
        self._done.add(order.node)
        return self._next_or_end(now_ns) if self._done.issuperset(self._targets) else []

    def _next_or_end(self, now_ns: int) -> list[Send]:
        return self._end(TORN, now_ns) if self._is_torn else self._next(now_ns)

    def _aim(self, now_ns: int) -> list[Send]:
        parts = [stood.part for stood in self.stood.values()]
        if is_solo(parts):
            self.at = self.margin = 0
        else:
            first = margin(self.stood.values(), self.settings.rtt_ns, now_ns)
            self.margin = min(first << self._misses, WIDEST_MARGIN)
            self.at = max(part.max_seq for part in parts) + self.margin
        return self._enter(AIM, self.nodes, now_ns)

    def _aim_again(self, code: str, why: str, now_ns: int) -> list[Send]:
        """A boundary that was passed is aimed past; one that is not reached yet is waited for again."""
        self.reaims += 1
        self.marks.append(Mark(f"{code}: {why}", now_ns))
        if code == LATE:
            return self._enter(AIM, self.nodes, now_ns)
        self._misses += 1
        return self._aim(now_ns)

    def _back(self, why: str, now_ns: int) -> list[Send]:
        """Nothing was given away yet: all run on, and the park has failed."""
        self.error = why
        return self._enter(RUN, self._targets, now_ns)

    def _reserve(self, now_ns: int) -> list[Send]:
        missing = [node for node in self.nodes if self._phase(node) != ON]
        return self._enter(RESERVE, missing, now_ns) if missing else self._end(ON, now_ns)

    def _unreserve(self, why: str, now_ns: int) -> list[Send]:
        self.error = why
        if any(self._phase(node) == ON for node in self.nodes):
            # Some run and wait for the rest: their GPUs are asked for again in the next round.
            return self._end(TORN, now_ns)
        return self._enter(UNRESERVE, self._targets, now_ns)

    def _enter(self, stage: str, nodes: Iterable[str], now_ns: int) -> list[Send]:
        self.stage, self._targets = stage, tuple(nodes)
        self.marks.append(Mark(stage, now_ns))
        self._done, self._open, self._renewed_ns = set(), {}, now_ns
        self._resends = self._resends if stage in (GO, RESERVE) else 0
        return [self._send(node) for node in self._targets]

    def _send(self, node: str) -> Send:
        self._number += 1
        at = self.at if self.stage in (AIM, COMMIT) else 0
        saves = self.saves and self.stage == AIM
        comes_back = self.comes_back and self.stage == FREE
        self._open[node] = Send(self._number, node, self.stage, at, self._wait_ns(), saves, comes_back)
        return self._open[node]

    def _wait_ns(self) -> int:
        if self.stage == AIM:
            slowest = max((stood.part.step_ns for stood in self.stood.values()), default=0) or FIRST_STEP_NS
            once_ns = (self.margin + 1) * slowest + max(HOLD_NS, HOLD_STEPS * slowest)
            left_ns = self.settings.deadline_ns - (self.marks[-1].at_ns - self.marks[0].at_ns)
            return max(once_ns, min(once_ns << self.reaims - self._misses, left_ns))
        if self.stage in _RENEWED:
            return self._deadline_ns()
        return BACK_NS if self.stage in (RUN, FREEZE) else PROMPT_NS

    def _deadline_ns(self) -> int:
        save_ns = self.settings.save_ns if self.saves and self.stage == COMMIT else 0
        return self.settings.deadline_ns + save_ns

    def _end(self, outcome: str, now_ns: int) -> list[Send]:
        self.outcome = outcome
        self.marks.append(Mark(outcome, now_ns))
        return []

    def _phase(self, node: str) -> str:
        return self.stood[node].part.phase


def margin(stood: Iterable[Stood], rtt_ns: int, now_ns: int) -> int:
    """Return how many boundaries ahead of the fastest rank to aim at first.

    Between a node's look at its pages and the aim in all of them lie the age of its answer, the way of an
    order, and the writing; what the ranks pass meanwhile must lie before the aim. They go in step, so the
    freshest answer speaks for all, at a pace between the fastest step of late and the slowest.
    """
    known = list(stood)
    spread_ns = max((at.part.spread_ns for at in known), default=0)
    late_ns = min((now_ns - at.asked_ns for at in known), default=0) + rtt_ns + spread_ns
    fastest = min((at.part.fast_ns for at in known), default=0) or FIRST_STEP_NS
    slowest = max((at.part.step_ns for at in known), default=0) or FIRST_STEP_NS
    pace_ns = math.isqrt(fastest * slowest)
    if pace_ns >= NEXT_IS_SAFE * late_ns:
        return 1
    return min(2 + -(-late_ns // pace_ns), WIDEST_MARGIN)


def move_wanted(phases: Iterable[str], where: str) -> str:
    """Return which move takes a span from these phases of its parts to `where`: IN, OUT, or "" for none.

    What is in mid-turn without a move of ours was left by another controller, or by a part that came back by
    itself: all of it runs first.
    """
    found = set(phases)
    if found & MOVING:
        return IN
    if ON in found:
        return OUT if where == OUT else IN if len(found) > 1 else ""
    return "" if where == OUT else IN
