"""Spans that want the same GPUs, in virtual time: the real central stride and changes of hands over a network
that loses and delays, with a controller and nodes that die and come back. Some are told to leave: they save
themselves, which takes long and may fail, and are requeued. Seeded: the same seed, the same story.

Nodes are `tests.span_parts` with clocks of their own, one holder for each GPU, and a lease.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.slicing.central import CentralSettings
from gandiva_slurm.slicing.cluster import Central
from gandiva_slurm.slicing.domains import Planned
from gandiva_slurm.slicing.span_park import MoveSettings, Send, SpanMove, Stood, move_wanted
from tests import span_parts
from tests.span_parts import LOST, WITHOUT, Did, Order, Part

MS = 10**6
SECOND = 10**9
QUANTUM_NS = SECOND
LEASE_NS = 6 * SECOND
#: How long a gang that does not park is borne.
REFUSAL_BOUND_NS = 8 * SECOND
LOOK_NS = 20 * MS
#: How long ranks need to come to a boundary, and to release.
STEP_NS, RELEASE_NS = 30 * MS, 20 * MS
#: And at most to save themselves: longer than a part waits for FREE by itself.
SAVE_NS = 8 * SECOND
#: Between all nodes' word that a gang has left and its end lies so much, at most.
REQUEUE_NS = 5 * SECOND


@dataclass
class Here:
    """A part, since when it is in its phase, what it waits for until when, and what was last wanted of it."""

    part: Part = field(default_factory=lambda: Part(phase=words.OFF))
    since_ns: int = 0
    until_ns: int = 0
    word: str = words.OUT
    held_ns: int = 0
    #: the change of hands that asks its ranks to save themselves, how long that takes, and where they did
    asks: SpanMove | None = None
    save_ns: int = 0
    saved: SpanMove | None = None


class Chaos:
    """The whole, from `plans`: which spans there are, with their GPUs."""

    def __init__(
        self, seed: int, plans: list[Planned], gpus: dict[str, int], refuses: frozenset[JobKey] = frozenset()
    ) -> None:
        self.rng = random.Random(seed)
        self.plans = {plan.key: plan for plan in plans}
        self.gpus = gpus
        #: those whose ranks come to no common boundary
        self.refuses = refuses
        self.now_ns = 0
        self.loss = 0.0
        #: how many of the parts that save themselves fail to, and who was requeued after all had
        self.failing = 0.0
        self.requeued: list[JobKey] = []
        self.told: list[JobKey] = []
        self.here = {(node, key): Here() for key, plan in self.plans.items() for node in plan.nodes}
        self.lease_ns = dict.fromkeys(gpus, LEASE_NS)
        self.turns: dict[JobKey, list[int]] = {key: [] for key in self.plans}
        self.torn_ns: dict[JobKey, int] = {}
        self.longest_torn_ns = 0
        self.wrong: list[str] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._epoch = 0
        #: by the number of an order: which controller and change of hands sent it, and its number there
        self._asked: dict[int, tuple[int, SpanMove, int]] = {}
        self._start_controller()
        for node in gpus:
            self._after(LOOK_NS, lambda node=node: self._look(node))

    def run(self, until_ns: int, loss: float = 0.0) -> Chaos:
        """Let time pass; so many of all orders and of all answers get lost."""
        self.loss = loss
        while self._heap and self._heap[0][0] <= until_ns:
            self.now_ns, _, call = heapq.heappop(self._heap)
            call()
        self.now_ns = until_ns
        return self

    def crash(self, away_ns: int) -> None:
        """The controller dies and comes back."""
        self._epoch += 1
        self._after(away_ns, self._start_controller)

    def restart(self, node: str) -> None:
        """A node's daemon is killed and comes back: what holds GPUs goes on, whatever it was told last."""
        for (where, key), here in self.here.items():
            if where == node and here.part.phase not in (words.OFF, words.ON):
                phase = words.OFF if here.part.phase in WITHOUT else words.ON
                self._do(node, key, Did(here.part._replace(phase=phase, at=0, waits=None)))

    def leave(self, key: JobKey, is_leaving: bool = True) -> None:
        """The plan says that a gang is to leave, or to stay."""
        self.plans[key] = self.plans[key]._replace(is_leaving=is_leaving)
        self.told.append(key)
        self.central.follow(self.gpus, self.plans)

    def _after(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._count, call))

    def _way_ns(self) -> int:
        """An order or an answer is under way so long; now and then it is late."""
        return self.rng.randrange(1, 15) * MS if self.rng.random() > 0.02 else self.rng.randrange(7000) * MS

    # the controller

    def _start_controller(self) -> None:
        self._epoch += 1
        self.central = Central(CentralSettings(QUANTUM_NS, 0, REFUSAL_BOUND_NS))
        self.central.follow(self.gpus, self.plans)
        self.moves: dict[JobKey, SpanMove] = {}
        self._round(self._epoch)

    def _round(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._after(QUANTUM_NS, lambda: self._round(epoch))
        for key, plan in self.plans.items():
            if plan.is_leaving and all(self._stand(node, key).has_saved for node in plan.nodes):
                self._after(self.rng.randrange(REQUEUE_NS), partial(self._requeue, key, self.told.count(key)))
        for domain in self.central.domains:
            asked = {node for node in domain.nodes if self.rng.random() >= self.loss}
            for node in domain.nodes:
                if node in asked:
                    domain.gather(node, "boot", self._rows(node), self._stands(node), self.now_ns)
                else:
                    domain.silence(node)
            verdicts = domain.decide({key: move.to for key, move in self.moves.items()})
            for key, verdict in verdicts.items():
                for node in asked & set(self.plans[key].nodes):
                    self.here[node, key].word = words.BACK if verdict.comes_back else verdict.where
            for node in asked:
                self.lease_ns[node] = self.now_ns + LEASE_NS
            for key, verdict in verdicts.items():
                parts = domain.parts(key)
                to = move_wanted((part.phase for part in parts.values()), verdict.where)
                if to and key not in self.moves and len(parts) == len(self.plans[key].nodes):
                    stood = {node: Stood(part, self.now_ns) for node, part in parts.items()}
                    ways = {"freezes": verdict.freezes, "saves": verdict.saves} if to == words.OUT else {}
                    settings = MoveSettings(10 * SECOND, save_ns=2 * SAVE_NS)
                    self.moves[key] = SpanMove(stood, to, settings, **ways)
                    self._send(epoch, key, self.moves[key].begin(self.now_ns))
                    self._after(500 * MS, lambda key=key: self._tick(epoch, key, self.moves.get(key)))

    def _requeue(self, key: JobKey, told: int) -> None:
        """All its nodes have said that it has left: Slurm ends it, and it is started anew."""
        if self.told.count(key) != told:
            return
        here = [self.here[node, key] for node in self.plans[key].nodes]
        if any(at.part.phase != words.OFF for at in here) or len({id(at.saved) for at in here}) > 1:
            self.wrong.append(f"{self.now_ns}: {key} is requeued and was not saved whole, or trains again")
        for at in here:
            at.saved = None
        self.requeued.append(key)
        self.leave(key, is_leaving=False)

    def _tick(self, epoch: int, key: JobKey, move: SpanMove | None) -> None:
        if epoch == self._epoch and move is not None and self.moves.get(key) is move:
            self._send(epoch, key, move.tick(self.now_ns))
            self._after(500 * MS, lambda: self._tick(epoch, key, move))

    def _send(self, epoch: int, key: JobKey, sends: list[Send]) -> None:
        move = self.moves[key]
        if move.outcome:
            del self.moves[key]
            domain = next(domain for domain in self.central.domains if key in domain.spans)
            parts = {node: stood.part for node, stood in move.stood.items()}
            domain.tried(key, move.error, parts, move.kind)
            return
        for send in sends:
            self._count += 1
            order = Order((epoch << 32) + self._count, send.what, send.at)
            self._after(send.wait_ns + SECOND, partial(self._lost, epoch, key, move, send))
            if self.rng.random() >= self.loss:
                self._after(self._way_ns(), partial(self._arrive, epoch, key, move, send, order))

    def _lost(self, epoch: int, key: JobKey, move: SpanMove, send: Send) -> None:
        if epoch == self._epoch and self.moves.get(key) is move:
            self._send(epoch, key, move.lost(send.number, "lost", self.now_ns))

    def _answered(self, key: JobKey, asked: tuple[int, SpanMove, int], code: str, part: PartStand) -> None:
        epoch, move, number = asked
        if epoch == self._epoch and self.moves.get(key) is move:
            stood = Stood(part, self.now_ns)
            self._send(epoch, key, move.answered(number, not code, code, "so", stood, self.now_ns))

    # the nodes

    def _arrive(self, epoch: int, key: JobKey, move: SpanMove, send: Send, order: Order) -> None:
        here = self.here[send.node, key]
        dids = list(span_parts.obey(here.part, order, ""))
        did = dids[-1] if self.rng.random() < 0.05 else dids[0]
        if order.seq >= here.part.seen:
            here.until_ns = self.now_ns + send.wait_ns
            if send.what == words.AIM:
                here.asks, here.save_ns = move if send.saves else None, self.rng.randrange(SAVE_NS)
            if (send.what, here.part.phase) == (words.COMMIT, words.RELEASED):
                here.held_ns, here.since_ns = here.held_ns + self.now_ns - here.since_ns, self.now_ns
            self._asked[order.seq] = (epoch, move, send.number)
            wishes = {words.RESERVE: words.IN, words.GO: words.IN, words.RUN: words.STAY}
            here.word = wishes.get(send.what, words.OUT if send.what == words.UNRESERVE else here.word)
        self._do(send.node, key, did)

    def _do(self, node: str, key: JobKey, did: Did) -> None:
        here = self.here[node, key]
        others = [self.here[other, key].part for other in self.plans[key].nodes if other != node]
        if did.deed == words.FREE and not all(part.has_released or part.phase in WITHOUT for part in others):
            self.wrong.append(f"{self.now_ns}: {node} gave the GPUs of {key} on before all had released")
        if did.deed == words.COMMIT and not all(part.has_held for part in others):
            self.wrong.append(f"{self.now_ns}: {node} released {key} before all held")
        if did.part.phase != here.part.phase:
            if did.part.phase == words.RELEASED:
                here.saved = here.asks if here.part.phase == words.RELEASING else None
            elif did.part.phase == words.ON:
                here.saved = None
            if here.part.phase not in WITHOUT:
                here.held_ns += self.now_ns - here.since_ns
            here.since_ns = self.now_ns
        here.part = did.part
        self._check(node, key)
        if did.answer is not None and self.rng.random() >= self.loss:
            seq, code = did.answer
            stand = self._stand(node, key)
            self._after(self._way_ns(), partial(self._answered, key, self._asked[seq], code, stand))

    def _look(self, node: str) -> None:
        self._after(LOOK_NS, lambda: self._look(node))
        for where, key in list(self.here):
            if where == node:
                for did in self._by_itself(node, key):
                    self._do(node, key, did)

    def _by_itself(self, node: str, key: JobKey) -> list[Did]:
        here = self.here[node, key]
        part, age_ns = here.part, self.now_ns - here.since_ns
        after: Part | None = None
        if part.phase == words.RESERVED and self._is_free(node, key):
            after = part._replace(phase=words.READY)
        elif part.phase == words.AIMING and part.at != LOST and age_ns > STEP_NS and self._goes_on(node, key):
            after = part._replace(phase=words.HOLDING, has_held=True)
        elif part.phase == words.RELEASING and here.asks and self.rng.random() < self.failing / 100:
            after = part._replace(phase=words.ON, at=0)
        elif part.phase == words.RELEASING and age_ns > (here.save_ns if here.asks else RELEASE_NS):
            after = part._replace(phase=words.RELEASED, has_released=True)
            if part.waits is not None and part.waits.what == words.RUN:
                after = part._replace(phase=words.ON, at=0)
        elif self._is_over(part.phase, age_ns):
            after = part._replace(phase=words.OFF if part.phase in WITHOUT else words.ON, at=0)
        elif self.now_ns > self.lease_ns[node] and part.phase in WITHOUT and here.word != words.OUT:
            after = part._replace(phase=words.ON, at=0) if self._is_free(node, key) else None
        if after is not None:
            return list(span_parts.settle(after))
        is_late = part.waits is not None and self.now_ns > here.until_ns
        return [Did(part._replace(waits=None), (part.waits.seq, words.LATE))] if is_late else []  # type: ignore[union-attr]

    def _is_over(self, phase: str, age_ns: int) -> bool:
        bounds = {
            words.AIMING: 6 * SECOND,
            words.HOLDING: words.HOLD_BOUND_NS,
            words.RELEASED: words.RELEASED_BOUND_NS,
            words.READY: words.READY_BOUND_NS,
            words.RESERVED: 20 * SECOND,
        }
        return age_ns > bounds.get(phase, age_ns)

    def _goes_on(self, node: str, key: JobKey) -> bool:
        """Ranks come to a boundary only while all other parts train, or stand at it already."""
        if key in self.refuses:
            return False
        at = self.here[node, key].part.at
        others = [self.here[other, key].part for other in self.plans[key].nodes if other != node]
        return all(
            part.phase in (words.ON, words.AIMING) or (part.phase == words.HOLDING and part.at >= at)
            for part in others
        )

    def _is_free(self, node: str, key: JobKey) -> bool:
        mine = set(dict(self.plans[key].places)[node])
        taken = [
            other
            for (where, other), here in self.here.items()
            if where == node and other != key and here.part.phase not in (words.OFF, words.RESERVED)
        ]
        return all(mine.isdisjoint(dict(self.plans[other].places)[node]) for other in taken)

    # what is told and judged

    def _stand(self, node: str, key: JobKey) -> PartStand:
        part, nodes = self.here[node, key].part, self.plans[key].nodes
        ranks = (nodes.index(node),)
        stand = PartStand(*key, part.phase, len(nodes), ranks, 9, 9, STEP_NS, STEP_NS, MS, True, at=part.at)
        has_saved = part.phase == words.OFF and self.here[node, key].saved is not None
        return replace(stand, has_saved=has_saved)

    def _stands(self, node: str) -> list[PartStand]:
        return [self._stand(node, key) for where, key in self.here if where == node]

    def _rows(self, node: str) -> list[HeldTime]:
        rows = []
        for (where, key), here in self.here.items():
            if where == node:
                is_on = here.part.phase not in WITHOUT
                held_ns = here.held_ns + (self.now_ns - here.since_ns if is_on else 0)
                gpus = dict(self.plans[key].places)[node]
                state = words.ON if is_on else words.OFF
                rows.append(HeldTime(*key, self.plans[key].user, gpus, held_ns, 0, state))
        return rows

    def _check(self, node: str, key: JobKey) -> None:
        taken: dict[int, JobKey] = {}
        for (where, other), here in self.here.items():
            for gpu in dict(self.plans[other].places)[node] if where == node else ():
                if here.part.phase not in WITHOUT:
                    if gpu in taken:
                        self.wrong.append(f"{self.now_ns}: GPU {gpu} of {node}: {taken[gpu]} and {other}")
                    taken[gpu] = other
        phases = {self.here[where, key].part.phase not in WITHOUT for where in self.plans[key].nodes}
        if len(phases) == 1:
            since_ns = self.torn_ns.pop(key, self.now_ns)
            self.longest_torn_ns = max(self.longest_torn_ns, self.now_ns - since_ns)
            if phases == {True} and self.here[node, key].part.phase == words.ON:
                self.turns[key].append(self.now_ns)
        else:
            self.torn_ns.setdefault(key, self.now_ns)
