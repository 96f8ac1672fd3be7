"""wire.span: orders and answers survive the way, and say which field is wrong when they do not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gandiva_slurm.model import span
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.wire.messages import encode
from gandiva_slurm.wire.span import SpanAnswer, SpanOrder, decode_answer, decode_order

ORDER = SpanOrder("n1", 7, 3, span.ROUND, spans=((11, 0, span.IN), (12, 1, span.OUT)), lease_ms=9000)
ANSWER = SpanAnswer(
    "n1",
    "boot-1",
    7,
    3,
    False,
    span.MISS,
    "rank 2 had passed boundary 40",
    (PartStand(11, 0, span.AIMING, 4, (2, 3), 39, 41, 10, 9, 2, True, False, 0, -1, 40),),
    (HeldTime(11, 0, "user1", (0, 1), 5_000, 200, "on"), HeldTime(12, 1, "user2", (0,), 0, 0, "off")),
)


def test_order_and_answer_survive_the_way() -> None:
    assert decode_order(encode(ORDER)) == ORDER
    assert decode_answer(encode(ANSWER)) == ANSWER
    assert [part.key for part in ANSWER.parts] == [(11, 0)]
    assert [item.key for item in ANSWER.held] == [(11, 0), (12, 1)]


def test_fields_of_a_newer_daemon_are_ignored_and_missing_ones_refused() -> None:
    raw = dataclasses.asdict(ANSWER)
    raw["parts"][0]["mood"] = raw["weather"] = "fine"
    assert decode_answer(json.dumps(raw).encode()) == ANSWER
    del raw["parts"][0]["phase"]
    with pytest.raises(PeerError, match="PartStand: no field phase"):
        decode_answer(json.dumps(raw).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":99}', b"\xff"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode_order(data)
    with pytest.raises(PeerError):
        decode_answer(data)


def test_every_order_waits_for_a_phase_that_exists() -> None:
    for what, (_, phase) in span.ORDERS.items():
        assert phase in ("", *span.PHASES), what
