"""controller.spans: rounds and orders over nodes that answer, are silent, or come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gandiva_slurm.controller.orders import Orders
from gandiva_slurm.controller.record import Record
from gandiva_slurm.controller.spans import REST_S, Spans, SpanSettings
from gandiva_slurm.model import span as words
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.wire.messages import PlannedJob, encode
from gandiva_slurm.wire.span import SPAN_PATH, SpanAnswer, SpanOrder, decode_order
from tests import patience
from tests.records import read_lines

EPOCH_NS = 42
QUANTUM_NS = 200_000_000
REFUSAL_BOUND_NS = 3 * QUANTUM_NS
GANG, BESIDE = JobKey(1, 0), JobKey(2, 0)
PLACES = (("n1", (0, 1)), ("n2", (0, 1)))


class FakeNode:
    """A node that does at once what it is told, and counts what was held."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.phase = words.OFF
        self.is_silent = False
        #: its ranks come to no boundary
        self.refuses = False
        #: they were asked to save themselves, and cannot
        self.saves = self.fails = False
        self.orders: list[SpanOrder] = []
        #: what the gang has held here, and the job beside it
        self.held_ns = self.beside_ns = 0
        self._since_ns = time.monotonic_ns()

    def obey(self, order: SpanOrder) -> SpanAnswer:
        """Answer an order."""
        self.orders.append(order)
        now_ns = time.monotonic_ns()
        is_out = self.phase in (words.OFF, words.RESERVED, words.READY)
        self.held_ns += 0 if is_out else now_ns - self._since_ns
        self.beside_ns += now_ns - self._since_ns if is_out else 0
        self._since_ns = now_ns
        self.saves = order.saves if order.what == words.AIM else self.saves
        refuses = (self.refuses and order.what == words.AIM) or (
            self.fails and self.saves and order.what == words.COMMIT
        )
        self.phase = self.phase if refuses else words.ORDERS[order.what][1] or self.phase
        has_saved = self.saves and self.phase == words.OFF
        facts = {"world": 2, "ranks": (self.rank,), "max_seq": 9, "is_parkable": True, "at": order.at}
        facts["has_saved"] = has_saved
        part = PartStand(*GANG, self.phase, **facts)  # type: ignore[arg-type]
        state = words.OFF if self.phase in (words.OFF, words.RESERVED, words.READY) else words.ON
        held = [HeldTime(*GANG, "user1", (0, 1), self.held_ns, 0, state)]
        if self.name == "n1":
            beside = words.ON if state == words.OFF else words.OFF
            held.append(HeldTime(*BESIDE, "user2", (0, 1), self.beside_ns, 0, beside))
        rows = tuple(held) if order.what == words.GATHER else ()
        code, why = (words.NO, "no boundary was found") if refuses else ("", "")
        return SpanAnswer(self.name, "b", order.epoch_ns, order.seq, not code, code, why, (part,), rows)

    def told(self) -> list[str]:
        """The orders to its part, oldest first."""
        return [order.what for order in self.orders if order.job_id]


class Bench:
    """Spans over two fake nodes."""

    def __init__(self, tmp_path: Path) -> None:
        self.nodes = {name: FakeNode(name, rank) for rank, name in enumerate(("n1", "n2"))}
        self.record = tmp_path / "spans.jsonl"
        orders = Orders(self.transport, lambda: EPOCH_NS)
        settings = SpanSettings(QUANTUM_NS, 10**9, 10**9, REFUSAL_BOUND_NS)
        self.spans = Spans(orders, settings, Record(self.record))

    async def transport(self, name: str, path: str, payload: bytes, timeout_s: float) -> bytes:
        """The way to the nodes."""
        node = self.nodes[name]
        if node.is_silent:
            raise PeerError(f"{name}: cannot be reached")
        assert path == SPAN_PATH
        return encode(node.obey(decode_order(payload)))

    def plan(self, *, with_gang: bool = True, is_leaving: bool = False) -> None:
        """The plan: the gang on both nodes, and a job of user2 on n1 beside it."""
        part = PlannedJob(*GANG, "user1", 1, (0, 1), 500, 1, "g", PLACES, is_leaving)
        jobs = {name: [part] for name in self.nodes}
        if not with_gang:
            jobs = {name: [] for name in self.nodes}
        jobs["n1"].append(PlannedJob(*BESIDE, "user2", 2, (0, 1), 1000, 2))
        self.spans.follow({"n1": 2, "n2": 2}, jobs)

    async def until(self, holds: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
        """Wait for something."""
        end_s = patience.deadline(deadline_s)
        while not holds():
            assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
            await asyncio.sleep(0.01)

    def all_are(self, phase: str) -> bool:
        """True when all parts are in this phase."""
        return all(node.phase == phase for node in self.nodes.values())


def in_loop(tmp_path: Path, scene: Callable[[Bench], object]) -> Bench:
    """Play a scene and close."""

    async def play() -> Bench:
        bench = Bench(tmp_path)
        try:
            await scene(bench)  # type: ignore[misc]
        finally:
            await bench.spans.close()
        return bench

    return asyncio.run(play())


def test_gang_takes_turns_and_all_is_recorded(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.plan()
        for _ in range(2):
            await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
            await bench.until(lambda: bench.all_are(words.OFF), "the gang to be out")
        # The nodes are out before the controller has heard so of both.
        await bench.until(lambda: len(recorded(bench)) >= 4, "its turns to be recorded")

    def recorded(bench: Bench) -> list[dict[str, object]]:
        return [line for line in read_lines(bench.record) if line["event"] == "span"]

    bench = in_loop(tmp_path, scene)
    for node in bench.nodes.values():
        turn = [words.RESERVE, words.GO, words.AIM, words.COMMIT, words.FREE]
        assert node.told()[:10] == turn * 2
        seqs = [order.seq for order in node.orders]
        assert seqs == sorted(seqs) and {order.epoch_ns for order in node.orders} == {EPOCH_NS}
        assert all(order.lease_ms > QUANTUM_NS // 10**6 for order in node.orders if order.what == words.ROUND)
    lines, moves = read_lines(bench.record), recorded(bench)
    assert [line["to"] for line in moves[:4]] == ["in", "out", "in", "out"]
    assert [(line["outcome"], line["error"]) for line in moves[:4]] == [("on", ""), ("off", "")] * 2
    assert [stage for stage, _ in moves[1]["stages"]] == ["AIM", "COMMIT", "FREE", "off"]
    assert any(line["event"] == "round" and line["silent"] == [] for line in lines)


def test_silent_node_leaves_the_gang_as_it_is_and_why_says_so(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
        bench.nodes["n2"].is_silent = True
        told = bench.nodes["n1"].told()
        await bench.until(
            lambda: any("n2 does not answer" in line for line in bench.spans.evidence(GANG)), "why to say so"
        )
        rounds = len(bench.nodes["n1"].orders)
        await bench.until(lambda: len(bench.nodes["n1"].orders) > rounds + 8, "more rounds")
        # What was under way when n2 fell silent was taken back.
        assert set(bench.nodes["n1"].told()[len(told) :]) <= {words.AIM, words.COMMIT, words.RUN}
        assert bench.nodes["n1"].phase == words.ON
        bench.nodes["n2"].is_silent = False
        await bench.until(lambda: bench.all_are(words.OFF), "its turn to end")
        assert bench.spans.evidence(BESIDE) == [] and bench.spans.evidence(GANG)

    in_loop(tmp_path, scene)


def test_gang_that_refuses_to_park_is_frozen_on_all_nodes_and_why_says_so(tmp_path: Path) -> None:
    told: list[str] = []

    async def scene(bench: Bench) -> None:
        bench.nodes["n2"].refuses = True
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
        await bench.until(lambda: bench.all_are(words.OFF), "the gang to be frozen")
        await bench.until(
            lambda: any("frozen where it is" in line for line in bench.spans.evidence(GANG)), "why to say so"
        )
        told.extend(bench.spans.evidence(GANG))
        await bench.until(lambda: bench.all_are(words.ON), "its turn")
        await bench.until(lambda: bench.all_are(words.OFF), "the gang to be frozen again")
        bench.nodes["n2"].refuses = False
        await bench.until(lambda: bench.all_are(words.ON), "its turn")
        await bench.until(lambda: bench.all_are(words.OFF), "the gang to be parked")

    bench = in_loop(tmp_path, scene)
    assert any("failed to park" in line and "no boundary was found" in line for line in told)
    for node in bench.nodes.values():
        outs = [what for what in node.told() if what in (words.AIM, words.RUN, words.FREEZE, words.COMMIT)]
        assert outs[:2] == [words.AIM, words.RUN], "asked first"
        frozen = [n for n, what in enumerate(outs) if what == words.FREEZE]
        assert len(frozen) == 2 and words.AIM in outs[frozen[0] : frozen[1]], "asked in between"
        assert words.COMMIT in outs[frozen[1] :]


def test_gang_that_is_to_be_moved_saves_itself_whole_and_stays_out(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.nodes["n2"].fails = True
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
        bench.plan(is_leaving=True)
        await bench.until(lambda: "no boundary was found" in str(bench.spans.evidence(GANG)), "a failed save")
        assert not any(node.saves and node.phase == words.OFF for node in bench.nodes.values())
        bench.nodes["n2"].fails = False
        await bench.until(lambda: _have_left(bench), "the gang to have left")
        rounds = len(bench.nodes["n1"].orders)
        await bench.until(lambda: len(bench.nodes["n1"].orders) > rounds + 8, "more rounds")
        assert _have_left(bench) and any("it has saved itself" in line for line in bench.spans.evidence(GANG))
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to go on where it is")

    bench = in_loop(tmp_path, scene)
    saves = [line for line in read_lines(bench.record) if line["event"] == "span" and line["saves"]]
    assert [bool(line["error"]) for line in saves][-1:] == [False] and saves[0]["error"]
    assert "failed to park" not in str(saves), "it is no refusal"


def _have_left(bench: Bench) -> bool:
    return all(node.saves and node.phase == words.OFF for node in bench.nodes.values())


def test_what_another_controller_left_is_mended(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.nodes["n1"].phase, bench.nodes["n2"].phase = words.RELEASED, words.OFF
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be whole")
        assert bench.nodes["n1"].told()[0] == words.RUN
        assert bench.nodes["n2"].told()[:2] == [words.RESERVE, words.GO]

    in_loop(tmp_path, scene)


def test_domain_ends_with_its_last_span(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
        bench.plan(with_gang=False)
        await asyncio.sleep(0)
        count = len(bench.nodes["n1"].orders)
        await asyncio.sleep(3 * QUANTUM_NS / 1e9)
        assert len(bench.nodes["n1"].orders) <= count + 1
        assert bench.spans.evidence(GANG) == []
        bench.plan()
        await bench.until(lambda: len(bench.nodes["n1"].orders) > count + 3, "rounds again")

    in_loop(tmp_path, scene)


@pytest.mark.parametrize("steps", range(6))
def test_it_ends_though_something_changes_in_the_same_moment(tmp_path: Path, steps: int) -> None:
    """A flag that wakes a domain, and its end a few steps of the loop later: the end is not lost."""

    async def scene(bench: Bench) -> None:
        bench.plan()
        await bench.until(lambda: bench.all_are(words.ON), "the gang to be on")
        (lead,) = bench.spans._leads.values()
        lead.changed.clear()
        await asyncio.sleep(2 * REST_S)  # it rests until its quantum ends
        lead.changed.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        lead.stop()
        assert lead.task is not None
        done, _ = await asyncio.wait({lead.task}, timeout=10)
        assert done, "it holds rounds for ever"

    in_loop(tmp_path, scene)


def test_node_that_answers_for_another_is_not_believed(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.nodes["n2"].name = "n9"
        bench.plan()
        await bench.until(lambda: bench.record.exists(), "a round")
        assert not bench.nodes["n1"].told()
        assert any("n2 does not answer" in line for line in bench.spans.evidence(GANG))

    in_loop(tmp_path, scene)


def test_record_is_moved_aside_when_it_is_big_and_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path / "spans.jsonl", max_bytes=300)
    for n in range(6):
        record.write("round", n=n)
    kept = read_lines(tmp_path / "spans.jsonl.1") + read_lines(tmp_path / "spans.jsonl")
    assert [line["n"] for line in kept] == sorted(line["n"] for line in kept) and kept[-1]["n"] == 5
    Record(tmp_path / "missing" / "spans.jsonl").write("round")
