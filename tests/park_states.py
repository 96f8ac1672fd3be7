"""A rank within `tests.park_explorer`: all there is to know of it, of its page, and of the words under way.

Two states are one if they differ only in words that can no longer matter, or in how many generations went
before: `canonical` names the newest generation alike in every state.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from gandiva_slurm.client import machine
from gandiva_slurm.wire import page

#: What the newest generation is called in every state, and any that no order will ever name again.
NEWEST, OLD = 100, 0
STEPPING, STOPPED, GONE = "stepping", "stopped", "gone"
#: Words of the node's line that ranks act on, and words of a rank that the coordinator acts on.
ORDERS = (page.W_WORD, page.W_AT)
REPORTS = (page.W_SEQ, page.W_STATE, page.W_STATE_GEN, page.W_STATE_SEQ, page.W_MISSED_GEN)
#: Those of REPORTS that hold a generation.
_GENERATIONS = (2, 4)

Pending = tuple[tuple[int, int], ...]


class RankState(NamedTuple):
    """A rank, its last step, its side of the page, and the words under way in either direction."""

    end: int
    seq: int = 0
    mode: str = STEPPING
    place: machine.Place = machine.Place()
    orders: tuple[int, ...] = (NEWEST << 8, page.NEVER)
    reports: tuple[int, ...] = (0, 0, 0, 0, 0)
    to_rank: Pending = ()
    to_node: Pending = ()


@functools.cache
def canonical(rank: RankState, newest: int) -> RankState:
    """Name generations from the newest down and forget what nobody will look at again."""
    if rank.mode == GONE:
        return RankState(rank.end, rank.end, GONE)
    order, shift = rank.orders[0], NEWEST - newest

    def name(gen: int) -> int:
        # A generation is only compared with that of an order still to be read: the visible one or a newer.
        return gen + shift if gen in (newest, order >> 8) else OLD

    place, (seq, state, gen, state_seq, missed) = rank.place, rank.reports
    place = place._replace(gen=name(place.gen), served=name(place.served), missed=name(place.missed))
    if place.state in (page.RUN, page.LEFT, page.FAILED) and place.gen == OLD:
        place = place._replace(state=page.RUN, seq=0)
    if name(gen) == OLD:
        state, state_seq = page.RUN if state in (page.LEFT, page.FAILED) else state, 0
    return rank._replace(
        place=place,
        orders=(order + (shift << 8), rank.orders[1]),
        reports=(seq, state, name(gen), state_seq, name(missed)),
        to_rank=tuple((word, value + (0 if word else shift << 8)) for word, value in rank.to_rank),
        to_node=tuple((word, name(value) if word in _GENERATIONS else value) for word, value in rank.to_node),
    )


def publish(rank: RankState, place: machine.Place, effect: int) -> RankState:
    """The rank moves to `place` and its words are under way; GO lets it train on."""
    words = tuple((REPORTS.index(word), value) for word, value in machine.publish(rank.place, place))
    mode = onward(rank.seq, rank.end) if effect == machine.GO else STOPPED
    return rank._replace(place=place, mode=mode, to_node=words)


def onward(seq: int, last: int) -> str:
    """What a rank does after a boundary: its next step, unless that was the last."""
    return GONE if seq >= last else STEPPING


def next_words(pending: Pending, any_order: bool) -> list[int]:
    """Which of the words under way may arrive next: the first, or the first of each index."""
    if not any_order:
        return [0] if pending else []
    first: dict[int, int] = {}
    for position, (word, _) in enumerate(pending):
        first.setdefault(word, position)
    return list(first.values())


def arrive(words: tuple[int, ...], pending: Pending, position: int) -> tuple[tuple[int, ...], Pending]:
    """One word arrives."""
    word, value = pending[position]
    return (*words[:word], value, *words[word + 1 :]), pending[:position] + pending[position + 1 :]


def arrive_all(words: tuple[int, ...], pending: Pending) -> tuple[int, ...]:
    """All words arrive."""
    values = list(words)
    for word, value in pending:
        values[word] = value
    return tuple(values)


def view_of(order: int, reports: tuple[int, ...]) -> list[int]:
    """The page as the node reads it."""
    view = [0] * 64
    view[page.W_WORD], view[page.W_PID] = order, 1
    for index, value in zip(REPORTS, reports, strict=True):
        view[index] = value
    return view
