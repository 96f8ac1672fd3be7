"""What the node's event log proves: where the daemon was killed between a line and its books, these count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.witness import packs

PAIR = frozenset({1, 2})


def event(at: int, name: str, job: int, **more: Any) -> dict[str, Any]:
    return {"event": name, "mono_ns": at, "job": job, "gpus": [0], **more}


def test_a_pack_whose_grant_was_never_carried_out_is_none() -> None:
    log = [event(1, "packed", 2, mate=1), event(5, "adopt", 2, holds=False), event(7, "packed", 2, mate=1)]
    assert packs([*log, event(9, "unpacked", 2, mate=1)]) == {PAIR: [(7, 9)]}


def test_a_pack_that_was_goes_on_over_the_daemons_death() -> None:
    log = [event(1, "packed", 2, mate=1), event(5, "adopt", 2, holds=True), event(9, "unpacked", 2, mate=1)]
    assert packs(log) == {PAIR: [(1, 9)]}


def test_packed_twice_is_found() -> None:
    log = [event(1, "packed", 2, mate=1), event(5, "adopt", 2, holds=True), event(7, "packed", 2, mate=1)]
    with pytest.raises(AssertionError, match="packed twice"):
        packs(log)
