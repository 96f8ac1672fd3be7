"""Messages to both daemons: what stands behind each socket, in this process, on mutations of valid ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import AuthError, PeerBusy, PeerError
from gandiva_slurm.model.span import ORDERS, HeldTime, PartStand
from gandiva_slurm.node import hello, planning
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.sock import Speech
from gandiva_slurm.node.span import Spans
from gandiva_slurm.wire import http
from gandiva_slurm.wire.messages import (
    Hold,
    NodePlan,
    NodeReport,
    PlannedJob,
    Resident,
    decode_plan,
    decode_report,
    encode,
)
from gandiva_slurm.wire.span import SpanAnswer, SpanOrder, decode_answer, decode_order
from tests.fuzz.kit import Target, in_loop, mutated, mutated_json
from tests.node_bench import Bench, NoProcesses

#: A name that no gandivad has whose jobs' processes a fence could meet.
NODE = f"fuzz{os.getpid()}"
SPAN = ((NODE, (0, 1)), ("other", (0, 1)))
JOBS = (
    PlannedJob(1, 0, "user1", 61001, (0,), 10, 1, "one"),
    PlannedJob(2, 0, "user2", 61002, (0, 1), 10, 2, "two", mate=1, is_on=True),
    PlannedJob(3, 1, "user3", 61003, (0, 1), 5, 3, span=SPAN, vc="a", is_leaving=True),
)
PLAN = NodePlan(NODE, 5, 7, 10**9, 2, JOBS, ((4, 0),), "boot", 3, 9, 500, ((1, 2, 3),))
RESIDENT = Resident(7, 0, "RUNNING", (0, 1), 1, 2, 2, 2, 50, 9.5, 3, 0, 0, 5, "Running", "", rate_alone=0.5)
HOLD = Hold(1, 7, 0, "user1", (0, 1), 10, 20, 1)
REPORT = NodeReport("n1", "boot", 10**18, 2, 3, 4, (RESIDENT,), (HOLD,), ((7, 0),), ((0, 12, 7, 1 << 30),))
STAND, HELD = PartStand(3, 1, "on", 2, (0,), 5, 6), HeldTime(3, 1, "user3", (0, 1), 5, 0, "on")
ANSWER = SpanAnswer("n1", "boot", 5, 6, True, parts=(STAND,), held=(HELD,))
ORDER_VALUES = tuple(
    SpanOrder(NODE, 5, 6, what, 3 * (what not in ("GATHER", "ROUND")), 1, 9, 50, ((3, 1, "in"),), 100)
    for what in ORDERS
)
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"ask": "queue", "args": {"user": "user1", "job_ids": [1, 101], "states": ["RUNNING"]}},
    {"ask": "acct", "args": {"job_ids": [101], "users": ["user1"], "states": ["RUNNING"], "start_s": 0}},
    {"ask": "acct", "args": {"accounts": ["lab"], "start_s": 1.5, "end_s": 2e9, "truncate": True}},
    {"ask": "share", "args": {"users": ["user1"], "accounts": ["lab"], "now_s": 1.7e9, "start_s": 0}},
    {"ask": "why", "args": {"job_id": 101, "story": True}},
    {"ask": "nodes", "args": {}}, {"ask": "ping"}, {"ask": "holds", "args": {"start_s": 0}},
    {"ask": "update", "args": {"job_ids": [101], "priority": 50}},
)  # fmt: skip
HELLO = {"hello": 1, "rank": 0, "world": 2, "master": "h:1", "backend": "nccl", "torch": "2.3", "kind": 3}
BINDS = (b"BIND 1 7 0 batch 0 0,1 -\n", b"BIND 2 7 3 12 5 4,5,6 6\n", b"BIND 2 9 0 interactive 0 - none\n")


def lines(chance: random.Random) -> bytes:
    """What may come on a unix socket."""
    if chance.random() < 0.4:
        value = chance.choice((HELLO, HELLO, {"page_fd": 12}))
        return mutated_json(value, chance) + (b"\n" if chance.random() < 0.9 else b"")
    return mutated(chance.choice((*BINDS, b"TASK 61001\n")), chance)


def parse_line(case: bytes) -> None:
    """All four readers of lines, whatever this one is meant for; their words are in bounds."""
    refusals = 0
    for parse in (hello.parse_bind, hello.parse_task, hello.parse_hello, hello.parse_object):
        try:
            _check(parse(case[: 2 * hello.MAX_LINE]))
        except PeerError:
            refusals += 1
    if refusals == 4:
        raise PeerError("no line of ours")


def _check(parsed: Any) -> None:
    if isinstance(parsed, hello.Bind):
        numbers = (*parsed.key, *parsed.job_slots, *parsed.step_slots, parsed.task)
        assert all(0 <= number < 1 << 32 for number in numbers), numbers
    if isinstance(parsed, hello.Hello):
        assert 0 <= parsed.rank < parsed.world and abs(parsed.kind) < 1 << 63, parsed
        assert (parsed.master + parsed.backend + parsed.torch).isprintable()


class StandIn:
    """An admission that knows no job: it takes and refuses by what the line says."""

    def bind(self, peer: Peer, bind: hello.Bind) -> dict[str, str]:
        """As gandivad's: words for the task, refused or put off."""
        if bind.key.job_id % 3 == 0:
            raise PeerBusy("no plan yet")
        if bind.key.job_id % 3 == 1:
            raise PeerError(f"job {bind.key} is another's")
        return {"GANDIVA_JOB": str(bind.key.job_id)}

    def greet(self, peer: Peer, greeting: hello.Hello) -> Any:
        """No rank is of a job here."""
        raise PeerError(f"rank {greeting.rank} of {greeting.master} is of no job")

    async def offers(self, peer: Peer) -> bool:
        """There are no images."""
        return False


@contextlib.contextmanager
def speech() -> Iterator[Callable[[bytes], None]]:
    """Yield what says a case on one end of a socket while gandivad's own code listens on the other."""
    talks = Speech(StandIn(), StandIn())  # type: ignore[arg-type]
    peer = Peer(ProcId(os.getpid(), 1), 0)

    async def say(case: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # more than a socket holds: the rest is cut off
                ours.sendall(case)
            ours.shutdown(socket.SHUT_WR)
            talk = talks.with_root if case.startswith(b"TASK") else talks.with_anybody
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await talk(theirs, peer)

    with in_loop() as run:
        yield lambda case: run(say(case))


def message(*values: Any) -> Callable[[random.Random], bytes]:
    """Return what draws mutations of these messages."""
    raw = [value if isinstance(value, dict) else json.loads(encode(value)) for value in values]

    def draw(chance: random.Random) -> bytes:
        return mutated_json(chance.choice(raw), chance)

    return draw


class Planned(Bench):
    """A node that takes plans and orders, and reports: no job of it has processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 2)
        self.node.settings = dataclasses.replace(self.node.settings, node=NODE)
        self.node.events.write = lambda *_, **__: None  # type: ignore[method-assign]
        self.add(1, "user1", (0,))
        self.add(2, "user2", (0, 1))
        self.spans = Spans(self.node, self.slicer)

    def plan(self, case: bytes) -> None:
        """As the route does; then a turn goes by."""
        self.planning.take(decode_plan(case))
        encode(make_report(self.node))
        self.quantum()

    async def order(self, case: bytes) -> None:
        """As the route does; an order that waits is let go."""
        obey = self.spans.take(decode_order(case))
        try:
            obey.send(None)
        except StopIteration as done:
            encode(done.value)
        finally:
            obey.close()


@contextlib.contextmanager
def node(directory: Path, what: str, anew: int = 50) -> Iterator[Callable[[bytes], None]]:
    """Yield what gives plans or orders to a node, which is made anew now and then."""
    former, planning.JobProcesses = planning.JobProcesses, NoProcesses  # type: ignore[misc]
    state: dict[str, Any] = {"cases": 0}

    async def take(case: bytes) -> None:
        if state["cases"] % anew == 0:
            state["bench"] = Planned(directory)
            state["bench"].plan(encode(PLAN))
        state["cases"] += 1
        try:
            if what == "plan":
                state["bench"].plan(case)
            else:
                await state["bench"].order(case)
        except PeerError:
            raise
        except Exception:
            state["cases"] = 0  # what is half done is no ground for the next
            raise

    try:
        with in_loop() as run:
            yield lambda case: run(take(case))
    finally:
        planning.JobProcesses = former  # type: ignore[misc]


class ClearSigner:
    """Reads a credential as the real signer does, and takes munge's place in what it says of it."""

    def sign(self, payload: bytes) -> bytes:
        """As root."""
        return b"MUNGE:0\n" + payload

    def verify(self, credential: bytes) -> tuple[bytes, int]:
        """As MungeSigner, with the uid in clear text."""
        line, newline, payload = credential.partition(b"\n")
        if not newline or len(line) > 4096 or not line.startswith(b"MUNGE:"):
            raise AuthError("the message is not signed with munge")
        if line[6:] not in (b"0", b"61001"):
            raise AuthError("cannot check a signature")
        return payload, int(line[6:])


class Body:
    """As much of a request as a route reads."""

    def __init__(self, path: str, body: bytes) -> None:
        self.path, self.remote, self._body = path, "127.0.0.1", body
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """In two pieces."""
        half = len(self._body) // 2
        yield self._body[:half]
        yield self._body[half:]


class Guest:
    """One connection, as the door knows it."""

    is_known = False


@contextlib.contextmanager
def route(limit: int = 64 * 1024) -> Iterator[Callable[[bytes], None]]:
    """Yield what posts a case to a signed route whose handler reads a plan; never may it answer 500."""

    async def handler(payload: bytes, uid: int) -> bytes:
        return encode(decode_plan(payload))

    signed = http.signed_route(ClearSigner(), lambda uid: uid == 0, handler, limit, 2)  # type: ignore[arg-type]

    async def post(case: bytes) -> None:
        answer = await signed(Body("/v1/plan", case), Guest())  # type: ignore[arg-type]
        assert answer.status in (200, 400, 401, 403), f"answered {answer.status}"
        if answer.status != 200:
            raise PeerError(str(answer.status))

    with in_loop() as run:
        yield lambda case: run(post(case))


def signed(chance: random.Random) -> bytes:
    """A signed plan, changed within or as a whole."""
    payload = mutated_json(json.loads(encode(PLAN)), chance)
    whole = b"MUNGE:%d\n/v1/plan\n" % chance.choice((0, 0, 0, 61001)) + payload
    return mutated(whole, chance) if chance.random() < 0.4 else whole


@contextlib.contextmanager
def targets(directory: Path) -> Iterator[tuple[Target, ...]]:
    """Yield all that takes messages, but for what needs a controller (`asked`)."""
    with (
        speech() as say,
        node(directory / "plans", "plan") as plan,
        node(directory / "orders", "order") as order,
        route() as post,
    ):
        yield (
            Target("line", lines, parse_line),
            Target("socket", lines, say),
            Target("plan", message(PLAN), decode_plan),
            Target("report", message(REPORT), decode_report),
            Target("answer", message(ANSWER), decode_answer),
            Target("order", message(*ORDER_VALUES), decode_order),
            Target("planned", message(PLAN), plan),
            Target("ordered", message(*ORDER_VALUES), order),
            Target("http", signed, post),
        )
