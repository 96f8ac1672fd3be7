"""A controller of few words for tests: gives orders about spans to several nodes at once, as it is told.

floor = Coordinator(one, two)
floor.come_in(50)
assert floor.park(50)
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from gandiva_slurm.model import span as words
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.wire.messages import encode
from gandiva_slurm.wire.span import SPAN_PATH, SpanAnswer, SpanOrder, decode_answer
from tests import patience
from tests.node.harness import DEADLINE_S, NodeHarness

#: Boundaries ahead of the foremost rank to aim at, and how often that is doubled.
MARGIN, REAIMS = 4, 5
WAIT_MS = 10_000


class Coordinator:
    """Answers are by node name; a node that does not answer is left out."""

    def __init__(self, *nodes: NodeHarness) -> None:
        self.nodes = nodes
        self.epoch_ns = time.time_ns()
        #: the restart count of the spans it speaks of
        self.restart = 0
        self._seq = itertools.count(1)

    def tell(
        self, what: str, job_id: int = 0, nodes: Sequence[NodeHarness] = (), **more: Any
    ) -> dict[str, SpanAnswer]:
        """Give an order to all nodes, or to these, and wait for the answers."""
        restart = self.restart if job_id else 0
        seq, fields = next(self._seq), {"wait_ms": WAIT_MS, "restart": restart} | more

        async def one(node: NodeHarness) -> SpanAnswer | None:
            order = SpanOrder(node.name, self.epoch_ns, seq, what, job_id, **fields)
            try:
                return decode_answer(await node.post(SPAN_PATH, encode(order)))
            except GandivaError:
                return None

        async def every() -> list[SpanAnswer | None]:
            return list(await asyncio.gather(*(one(node) for node in nodes or self.nodes)))

        return {answer.node: answer for answer in asyncio.run(every()) if answer is not None}

    def do(self, what: str, job_id: int, **more: Any) -> dict[str, SpanAnswer]:
        """Give an order that must be fulfilled everywhere."""
        answers = self.tell(what, job_id, **more)
        assert self.is_done(answers), answers
        return answers

    def is_done(self, answers: dict[str, SpanAnswer]) -> bool:
        """True when all nodes have answered and have fulfilled it."""
        return len(answers) == len(self.nodes) and all(answer.ok for answer in answers.values())

    def round(self, *told: tuple[int, str], lease_ms: int = 0) -> None:
        """End the quantum everywhere: (job, in|on|out)."""
        spans = tuple((job_id, self.restart, where) for job_id, where in told)
        self.tell(words.ROUND, spans=spans, lease_ms=lease_ms)

    def phases(self, job_id: int) -> list[str]:
        """The span's phase on each node that has a part of it."""
        answers = self.tell(words.GATHER)
        return [part.phase for answer in answers.values() for part in answer.parts if part.job_id == job_id]

    def come_in(self, job_id: int) -> None:
        """Bring a span in; anew when a node gave its GPUs on before all had them: a stall."""
        end_s = patience.deadline(DEADLINE_S)
        while True:
            self.round((job_id, words.IN))
            answers = self.tell(words.RESERVE, job_id)
            if self.is_done(answers):
                answers = self.tell(words.GO, job_id)
                if self.is_done(answers):
                    return
            assert time.monotonic() < end_s, answers

    def is_parkable(self, job_id: int) -> bool:
        """True when all its ranks are there and warm."""
        parts = self._parts(self.tell(words.GATHER), job_id)
        ranks = sorted(rank for part in parts for rank in part.ranks)
        world = max(part.world for part in parts)
        return world > 0 and ranks == list(range(world)) and all(part.is_parkable for part in parts)

    def aim(self, job_id: int, saves: bool = False) -> bool:
        """Let all its ranks hold at one boundary; False when none was found."""
        answers = self.tell(words.GATHER)
        for reaims in range(REAIMS + 1):
            at = max(part.max_seq for part in self._parts(answers, job_id)) + (MARGIN << reaims)
            answers = self.tell(words.AIM, job_id, at=at, wait_ms=1500, saves=saves)
            if self.is_done(answers):
                return True
        return False

    def park(self, job_id: int, until: str = words.OFF, saves: bool = False) -> bool:
        """Park a span; it goes on when that fails: a node lets it when the next order is late."""
        self.round((job_id, words.OUT))
        is_parked = self.aim(job_id, saves)
        if is_parked and until != words.HOLDING:
            is_parked = self.is_done(self.tell(words.COMMIT, job_id))
        if is_parked and until == words.OFF:
            answers = self.tell(words.FREE, job_id)
            is_parked = self.is_done(answers)
            freed = [name for name, answer in answers.items() if answer.ok]
            # What one node has given on alone is not to be had back at once.
            assert is_parked or not freed, answers
        if not is_parked:
            self.tell(words.RUN, job_id)
        return is_parked

    def _parts(self, answers: dict[str, SpanAnswer], job_id: int) -> list[words.PartStand]:
        return [part for answer in answers.values() for part in answer.parts if part.job_id == job_id]
