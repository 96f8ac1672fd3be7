"""Every interleaving of a gang's ranks with its coordinator, over the real transition functions of both.

A rank is `client.machine`, the coordinator `node.park.Gang`; what is modelled here is only the world between
them: steps that end when every rank still training has begun them (a collective), pages whose words arrive
late and, with `any_order`, in any order, processes that end, a coordinator that dies anywhere and may come
back. Time is reduced to "not yet" and "too late": whatever a time-out may do, it may do at any moment.

A rank's words arrive before its next ones are written, and the node's before it looks again: the page is
memory, not a mailbox. Ranks are interchangeable: states that differ in their order are one. With
`exact_parks` states are kept apart by their history too, and parks are limited; without, there may be any
number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gandiva_slurm.client import machine
from gandiva_slurm.node.pace import Pace
from gandiva_slurm.node.park import Gang, Stand
from gandiva_slurm.wire import page
from tests import park_states as memory
from tests.park_states import GONE, NEWEST, ORDERS, STEPPING, STOPPED, Pending, RankState
from tests.walk import walk

NOW, TOO_LATE = 1, 1 << 60
ALIVE, DEAD, BACK = "alive", "dead", "back"
_BOUNDS = machine.Bounds(hold_ns=TOO_LATE // 4, grace_ns=0)


class World(NamedTuple):
    """One state of everything. Ranks are numbers in the explorer's table; parks are counted where limited."""

    ranks: tuple[int, ...]
    stand: Stand = Stand(gen=NEWEST)
    parks: int = 0
    node: str = ALIVE


class Move(NamedTuple):
    """What a rank, or the memory between it and the node, can do by itself."""

    after: int
    ends_step: bool
    releases: bool


@dataclass(frozen=True)
class Scenario:
    """What is explored: each rank's last step, how far hosts run ahead of devices, what may go wrong."""

    ends: tuple[int, ...]
    margin: int = 1
    reaims: int = 2
    exact_parks: int = 0
    ahead: int = 0
    crash: bool = False
    comes_back: bool = False
    may_fail: bool = False
    any_order: bool = False
    advance: Callable[..., machine.Step] = machine.advance
    #: True: the rank looks at every boundary, not only from AT on (the variant that acknowledges first).
    looks_early: bool = False


@dataclass
class Findings:
    """The states seen, those no end can be reached from, and releases beside a rank that trains."""

    states: int = 0
    parked: int = 0
    stuck: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)


class FixedPace(Pace):
    """A pace that measures nothing and always aims the same distance ahead."""

    def __init__(self, margin: int) -> None:
        super().__init__()
        self._margin = margin

    def observe(self, views: Any) -> None:
        pass

    def took(self, spread_ns: int) -> None:
        pass

    def margin(self, tries: int) -> int:
        return self._margin


class Explorer:
    """Walks all states of a scenario and keeps, for each, where one can come from."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.table: list[RankState] = []
        self._numbers: dict[RankState, int] = {}
        self._moves: dict[tuple[int, bool], tuple[Move, ...]] = {}
        self._decisions: dict[Any, tuple[Stand, tuple[Pending, ...]]] = {}

    def run(self) -> Findings:
        """Explore from the start; every state must be able to reach one where all ranks have ended."""
        first = World(tuple(self._number(RankState(end)) for end in sorted(self.scenario.ends)))
        seen = walk(first, self._events)
        found = Findings(len(seen.states), sum(world.stand.phase == "parked" for world in seen.states))
        found.unsafe = [self.describe(after) for _, after in seen.unsafe]
        found.stuck = [self.describe(world) for world in seen.cut_off_from(self._have_ended)]
        print(f"{found.states} states, {found.parked} of them parked")
        return found

    def describe(self, world: World) -> str:
        """Write a state out, for the reader of a failed test."""
        ranks = "\n  ".join(str(self.table[number]) for number in world.ranks)
        return f"{world.node}, {world.stand}\n  {ranks}"

    def _have_ended(self, world: Any) -> bool:
        return all(self.table[rank].mode == GONE for rank in world.ranks)

    def _number(self, rank: RankState) -> int:
        if rank not in self._numbers:
            self._numbers[rank] = len(self.table)
            self.table.append(rank)
        return self._numbers[rank]

    def _events(self, world: World) -> Iterator[tuple[World, bool]]:
        ranks = [self.table[number] for number in world.ranks]
        for position, number in enumerate(world.ranks):
            peers = ranks[:position] + ranks[position + 1 :]
            for move in self._moves_of(number, world.node == DEAD):
                if not move.ends_step or self._may_end_step(ranks[position].seq + 1, peers):
                    after = sorted((*world.ranks[:position], move.after, *world.ranks[position + 1 :]))
                    judged = move.releases and world.node == ALIVE
                    yield world._replace(ranks=tuple(after)), not judged or self._all_stand(peers, move)
        if world.node != DEAD and not any(rank.to_rank for rank in ranks):
            yield from self._decide(world, ranks)
        if self.scenario.crash and world.node == ALIVE:
            lost = [rank._replace(to_rank=()) for rank in ranks]
            yield self._settle(world._replace(stand=Stand(), node=DEAD), lost), True
        if self.scenario.comes_back and world.node == DEAD:
            yield self._node(world._replace(node=BACK), ranks, "adopt", NOW), True

    def _may_end_step(self, seq: int, peers: list[RankState]) -> bool:
        """A step's collective needs every other rank that still trains to have begun it."""
        step = seq - self.scenario.ahead
        return all(
            peer.mode == GONE or peer.seq >= step or (peer.seq == step - 1 and peer.mode == STEPPING)
            for peer in peers
        )

    def _all_stand(self, peers: list[RankState], move: Move) -> bool:
        """A rank begins to release: every other one must stand at the same boundary for the same park.

        One that fails to release trains on by design; when a coordinator died, ranks leave by themselves.
        """
        place, together = self.table[move.after].place, (page.HOLD, page.RELEASING, page.PARKED)
        return self.scenario.may_fail or all(
            (peer.mode, peer.seq, peer.place.gen) == (STOPPED, place.seq, place.gen)
            and peer.place.state in together
            for peer in peers
        )

    def _moves_of(self, number: int, dead: bool) -> tuple[Move, ...]:
        key = (number, dead)
        if key not in self._moves:
            self._moves[key] = tuple(
                Move(self._number(self._canonical(rank, NEWEST)), ends_step, releases)
                for rank, ends_step, releases in self._find_moves(self.table[number], dead)
            )
        return self._moves[key]

    def _find_moves(self, rank: RankState, dead: bool) -> Iterator[tuple[RankState, bool, bool]]:
        if rank.mode == STEPPING and not rank.to_node:
            yield self._reach(rank), True, False
        elif rank.mode == STOPPED and not rank.to_node:
            yield from self._look(rank, dead)
        for position in memory.next_words(rank.to_rank, self.scenario.any_order):
            orders, rest = memory.arrive(rank.orders, rank.to_rank, position)
            yield rank._replace(orders=orders, to_rank=rest), False, False
        if rank.to_node and not self.scenario.any_order:
            reports = memory.arrive_all(rank.reports, rank.to_node)
            yield rank._replace(reports=reports, to_node=()), False, False
            return
        for position in memory.next_words(rank.to_node, True):
            reports, rest = memory.arrive(rank.reports, rank.to_node, position)
            yield rank._replace(reports=reports, to_node=rest), False, False

    def _reach(self, rank: RankState) -> RankState:
        seq = rank.seq + 1
        stops = rank.orders[1] <= seq or (self.scenario.looks_early and rank.orders[1] != page.NEVER)
        mode = STOPPED if stops else memory.onward(seq, rank.end)
        return rank._replace(seq=seq, mode=mode, to_node=((0, seq),))

    def _look(self, rank: RankState, dead: bool) -> Iterator[tuple[RankState, bool, bool]]:
        """The rank's slow path looks at its order once; with a silent node also as if time were over."""
        order = machine.Order(rank.orders[1], rank.orders[0], 0, 0)
        for now in (NOW, TOO_LATE) if dead else (NOW,):
            place, effect = self.scenario.advance(rank.place, order, rank.seq, now, _BOUNDS)
            after = memory.publish(rank, place._replace(since_ns=0), effect)
            yield after, False, effect == machine.RELEASE
        if self.scenario.may_fail and rank.place.state == page.RELEASING:
            yield memory.publish(rank, machine.failed(rank.place), machine.GO), False, False

    def _decide(self, world: World, ranks: list[RankState]) -> Iterator[tuple[World, bool]]:
        phase, limit = world.stand.phase, self.scenario.exact_parks
        if phase == "running":
            if not limit or world.parks < limit:
                parks = world.parks + 1 if limit else 0
                yield self._node(world._replace(parks=parks), ranks, "park", NOW), True
            return
        if phase != "resuming":
            yield self._node(world, ranks, "resume", NOW), True
        if phase != "parked":
            yield self._node(world, ranks, "tick", NOW), True
            if world.stand.held_ns or world.stand.slipped_ns:
                yield self._node(world, ranks, "tick", TOO_LATE), True

    def _node(self, world: World, ranks: list[RankState], call: str, now: int) -> World:
        seen = tuple((rank.orders[0], rank.reports, rank.mode != GONE) for rank in ranks)
        key = (call, world.stand, seen, now)
        if key not in self._decisions:
            self._decisions[key] = self._call(call, world.stand, seen, now)
        stand, writes = self._decisions[key]
        told = [rank._replace(to_rank=words) for rank, words in zip(ranks, writes, strict=True)]
        return self._settle(world._replace(stand=stand), told)

    def _settle(self, world: World, ranks: list[RankState]) -> World:
        """After a decision of the node there may be a newer generation: name all of them anew."""
        stand = world.stand
        newest = stand.gen or max(rank.orders[0] >> 8 for rank in ranks)
        if not self.scenario.exact_parks:
            stand = stand._replace(gen=NEWEST if stand.gen else 0)
            if stand.phase in ("running", "resuming"):
                stand = Stand(stand.phase, stand.gen)
        numbers = sorted(self._number(self._canonical(rank, newest)) for rank in ranks)
        return world._replace(ranks=tuple(numbers), stand=stand)

    def _canonical(self, rank: RankState, newest: int) -> RankState:
        return rank if self.scenario.exact_parks else memory.canonical(rank, newest)

    def _call(self, call: str, stand: Stand, seen: Any, now: int) -> tuple[Stand, tuple[Pending, ...]]:
        gang = Gang(len(seen), pace=FixedPace(self.scenario.margin))
        gang.max_reaims = self.scenario.reaims
        gang.stand = stand
        views = [memory.view_of(order, reports) for order, reports, _ in seen]
        alive = [living for _, _, living in seen]
        arguments = {"park": (views, now, 0), "tick": (views, alive, now)}.get(call, (views, now))
        writes: list[Pending] = [()] * len(seen)
        for rank, words in getattr(gang, call)(*arguments):
            writes[rank] += tuple((ORDERS.index(word), value) for word, value in words if word in ORDERS)
        held_ns, slipped_ns = min(gang.stand.held_ns, NOW), min(gang.stand.slipped_ns, NOW)
        return gang.stand._replace(aimed_ns=0, held_ns=held_ns, slipped_ns=slipped_ns), tuple(writes)
