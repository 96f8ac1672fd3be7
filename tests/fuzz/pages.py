"""Random words on ranks' pages: all of gandivad that reads them goes on, and no word buys a hold."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gandiva_slurm.model.span import ORDERS
from gandiva_slurm.node import saved
from gandiva_slurm.node.pages import Page, error_text
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import decode_report, encode
from gandiva_slurm.wire.span import SpanOrder, decode_answer
from tests.fuzz.kit import Target, in_loop
from tests.node_bench import QUANTUM_NS
from tests.node_floor import SPAN, Floor

WORDS = 64
#: Per rank: which words are written, and each as (what it is told from, a number).
_HEAD, _ITEM = struct.Struct("=B"), struct.Struct("=BBq")
ABSOLUTE, GENERATION, BOUNDARY, CLOCK, SEQ = range(5)
RANK_WORDS = tuple(range(wire.W_SEQ, WORDS))
SPECIAL = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 77, 100, 1 << 16, 1 << 32, (1 << 53) + 1, (1 << 62) - 1, 1 << 62, -(1 << 63),
    -1,
    -2, (1 << 63) - 1, 60_000, 10**9,
)  # fmt: skip
STATES = tuple(range(8))
#: Turns of one bench, and after how many the honest are looked at.
TURNS, LOOK = 600, 150
#: A gang that does not park is ahead for a while: five turns until it is frozen, and again. It is charged and
#: pays that back, so that its lead has a bound, however long it goes on.
BOUND, LEAD = 5, 25


def draw(chance: random.Random) -> bytes:
    """What three jobs' ranks write before and within one turn."""
    return b"".join(_page(chance) for _ in range(chance.choice((3, 5, 9))))


def _page(chance: random.Random) -> bytes:
    if chance.random() < 0.3:  # as a rank would answer, nearly
        items = [
            (wire.W_SEQ, BOUNDARY, chance.choice((0, 0, 0, -1, 1, 5))),
            (wire.W_STATE_SEQ, BOUNDARY, chance.choice((0, 0, 0, 1, -1))),
            (wire.W_STATE_GEN, GENERATION, chance.choice((0, 0, 0, 0, 1, -1))),
            (wire.W_STATE, ABSOLUTE, chance.choice(STATES)),
            (wire.W_LAST_NS, CLOCK, chance.choice((0, -(10**9), 10**15))),
        ]
        items = items if chance.random() < 0.7 else chance.sample(items, 3)
    else:
        words = RANK_WORDS if chance.random() < 0.8 else range(WORDS)  # the whole page is mapped writable
        items = [_item(chance.choice(words), chance) for _ in range(chance.choice((1, 3, 8, 40)))]
    return _HEAD.pack(len(items)) + b"".join(_ITEM.pack(*item) for item in items)


def _item(word: int, chance: random.Random) -> tuple[int, int, int]:
    if word == wire.W_STATE and chance.random() < 0.8:
        return word, ABSOLUTE, chance.choice(STATES)
    if chance.random() < 0.3:
        return word, chance.randrange(1, 5), chance.choice((-1, 0, 0, 1, 2, 1000))
    number = chance.choice(SPECIAL) if chance.random() < 0.7 else chance.randrange(-(1 << 63), 1 << 63)
    return word, ABSOLUTE, number


def _pages(case: bytes) -> Iterator[list[tuple[int, int, int]]]:
    at = 0
    while at < len(case):
        (count,) = _HEAD.unpack_from(case, at)
        at += _HEAD.size
        yield [_ITEM.unpack_from(case, at + n * _ITEM.size) for n in range(count)]
        at += count * _ITEM.size


class Liars(Floor):
    """A lone liar and two who keep a gang, each beside an honest job, and a span that lies as well.

    The honest have no client: they are frozen and thawed whole.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 6, client_wait_ns=0)
        #: a gang that does not park is frozen then
        bound_ns = BOUND * QUANTUM_NS
        self.node.settings = dataclasses.replace(
            self.node.settings, refusal_bound_ns=bound_ns, park_deadline_ns=QUANTUM_NS // 2
        )
        self.node.events.write = lambda *_, **__: None  # type: ignore[method-assign]
        self.watcher._look_for_members = lambda resident: None  # type: ignore[method-assign]
        self.ranks: list[list[Page]] = []
        self.turns = 0
        self._liar(1, "liar", 2, 1)
        self._liar(2, "gang", 3, 2)
        self.add(11, "honest1", (2,))
        self.add(12, "honest2", (3,))
        self.begin(0, 1, world=4)
        self.ranks.append(self.pages)

    def _liar(self, job_id: int, user: str, gpu: int, world: int) -> None:
        job = self.add(job_id, user, (gpu,))
        mine = [Page.make(job.key, number, world, 0) for number in range(world)]
        for number, page in enumerate(mine):
            page.write([(wire.W_SEQ, 10)])
            job.join(Rank(ProcId(4_000_000 + 10 * job_id + number, 1), number, page, None), world, "h:1")
        self.ranks.append(mine)

    def turn(self, case: bytes) -> None:
        """Write, let a part of the turn pass and all that moves look; at the end of the words, the turn's."""
        told = list(_pages(case))
        for number, items in enumerate(told):
            for page in self.ranks[number % len(self.ranks)]:
                page.write(self._said(page, items))
                error_text(page.read())
            self.clock.now_ns += QUANTUM_NS // len(told)
            self._order(number + self.turns, case)
            self.settle()
        self.slicer.quantum()
        self.settle()
        self.watcher.beat()
        self.spans.look()
        decode_report(encode(make_report(self.node)))
        saved.state_of(self.node)
        self.turns += 1

    def _said(self, page: Page, items: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        view = page.read()
        base = {
            ABSOLUTE: 0,
            GENERATION: wire.generation_of(view[wire.W_WORD]),
            BOUNDARY: view[wire.W_AT2],
            CLOCK: self.clock.now_ns,
            SEQ: view[wire.W_SEQ],
        }
        return [(word % WORDS, (base[kind % 5] + number) & wire.NEVER) for word, kind, number in items]

    def _order(self, number: int, case: bytes) -> None:
        """One order to the span, as far as it goes at once."""
        what = [*ORDERS][(number + len(case)) % len(ORDERS)]
        whole = what in ("GATHER", "ROUND")
        where = ("in", "on", "out", "back")[len(case) % 4]
        at = min(max(page.read()[wire.W_SEQ] for page in self.pages) + 5, 1 << 62)
        order = SpanOrder("n1", 1, next(self.seq), what, 0 if whole else SPAN, 0, at, 0, ((SPAN, 0, where),))
        obey = self.spans.take(order)
        try:
            obey.send(None)
        except StopIteration as done:
            decode_answer(encode(done.value))
        finally:
            obey.close()

    def check(self) -> None:
        """The honest have had their half on either GPU, but for the lead that a gang may have."""
        past_s, lead_s = self.turns * QUANTUM_NS / 1e9, LEAD * QUANTUM_NS / 1e9
        for user in ("honest1", "honest2"):
            held_s = self.held_s(user)
            assert held_s >= past_s / 2 - lead_s, f"{user} held {held_s:.0f} of {past_s:.0f} s"

    def close(self) -> None:
        """The pages are memory of this process."""
        for page in {page for mine in self.ranks for page in mine}:
            page.close()


@contextlib.contextmanager
def targets() -> Iterator[tuple[Target, ...]]:
    """Yield what takes pages; benches are made anew now and then, when the honest are counted."""
    state: dict[str, Any] = {"bench": None}

    async def take(case: bytes) -> None:
        bench = state["bench"]
        try:
            if bench is None:
                bench = state["bench"] = Liars(Path(directory) / "node")
            bench.turn(case)
            if bench.turns % LOOK == 0:
                bench.check()
        except BaseException:
            state["bench"] = None
            bench.close()
            raise
        if bench.turns == TURNS:
            state["bench"] = None
            bench.close()

    with tempfile.TemporaryDirectory(prefix=f"gandiva-fuzz-{os.getpid()}-") as directory, in_loop() as run:
        yield (Target("page", draw, lambda case: run(take(case)), ()),)
        if state["bench"] is not None:
            state["bench"].close()
