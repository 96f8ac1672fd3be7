"""States of a span's world, and which of them are the same for all that comes.

Parts are interchangeable; numbers of orders matter by their order alone; what nothing will look at again is
forgotten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gandiva_slurm.model.span import AIM, AIMING, COMMIT, FREE, HOLDING, RELEASING, RUN
from tests.span_parts import LOST, Order, Part

ALIVE, DEAD = "alive", "dead"


class Coord(NamedTuple):
    """The controller: what it knows of each part between two changes of hands, or the move it is in."""

    known: tuple[str, ...] = ()
    move: tuple[Any, ...] = ()
    number: int = 0


class World(NamedTuple):
    """One state of everything."""

    parts: tuple[Part, ...]
    inbox: tuple[tuple[Order, ...], ...]
    coord: Coord
    mode: str = ALIVE
    kills: int = 0


#: The number of the controller's last order in every state; above those of all orders under way.
NEWEST = 100


def canonical(world: World, keep_stale: bool) -> World:
    """Forget what can no longer matter, number each node's orders from one up, and sort the nodes."""
    frozen = world.coord.move
    open_ = {order[1]: order for order in frozen[0]} if frozen else {}
    done, targets = (frozen[5], frozen[6]) if frozen else ((), ())
    is_judged = bool(frozen) or any(o.what in (COMMIT, FREE) for orders in world.inbox for o in orders)
    rows = []
    for node, (part, orders) in enumerate(zip(world.parts, world.inbox, strict=True)):
        name, mine = f"n{node}", open_.get(f"n{node}")
        if not keep_stale:
            orders = tuple(order for order in orders if order.seq >= part.seen)
        part = _plain(part, mine[0] if mine else 0, is_judged)
        seqs = {part.seen if orders else 0, *(o.seq for o in orders), mine[0] if mine else 0}
        if part.waits is not None:
            seqs.add(part.waits.seq)
        names = {seq: rank for rank, seq in enumerate(sorted(seqs | {0}))}
        if part.waits is not None:
            part = part._replace(waits=part.waits._replace(seq=names[part.waits.seq]))
        part = part._replace(seen=names[part.seen] if orders else 0)
        inbox = tuple(order._replace(seq=names[order.seq]) for order in orders)
        order = (names[mine[0]], *mine[2:]) if mine else ()
        known = world.coord.known[node] if world.coord.known else ""
        stood = frozen[8][node] if frozen else ""
        rows.append((part, inbox, order, name in done, name in targets, known, stood))
    rows.sort(key=hash)  # any order will do that is the same for the same nodes
    rows = [_numbered(row, node) for node, row in enumerate(rows)]
    coord = Coord(tuple(row[5] for row in rows) if world.coord.known else (), (), NEWEST)
    if frozen:
        hides_stood = frozen[2] in (AIM, COMMIT, FREE) or (frozen[2] == RUN and frozen[3])
        named = [(f"n{node}", row) for node, row in enumerate(rows)]
        again = (
            tuple((row[2][0], name, *row[2][1:]) for name, row in named if row[2]),
            *frozen[1:5],
            tuple(name for name, row in named if row[3]),
            tuple(name for name, row in named if row[4]),
            frozen[7],
            tuple("" if hides_stood else row[6] for row in rows),
            NEWEST,
        )
        coord = coord._replace(move=again)
    parts, inboxes = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return world._replace(parts=parts, inbox=inboxes, coord=coord)


def _numbered(row: tuple[Any, ...], node: int) -> tuple[Any, ...]:
    """Numbers of two nodes are never the same: tens count the orders of one."""
    part, inbox, order = row[:3]
    if part.waits is not None:
        part = part._replace(waits=part.waits._replace(seq=10 * part.waits.seq + node))
    inbox = tuple(item._replace(seq=10 * item.seq + node) for item in inbox)
    order = (10 * order[0] + node, *order[1:]) if order else ()
    return (part._replace(seen=10 * part.seen + node if part.seen else 0), inbox, order, *row[3:])


def _plain(part: Part, open_seq: int, is_judged: bool) -> Part:
    """A part without what nothing will look at again."""
    if part.waits is not None and part.waits.seq != open_seq and part.waits.what != RUN:
        part = part._replace(waits=None)
    if part.phase not in (AIMING, HOLDING) and not (part.phase == RELEASING and part.at == LOST):
        part = part._replace(at=0)
    return part if is_judged else part._replace(has_held=False, has_released=False)


def with_item(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    """The same with another item at this place."""
    return (*items[:place], item, *items[place + 1 :])
