"""The rank's half of the park protocol as a pure function (ADR 0007): no clock, no page, no waiting.

`advance` is called once when a boundary is reached and again after every effect, until it says GO:

    RUN, LEFT, FAILED ─ AIM here ─► HOLD ─ COMMIT ─► RELEASING ─► PARKED ─ newer order ─► RESTORING ─► RUN
                      └ AIM behind us: missed └ newer order: look at it as if we had just arrived
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    FAILED,
    HOLD,
    LEFT,
    PARKED,
    RELEASING,
    RESTORING,
    RUN,
    W_MISSED_GEN,
    W_STATE,
    W_STATE_GEN,
    W_STATE_SEQ,
    command_of,
    generation_of,
)

#: What to do next: train on; look again soon; give the device back; take it again.
GO, WAIT, RELEASE, RESTORE = 0, 1, 2, 3

#: A holding rank leaves when the node's beat is older than this (the node writes one each second).
HOLD_BEAT_NS = 5_000_000_000
#: A parked rank restores itself when its bound is over and the beat is older than this.
PARKED_BEAT_NS = 30_000_000_000


class Order(NamedTuple):
    """What the node's line says now. A mixed read is harmless: the node acts only on an exact match."""

    at: int
    word: int
    wake_by_ns: int
    beat_ns: int


class Bounds(NamedTuple):
    """How long this rank bears a silent node: in HOLD, and when parked beyond WAKE_BY."""

    hold_ns: int
    grace_ns: int


class Place(NamedTuple):
    """Where the rank stands. `served` is the newest generation whose park it has done with, well or not."""

    state: int = RUN
    gen: int = 0
    seq: int = 0
    missed: int = 0
    served: int = 0
    since_ns: int = 0


Step = Tuple[Place, int]


def advance(place: Place, order: Order, seq: int, now_ns: int, bounds: Bounds) -> Step:
    """Return the next place and effect of a rank that stands at boundary `seq`."""
    if place.state == HOLD:
        return _holding(place, order, now_ns, bounds)
    if place.state == RELEASING:
        return place._replace(state=PARKED, since_ns=now_ns), WAIT
    if place.state == PARKED:
        return _parked(place, order, now_ns, bounds)
    if place.state == RESTORING:
        return _restored(place, order, now_ns)
    return _arrived(place, order, seq, now_ns)


def pass_by(place: Place, order: Order, seq: int) -> Place:
    """Return the place of a rank that cannot park at this boundary (capturing, compiling) and trains on.

    An order without a boundary of its own (AT = 0) simply waits for the next one.
    """
    gen = generation_of(order.word)
    if command_of(order.word) != CMD_AIM or gen == place.served or order.at > seq:
        return place
    return place._replace(state=RUN, missed=gen)


def failed(place: Place) -> Place:
    """Return the place of a rank that could not release and trains on."""
    return place._replace(state=FAILED, served=place.gen)


def left(place: Place) -> Place:
    """Return the place of a rank that goes on by itself: silent node, or interrupted script."""
    return place._replace(state=LEFT, served=place.gen)


def still_parked(place: Place) -> Place:
    """Return the place of a rank that could not restore and tries again."""
    return place._replace(state=PARKED)


def publish(before: Place, after: Place) -> Tuple[Tuple[int, int], ...]:
    """Return the page words that differ, in the order to write them.

    A state never shows beside the number of a park it does not belong to.
    """
    words = []
    if before.state in (LEFT, FAILED) and after.gen != before.gen:
        words.append((W_STATE, RUN))
    if after.missed != before.missed:
        words.append((W_MISSED_GEN, after.missed))
    if after.seq != before.seq:
        words.append((W_STATE_SEQ, after.seq))
    if after.gen != before.gen:
        words.append((W_STATE_GEN, after.gen))
    if after.state != before.state:
        words.append((W_STATE, after.state))
    return tuple(words)


def _arrived(place: Place, order: Order, seq: int, now_ns: int) -> Step:
    gen, command = generation_of(order.word), command_of(order.word)
    if gen == place.served:
        return place, GO
    if command == CMD_COMMIT and order.at == 0:
        return _entered(place, RELEASING, gen, seq, now_ns), RELEASE
    if command not in (CMD_AIM, CMD_COMMIT) or order.at > seq:
        return place, GO
    if command == CMD_AIM and order.at == seq:
        return _entered(place, HOLD, gen, seq, now_ns), WAIT
    return place._replace(state=RUN, missed=gen), GO


def _entered(place: Place, state: int, gen: int, seq: int, now_ns: int) -> Place:
    return place._replace(state=state, gen=gen, seq=seq, since_ns=now_ns)


def _holding(place: Place, order: Order, now_ns: int, bounds: Bounds) -> Step:
    gen, command = generation_of(order.word), command_of(order.word)
    if gen == place.gen and command == CMD_COMMIT:
        return place._replace(state=RELEASING), RELEASE
    if gen == place.gen and command == CMD_AIM and order.at == place.seq:
        silent = now_ns - order.beat_ns > HOLD_BEAT_NS or now_ns - place.since_ns > bounds.hold_ns
        return (left(place), GO) if silent else (place, WAIT)
    return _arrived(place._replace(state=RUN), order, place.seq, now_ns)


def _parked(place: Place, order: Order, now_ns: int, bounds: Bounds) -> Step:
    overdue = now_ns > max(order.wake_by_ns, place.since_ns) + bounds.grace_ns
    silent = now_ns - order.beat_ns > PARKED_BEAT_NS
    if generation_of(order.word) != place.gen or (overdue and silent):
        return place._replace(state=RESTORING), RESTORE
    return place, WAIT


def _restored(place: Place, order: Order, now_ns: int) -> Step:
    if generation_of(order.word) == place.gen:
        return left(place), GO
    return _arrived(place._replace(state=RUN, served=place.gen), order, place.seq, now_ns)
