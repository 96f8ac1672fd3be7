"""Sends orders about spans to the nodes, numbered and signed, and measures how long they are under way."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gandiva_slurm.controller.nodes import Transport
from gandiva_slurm.model.errors import GandivaError, PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import PartStand
from gandiva_slurm.slicing.span_park import Send, SpanMove, Stood
from gandiva_slurm.wire.messages import encode
from gandiva_slurm.wire.span import (
    ANSWER_SLACK_MS,
    LONGEST_WAIT_MS,
    SPAN_PATH,
    SpanAnswer,
    SpanOrder,
    decode_answer,
)

#: How long a node may take to answer what it can answer at once, and one that was silent the last time.
PROMPT_S, SILENT_S = 2.0, 0.5
#: The longest way of an order that aims are made by, and how fast a milder sample is believed.
LONGEST_RTT_NS, FORGET = 250_000_000, 8
#: A node that refuses the connection is not asked again sooner.
BREATH_S = 0.2
#: How often a change of hands looks at its own clock.
TICK_S = 0.5
_MS = 1_000_000

log = logging.getLogger(__name__)


class Orders:
    """The controller's voice to the parts of spans."""

    def __init__(self, transport: Transport, epoch_ns: Callable[[], int]) -> None:
        self._transport = transport
        self._epoch_ns = epoch_ns
        self._seq = itertools.count(1)
        #: an order and its answer, the slow ones of late
        self.rtt_ns = 5 * _MS

    async def ask(self, node: str, what: str, timeout_s: float, **fields: Any) -> SpanAnswer:
        """Send an order that is answered at once; PeerError, AuthError."""
        return await self._post(self._order(node, what, fields), timeout_s)

    async def ask_all(
        self, what: str, timeouts_s: Mapping[str, float], fields: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, tuple[SpanAnswer, int]]:
        """Ask these nodes side by side; return who answered what, and when each was asked (monotonic)."""

        async def one(node: str) -> tuple[str, SpanAnswer | None, int]:
            asked_ns = time.monotonic_ns()
            try:
                answer = await self.ask(node, what, timeouts_s[node], **fields.get(node, {}))
            except GandivaError as err:
                log.debug("%s: %s: %s", node, what, err)
                return node, None, asked_ns
            self._took(time.monotonic_ns() - asked_ns)
            return node, answer if answer.ok else None, asked_ns

        answers = await asyncio.gather(*(one(node) for node in timeouts_s))
        return {node: (answer, asked_ns) for node, answer, asked_ns in answers if answer is not None}

    async def carry_out(self, key: JobKey, move: SpanMove) -> None:
        """Send what a change of hands asks for until it has come to its end."""
        open_: set[asyncio.Task[None]] = set()
        answers: asyncio.Queue[tuple[Send, SpanAnswer | None, str, int]] = asyncio.Queue()
        todo = move.begin(time.monotonic_ns())
        try:
            while not move.outcome:
                open_ |= self._start(key, todo, answers)
                try:
                    async with asyncio.timeout(TICK_S):
                        told = await answers.get()
                except TimeoutError:
                    todo = move.tick(time.monotonic_ns())
                    continue
                todo = self._tell(move, key, told) + move.tick(time.monotonic_ns())
                open_ = {task for task in open_ if not task.done()}
        finally:
            for task in open_:
                task.cancel()
            await asyncio.gather(*open_, return_exceptions=True)

    def _start(
        self, key: JobKey, sends: Iterable[Send], answers: asyncio.Queue[Any]
    ) -> set[asyncio.Task[None]]:
        return {asyncio.create_task(self._send(key, send, answers)) for send in sends}

    async def _send(self, key: JobKey, send: Send, answers: asyncio.Queue[Any]) -> None:
        asked_ns = time.monotonic_ns()
        wait_ms = min(send.wait_ns // _MS, LONGEST_WAIT_MS)
        job = {"job_id": key.job_id, "restart": key.restart}
        ways = {"saves": send.saves, "comes_back": send.comes_back}
        fields = {**job, "at": send.at, "wait_ms": wait_ms, **ways}
        try:
            order = self._order(send.node, send.what, fields)
            answer = await self._post(order, (wait_ms + ANSWER_SLACK_MS) / 1000)
            answers.put_nowait((send, answer, "", asked_ns))
        except GandivaError as err:
            rest_s = BREATH_S - (time.monotonic_ns() - asked_ns) / 1e9
            await asyncio.sleep(max(0.0, rest_s))
            answers.put_nowait((send, None, str(err), asked_ns))

    def _tell(
        self, move: SpanMove, key: JobKey, told: tuple[Send, SpanAnswer | None, str, int]
    ) -> list[Send]:
        send, answer, error, asked_ns = told
        now_ns = time.monotonic_ns()
        if answer is None:
            return move.lost(send.number, error, now_ns)
        part: PartStand | None = next((part for part in answer.parts if part.key == key), None)
        # What a node says when it has waited is no older than the way of its answer.
        stood = None if part is None else Stood(part, max(asked_ns, now_ns - self.rtt_ns))
        why = f"{send.node}: {answer.why or answer.code}"
        return move.answered(send.number, answer.ok, answer.code, why, stood, now_ns)

    def _order(self, node: str, what: str, fields: Mapping[str, Any]) -> SpanOrder:
        return SpanOrder(node, self._epoch_ns(), next(self._seq), what, **fields)

    async def _post(self, order: SpanOrder, timeout_s: float) -> SpanAnswer:
        data = await self._transport(order.node, SPAN_PATH, encode(order), timeout_s)
        answer = decode_answer(data)
        if (answer.node, answer.epoch_ns, answer.seq) != (order.node, order.epoch_ns, order.seq):
            raise PeerError(f"{order.node}: answers another order than was sent; compare node.addresses")
        return answer

    def _took(self, rtt_ns: int) -> None:
        sample = min(rtt_ns, LONGEST_RTT_NS)
        self.rtt_ns = max(sample, self.rtt_ns - (self.rtt_ns - sample) // FORGET)
