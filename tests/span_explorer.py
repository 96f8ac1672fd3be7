"""Every interleaving of a span's parts with the controller, over the real `SpanMove`.

The nodes are `tests.span_parts`; what is modelled here is the world between: orders under way that arrive
late, after newer ones, or never, answers that get lost, a controller that dies anywhere and may come back,
a gandivad that is killed and starts again. Ranks go in step: those of a part come to a boundary only if no
other part stands before it. Parts are interchangeable; numbers of orders matter by their order alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gandiva_slurm.model.span import (
    AIMING,
    COMMIT,
    FREE,
    HOLDING,
    IN,
    OFF,
    ON,
    OUT,
    RELEASED,
    PartStand,
)
from gandiva_slurm.slicing import span_park
from gandiva_slurm.slicing.span_park import Mark, MoveSettings, Send, SpanMove, Stood, move_wanted
from tests import span_parts
from tests.span_parts import LOST, Did, Order, Part
from tests.span_states import ALIVE, DEAD, Coord, World, canonical, with_item
from tests.walk import walk

#: Orders that may be under way to a node at once: the newest, and one the controller has given up.
UNDER_WAY = 2


@dataclass(frozen=True)
class Scenario:
    """What is explored: how many nodes, what may go wrong, which rule is spoiled."""

    nodes: int = 2
    reaims: int = 1
    resends: int = 0
    crash: bool = False
    comes_back: bool = False
    kills: int = 0
    loses: bool = True
    spoiled: str = ""
    stops_at_unsafe: bool = False
    move: type[SpanMove] = SpanMove


@dataclass
class Findings:
    """The states seen, those that can no longer run or park, and deeds that were not safe."""

    states: int = 0
    stuck: list[str] = field(default_factory=list)
    unparkable: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)


class Explorer:
    """Walks all states of a scenario and keeps, for each, where one can come from."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.names = tuple(f"n{n}" for n in range(scenario.nodes))
        self._steps: dict[Any, tuple[Coord, tuple[Send, ...]]] = {}

    def run(self) -> Findings:
        """Explore from a span that runs, until there is nothing new."""
        nodes = self.scenario.nodes
        first = World((Part(),) * nodes, ((),) * nodes, self._idle(0))
        limits = span_park.MAX_REAIMS, span_park.MAX_RESENDS
        span_park.MAX_REAIMS, span_park.MAX_RESENDS = self.scenario.reaims, self.scenario.resends
        try:
            seen = walk(first, self._next, self.scenario.stops_at_unsafe)
        finally:
            span_park.MAX_REAIMS, span_park.MAX_RESENDS = limits
        print(f"{len(seen.states)} states")
        found = Findings(len(seen.states), unsafe=[f"{world}\n -> {after}" for world, after in seen.unsafe])
        if not (found.unsafe and self.scenario.stops_at_unsafe):
            found.stuck = [str(world) for world in seen.cut_off_from(_all_are(ON))]
            if not self.scenario.crash:
                found.unparkable = [str(world) for world in seen.cut_off_from(_all_are(OFF))]
        return found

    def _next(self, world: World) -> Iterator[tuple[World, bool]]:
        keeps_stale = self.scenario.spoiled == "stale orders are obeyed"
        return ((canonical(after, keeps_stale), is_safe) for after, is_safe in self._events(world))

    def _events(self, world: World) -> Iterator[tuple[World, bool]]:
        for node, part in enumerate(world.parts):
            for place, order in enumerate(world.inbox[node]):
                rest = world.inbox[node][:place] + world.inbox[node][place + 1 :]
                arrived = world._replace(inbox=with_item(world.inbox, node, rest))
                for did in _obey(part, order, self.scenario.spoiled):
                    yield from self._after(arrived, node, did)
            is_cut = world.mode == DEAD
            for did in _by_itself(part, _may_hold(world, node), is_cut, self.scenario.spoiled):
                yield from self._after(world, node, did)
            if world.kills < self.scenario.kills:
                killed = world._replace(parts=with_item(world.parts, node, span_parts.restart(part)))
                yield killed._replace(kills=world.kills + 1), True
        if world.mode == ALIVE:
            yield from ((after, True) for after in self._controller(world))
        elif self.scenario.comes_back:
            yield world._replace(mode=ALIVE, coord=self._idle(world.coord.number)), True

    def _after(self, world: World, node: int, did: Did) -> Iterator[tuple[World, bool]]:
        """A part has moved; its answer reaches the controller now, or never."""
        is_safe = _is_safe(world, node, did.deed)
        world = world._replace(parts=with_item(world.parts, node, did.part))
        if did.answer is None or world.mode == DEAD or not self._is_open(world.coord, did.answer[0]):
            yield world, is_safe
            return
        seq, code = did.answer
        shown = (did.part.phase, did.part.at)
        yield self._tell(world, ("answered", node, seq, code, shown)), is_safe
        if self.scenario.loses:
            yield self._tell(world, ("lost", node, seq, "", ())), is_safe

    def _controller(self, world: World) -> Iterator[World]:
        coord = world.coord
        if self.scenario.crash:
            yield world._replace(mode=DEAD, coord=Coord(number=coord.number))
        if not coord.move:
            yield from self._look_around(world)
            return
        if self.scenario.loses or world.kills:
            for seq, node in self._open(coord):
                if world.parts[node].waits is None or world.parts[node].waits.seq != seq:  # type: ignore[union-attr]
                    yield self._tell(world, ("lost", node, seq, "", ()))
        renewed = self._tell(world, ("tick", 0, 0, "", ()))
        if renewed != world:
            yield renewed

    def _look_around(self, world: World) -> Iterator[World]:
        """Ask one part after the other, then decide by what they said: they may stand elsewhere by then."""
        known = world.coord.known
        for node, phase in enumerate(known):
            if not phase:
                told = with_item(known, node, _rough(world.parts[node].phase))
                yield world._replace(coord=world.coord._replace(known=told))
        if all(known):
            # Half a gang is made whole; that two of them cross is for `tests.span_chaos`.
            is_torn = ON in known and any(phase in span_parts.WITHOUT for phase in known)
            for where in (IN,) if is_torn else (IN, OUT):
                to = move_wanted(known, where)
                if to:
                    yield self._begin(world, known, to)
            yield world._replace(coord=self._idle(world.coord.number))

    def _begin(self, world: World, known: tuple[str, ...], to: str) -> World:
        stood = {
            name: Stood(_stand(node, phase, 0, len(known)), 0)
            for node, (name, phase) in enumerate(zip(self.names, known, strict=True))
        }
        move = self.scenario.move(stood, to, MoveSettings())
        move._number = world.coord.number
        sends = tuple(move.begin(0))
        return self._send(world, self._coord(move), sends)

    def _tell(self, world: World, event: tuple[str, int, int, str, tuple[Any, ...]]) -> World:
        key = (world.coord.move, event)
        if key not in self._steps:
            self._steps[key] = self._step(world.coord.move, event)
        coord, sends = self._steps[key]
        return self._send(world, coord, sends)

    def _step(self, frozen: tuple[Any, ...], event: tuple[str, int, int, str, tuple[Any, ...]]) -> Any:
        what, node, seq, code, shown = event
        move = _thaw(self.scenario.move, frozen, self.names)
        if what == "tick":
            sends = move.tick(span_park.RENEW_NS)
            move._renewed_ns = 0
        elif what == "lost":
            sends = move.lost(seq, "lost", 0)
        else:
            stood = Stood(_stand(node, *shown, len(self.names)), 0)
            sends = move.answered(seq, not code, code, "so", stood, 0)
        return self._coord(move), tuple(sends)

    def _coord(self, move: SpanMove) -> Coord:
        return self._idle(move._number) if move.outcome else Coord((), _freeze(move), move._number)

    def _send(self, world: World, coord: Coord, sends: tuple[Send, ...]) -> World:
        inbox = list(world.inbox)
        for send in sends:
            node = self.names.index(send.node)
            orders = (*inbox[node], Order(send.number, send.what, send.at))
            inbox[node] = orders[-UNDER_WAY:]
        return world._replace(inbox=tuple(inbox), coord=coord)

    def _idle(self, number: int) -> Coord:
        return Coord(("",) * self.scenario.nodes, (), number)

    def _open(self, coord: Coord) -> list[tuple[int, int]]:
        return [(order[0], self.names.index(order[1])) for order in coord.move[0]] if coord.move else []

    def _is_open(self, coord: Coord, seq: int) -> bool:
        return any(seq == number for number, _ in self._open(coord))


def _all_are(phase: str) -> Callable[[World], bool]:
    return lambda world: all(part.phase == phase for part in world.parts)


@functools.cache
def _obey(part: Part, order: Order, spoiled: str) -> tuple[Did, ...]:
    return tuple(span_parts.obey(part, order, spoiled))


@functools.cache
def _by_itself(part: Part, may_hold: bool, is_cut: bool, spoiled: str) -> tuple[Did, ...]:
    return tuple(span_parts.by_itself(part, may_hold, is_cut, spoiled))


def _is_safe(world: World, node: int, deed: str) -> bool:
    """Before a rank releases all parts have held; before GPUs are given on all have released."""
    if deed == COMMIT:
        return all(part.has_held for part in world.parts)
    if deed == FREE:
        others = world.parts[:node] + world.parts[node + 1 :]
        return all(part.has_released or part.phase in span_parts.WITHOUT for part in others)
    return True


def _may_hold(world: World, node: int) -> bool:
    """Ranks come to their boundary if no other part stands still before it."""
    at = world.parts[node].at
    others = world.parts[:node] + world.parts[node + 1 :]
    return all(
        part.phase == ON
        or (part.phase == AIMING and (part.at == LOST or part.at >= at))
        or (part.phase == HOLDING and part.at >= at)
        or (part.phase == AIMING and part.at < at)
        for part in others
    )


def _rough(phase: str) -> str:
    """As much of a phase as the controller's choice of a move rests on."""
    return phase if phase in (ON, "") else OFF if phase in span_parts.WITHOUT else RELEASED


def _stand(node: int, phase: str, at: int, world: int) -> PartStand:
    return PartStand(1, 0, phase, world, (node,), is_parkable=True, at=at)


def _freeze(move: SpanMove) -> tuple[Any, ...]:
    """All that a move remembers, times and sentences aside."""
    open_ = tuple(sorted((o.number, o.node, o.what, o.at) for o in move._open.values()))
    stood = tuple(_rough(move.stood[node].part.phase) for node in move.nodes)
    counts = (move.at, move.reaims, move._misses, move._resends)
    return (
        open_, move.to, move.stage, bool(move.error), counts, tuple(sorted(move._done)),
        move._targets, move._is_torn, stood, move._number,
    )  # fmt: skip


def _thaw(kind: type[SpanMove], frozen: tuple[Any, ...], names: tuple[str, ...]) -> SpanMove:
    open_, to, stage, has_error, counts, done, targets, is_torn, stood, number = frozen
    parts = {
        name: Stood(_stand(node, phase, 0, len(names)), 0)
        for node, (name, phase) in enumerate(zip(names, stood, strict=True))
    }
    move = kind(parts, to, MoveSettings())
    move.stage, move.error, move._targets, move._is_torn = stage, "so" if has_error else "", targets, is_torn
    move.at, move.reaims, move._misses, move._resends = counts
    move._done, move._number = set(done), number
    move.marks = [Mark(stage, 0)]
    move._open = {node: Send(n, node, what, at, 0) for n, node, what, at in open_}
    return move
