"""Every interleaving of a gang over nodes: real ranks, the real half of each node, and a chief of few words.

As `tests.park_explorer`, with one rank on each node: a rank is `client.machine`, its node `node.park_part`.
The chief aims, commits when all have told that they hold, and lets all run when anything fails; its orders
come to the nodes one by one, at any moment, and where it is `lossy` not at all. It may die, and nodes take a
silent chief's orders back at any moment: a bound that is over is a moment like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gandiva_slurm.node.park import Stand
from gandiva_slurm.node.park_part import HOLDING, MISSED, PartGang
from gandiva_slurm.wire import page
from tests import park_explorer, park_states
from tests.park_explorer import NOW, TOO_LATE, Explorer, Findings, FixedPace
from tests.park_states import GONE, NEWEST, ORDERS, STOPPED, Pending, RankState
from tests.walk import walk

IDLE, AIM, COMMIT, FREED, BACK, DEAD = "idle", "aim", "commit", "freed", "back", "dead"
_AIMABLE = ("running", "aiming", HOLDING, MISSED)


@dataclass(frozen=True)
class Scenario(park_explorer.Scenario):
    """`lossy`: orders of the chief may get lost. `hasty`: it commits without waiting for all to hold."""

    lossy: bool = False
    bounds: bool = False
    restarts: bool = False
    hasty: bool = False


class Chief(NamedTuple):
    """What the chief is about: who has its order, and who told that it holds."""

    stage: str = IDLE
    at: int = 0
    sent: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    tries: int = 0


class World(NamedTuple):
    """One state of everything: a rank (a number in the explorer's table) and its node's stand, for each."""

    ranks: tuple[int, ...]
    stands: tuple[Stand, ...]
    chief: Chief = Chief()


class PartExplorer(Explorer):
    """Walks all states of a scenario."""

    scenario: Scenario

    def run(self) -> Findings:
        """From every state one must be reached where all ranks have ended."""
        ends = self.scenario.ends
        first = World(tuple(self._number(RankState(end)) for end in ends), (Stand(gen=NEWEST),) * len(ends))
        seen = walk(first, self._steps)
        found = Findings(len(seen.states), sum(world.chief.stage == FREED for world in seen.states))
        found.unsafe = [str((world.chief, [self.table[r] for r in world.ranks])) for _, world in seen.unsafe]
        found.stuck = [str((world.chief, world.stands)) for world in seen.cut_off_from(self._have_ended)]
        print(f"{found.states} states, {found.parked} of them parked")
        return found

    def _steps(self, world: World) -> Iterator[tuple[World, bool]]:
        ranks = [self.table[number] for number in world.ranks]
        for part, number in enumerate(world.ranks):
            peers = ranks[:part] + ranks[part + 1 :]
            for move in self._moves_of(number, dead=False):
                if not move.ends_step or self._may_end_step(ranks[part].seq + 1, peers):
                    after = self._with(world.ranks, part, move.after)
                    yield world._replace(ranks=after), not move.releases or self._is_safe(peers, move.after)
            if not ranks[part].to_rank:
                yield from ((after, True) for after in self._node_steps(world, part, ranks[part]))
        yield from ((after, True) for after in self._chief_steps(world, ranks))

    def _is_safe(self, peers: list[RankState], number: int) -> bool:
        """A rank begins to release: the others stand at the same boundary, unless an order got lost."""
        if self.scenario.lossy or self.scenario.bounds or self.scenario.restarts:
            return True
        seq, together = self.table[number].place.seq, (page.HOLD, page.RELEASING, page.PARKED)
        return all((peer.mode, peer.seq) == (STOPPED, seq) and peer.place.state in together for peer in peers)

    def _node_steps(self, world: World, part: int, rank: RankState) -> Iterator[World]:
        """What a node does without an order: look, call back what nobody asks for any more, start anew."""
        stand = world.stands[part]
        if stand.phase not in ("running", "parked"):
            yield self._call_part(world, part, "tick", NOW)
            if stand.held_ns or stand.slipped_ns:
                yield self._call_part(world, part, "tick", TOO_LATE)
        is_kept = world.chief.stage == FREED
        waits = stand.phase in ("aiming", HOLDING, MISSED) or (stand.phase == "parked" and not is_kept)
        if self.scenario.bounds and (waits or (stand.phase == "parked" and world.chief.stage == DEAD)):
            yield self._call_part(world, part, "resume", NOW)
        if self.scenario.restarts and rank.mode != GONE and stand.phase not in ("running", "resuming"):
            heir = self._call_part(world, part, "adopt", NOW)
            was_kept = is_kept or heir.stands[part].phase != "parked"
            yield heir if was_kept else self._call_part(heir, part, "resume", NOW)

    def _chief_steps(self, world: World, ranks: list[RankState]) -> Iterator[World]:
        chief, everyone = world.chief, frozenset(range(len(ranks)))
        if chief.stage == DEAD:
            return
        if self.scenario.crash:
            yield world._replace(chief=Chief(DEAD))
        phases = [stand.phase for stand in world.stands]
        if chief.stage == IDLE:
            if set(phases) == {"running"}:
                yield world._replace(chief=self._new_aim(ranks, 0))
        elif chief.stage == FREED:
            yield world._replace(chief=Chief(BACK))
        elif chief.sent == everyone and chief.stage == BACK:
            yield world._replace(chief=Chief(IDLE))
        else:
            for part in sorted(everyone - chief.sent):
                if not ranks[part].to_rank:
                    yield from self._deliver(world, part)
            yield from self._judge(world, ranks, everyone)

    def _new_aim(self, ranks: list[RankState], tries: int) -> Chief:
        # Each was asked some time ago; `reports` is what its node can see now.
        return Chief(AIM, max(rank.reports[0] for rank in ranks) + self.scenario.margin, tries=tries)

    def _deliver(self, world: World, part: int) -> Iterator[World]:
        chief, stand = world.chief, world.stands[part]
        done = world._replace(chief=chief._replace(sent=chief.sent | {part}))
        back = world._replace(chief=Chief(BACK))
        if self.scenario.lossy:
            yield back if chief.stage != BACK else done
        if chief.stage == AIM:
            yield self._call_part(done, part, "aim", NOW) if stand.phase in _AIMABLE else back
        elif chief.stage == COMMIT:
            after = self._call_part(done, part, "commit", NOW)
            yield after if after.stands[part].phase == "committing" else after._replace(chief=back.chief)
        elif stand.phase in ("running", "resuming"):
            yield done
        else:
            yield self._call_part(done, part, "resume", NOW)

    def _judge(self, world: World, ranks: list[RankState], everyone: frozenset[int]) -> Iterator[World]:
        """What the chief makes of the nodes' answers."""
        chief = world.chief
        phases = [stand.phase for stand in world.stands]
        if chief.stage == AIM:
            for part in sorted(chief.sent - chief.held):
                stand = world.stands[part]
                if stand.phase == HOLDING and stand.seq == chief.at:
                    yield world._replace(chief=chief._replace(held=chief.held | {part}))
                elif stand.phase == MISSED and chief.tries < self.scenario.reaims:
                    yield world._replace(chief=self._new_aim(ranks, chief.tries + 1))
                elif stand.phase != "aiming":
                    yield world._replace(chief=Chief(BACK))
            if chief.held == everyone or (self.scenario.hasty and chief.held):
                yield world._replace(chief=Chief(COMMIT, chief.at))
        elif chief.stage == COMMIT:
            if set(phases) == {"parked"}:
                yield world._replace(chief=Chief(FREED))
            if any(phases[part] not in ("committing", "parked") for part in chief.sent):
                yield world._replace(chief=Chief(BACK))
            if self.scenario.lossy:
                yield world._replace(chief=Chief(BACK))

    def _call_part(self, world: World, part: int, what: str, now: int) -> World:
        rank, stand = self.table[world.ranks[part]], world.stands[part]
        gang = PartGang(1, pace=FixedPace(self.scenario.margin))
        gang.stand = stand
        views, alive = [park_states.view_of(rank.orders[0], rank.reports)], [rank.mode != GONE]
        arguments = {
            "aim": (world.chief.at, views, now, 0),
            "commit": (views, alive, now),
            "tick": (views, alive, now),
        }.get(what, (views, now))
        written: Pending = ()
        for _, words in getattr(gang, what)(*arguments):
            written += tuple((ORDERS.index(word), value) for word, value in words if word in ORDERS)
        return self._store(world, part, rank._replace(to_rank=written), gang.stand)

    def _store(self, world: World, part: int, rank: RankState, stand: Stand) -> World:
        """Name the newest generation alike in every state, and forget what is over."""
        newest = stand.gen
        stand = stand._replace(
            gen=NEWEST, aimed_ns=0, held_ns=min(stand.held_ns, NOW), slipped_ns=min(stand.slipped_ns, NOW)
        )
        if stand.phase in ("running", "resuming", MISSED):
            stand = Stand(stand.phase, NEWEST)
        number = self._number(park_states.canonical(rank, newest))
        ranks = self._with(world.ranks, part, number)
        stands = (*world.stands[:part], stand, *world.stands[part + 1 :])
        return world._replace(ranks=ranks, stands=stands)

    def _with(self, ranks: tuple[int, ...], part: int, number: int) -> tuple[int, ...]:
        return (*ranks[:part], number, *ranks[part + 1 :])
