"""A node's part of a span within `tests.span_explorer`: what gandivad does with orders, and by itself.

Time is reduced to "not yet" and "too late": whatever a bound may do, it may do at any moment. `spoiled`
switches a rule off, so that a test can see the explorer catch what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gandiva_slurm.model.span import (
    AIM,
    AIMING,
    COMMIT,
    FREE,
    FREEZE,
    GO,
    HOLDING,
    LATE,
    MISS,
    NO,
    OFF,
    ON,
    ORDERS,
    READY,
    RELEASED,
    RELEASING,
    RESERVE,
    RESERVED,
    RUN,
    UNRESERVE,
)

#: `at` of a part whose aim is lost, or that could not release.
LOST = -1
WITHOUT = (OFF, RESERVED, READY)


class Order(NamedTuple):
    """An order under way, or waiting to be fulfilled."""

    seq: int
    what: str
    at: int = 0


class Part(NamedTuple):
    """One part. `has_held` and `has_released` tell what it has done since its last aim."""

    phase: str = ON
    at: int = 0
    seen: int = 0
    waits: Order | None = None
    has_held: bool = False
    has_released: bool = False


class Did(NamedTuple):
    """What a part did: itself after it, the answer if one goes out (seq, code), what must be judged."""

    part: Part
    answer: tuple[int, str] | None = None
    deed: str = ""


def obey(part: Part, order: Order, spoiled: str) -> Iterator[Did]:
    """An order arrives."""
    if order.seq < part.seen and spoiled != "stale orders are obeyed":
        yield Did(part)
        return
    part = part._replace(seen=max(order.seq, part.seen), waits=order)
    if order.what == AIM and part.phase in (ON, AIMING, HOLDING):
        part = part._replace(phase=AIMING, at=order.at, has_held=False, has_released=False)
        yield Did(part)
        yield _lose(part)
        return
    moved, deed = _move(part, order)
    if moved is None:
        yield _answer(part, NO)
        return
    yield from settle(moved, deed)


def settle(part: Part, deed: str = "") -> Iterator[Did]:
    """Answer the order that waits if it is fulfilled now, or cannot be any more."""
    order = part.waits
    if order is None or (order.what == RUN and part.phase == RELEASING):
        yield Did(part, None, deed)
    elif part.phase == ORDERS[order.what][1] or (order.what == RESERVE and part.phase == ON):
        yield _answer(part, "", deed)
    elif (order.what, part.phase) in ((AIM, AIMING), (COMMIT, RELEASING), (RESERVE, RESERVED)):
        yield Did(part, None, deed)
    else:
        yield _answer(part, NO, deed)


def by_itself(part: Part, may_hold: bool, is_cut: bool, spoiled: str) -> Iterator[Did]:
    """All that may happen to a part without an order. `may_hold`: the other ranks let these reach `at`."""
    if part.waits is not None:
        yield _answer(part, LATE)
    if part.phase == RESERVED:
        yield from settle(part._replace(phase=READY))
    elif part.phase == AIMING:
        if part.at != LOST:
            yield _lose(part)
            if may_hold:
                yield from settle(part._replace(phase=HOLDING, has_held=True))
    elif part.phase == RELEASING:
        yield from _released(part, spoiled)
    if spoiled != "no bounds":
        yield from _bounds(part)
        if is_cut and part.phase in WITHOUT:
            yield from settle(part._replace(phase=ON, at=0))


def restart(part: Part) -> Part:
    """gandivad is killed and comes back: what is parked stays so, anything in mid-turn runs."""
    phase = OFF if part.phase in WITHOUT else ON
    return part._replace(phase=phase, at=0, waits=None)


def _move(part: Part, order: Order) -> tuple[Part | None, str]:
    phase, what = part.phase, order.what
    if what == RESERVE and phase in (*WITHOUT, ON):
        return (part._replace(phase=RESERVED) if phase == OFF else part), ""
    if what == UNRESERVE and phase in WITHOUT:
        return part._replace(phase=OFF), ""
    if what == GO and phase in (READY, ON):
        return part._replace(phase=ON, at=0), ""
    if what == COMMIT and ((phase == HOLDING and order.at == part.at) or phase in (RELEASING, RELEASED)):
        return (part._replace(phase=RELEASING), COMMIT) if phase == HOLDING else (part, "")
    if what == FREEZE and phase in (ON, AIMING, HOLDING, RELEASED):
        return part._replace(phase=RELEASED, has_released=True), ""
    if what == FREE and phase in (RELEASED, OFF):
        return part._replace(phase=OFF, at=0), FREE if phase == RELEASED else ""
    if what == RUN and phase not in WITHOUT:
        return (part if phase == RELEASING else part._replace(phase=ON, at=0)), ""
    return None, ""


def _released(part: Part, spoiled: str) -> Iterator[Did]:
    if part.at == LOST:
        return
    if part.waits is not None and part.waits.what == RUN:
        yield from settle(part._replace(phase=ON, at=0))
        return
    after = part._replace(phase=RELEASED, has_released=True)
    if spoiled == "GPUs are given on at once":
        yield from settle(after._replace(phase=OFF), FREE)
    else:
        yield from settle(after)
    yield _answer(part._replace(at=LOST), NO)


def _bounds(part: Part) -> Iterator[Did]:
    """What a silent controller leads to, sooner or later."""
    if part.phase in (AIMING, HOLDING, RELEASED) or (part.phase == RELEASING and part.at == LOST):
        yield from settle(part._replace(phase=ON, at=0))
    elif part.phase in (READY, RESERVED):
        yield from settle(part._replace(phase=OFF))


def _lose(part: Part) -> Did:
    return _answer(part._replace(at=LOST), MISS)


def _answer(part: Part, code: str, deed: str = "") -> Did:
    if part.waits is None:
        return Did(part, None, deed)
    return Did(part._replace(waits=None), (part.waits.seq, code), deed)
