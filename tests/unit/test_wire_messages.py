"""Messages between controller and nodes: what does not read as one is told, whichever part of it is wrong."""

import json
import math

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.messages import (
    NodePlan,
    NodeReport,
    PlannedJob,
    Resident,
    decode_plan,
    decode_report,
    encode,
)

RESIDENT = Resident(7, 0, "RUNNING", (0, 1), 1, 2, 2, 2, 50, 9.5, 3, 0, 0, 5, "Running", "")
REPORT = NodeReport("n1", "boot", 1, 2, 3, 4, (RESIDENT,), (), ((7, 0),))


def test_a_report_is_read_as_it_was_written() -> None:
    assert decode_report(encode(REPORT)) == REPORT


@pytest.mark.parametrize("name", ["node", "residents", "holds"])
def test_a_report_that_lacks_something_is_told(name: str) -> None:
    raw = json.loads(encode(REPORT))
    del raw[name]
    with pytest.raises(PeerError, match=f"NodeReport: no field {name}; update the older"):
        decode_report(json.dumps(raw).encode())


@pytest.mark.parametrize(("data", "why"), [(b"{", "not JSON"), (b"[]", "vers"), (b'{"version": 0}', "vers")])
def test_what_is_no_plan_is_told(data: bytes, why: str) -> None:
    with pytest.raises(PeerError, match=f"NodePlan: .*{why}"):
        decode_plan(data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"residents": 7}, "NodeReport: residents: expected a list, got 7"),
        ({"residents": [7]}, "Resident: expected an object, got 7"),
        ({"ended": [[7]]}, "NodeReport: ended: expected a list of 2, got "),
        ({"ended": [[7, "0"]]}, "NodeReport: ended: expected a whole number of 64 bits, got '0'"),
        ({"gpus": True}, "NodeReport: gpus: expected a whole number"),
        ({"gpus": 2.0}, "NodeReport: gpus: expected a whole number"),
        ({"now_ns": 1 << 63}, "NodeReport: now_ns: expected a whole number of 64 bits"),
        ({"node": None}, "NodeReport: node: expected a text"),
        ({"node": "\ud800"}, "NodeReport: node: expected a text"),
    ],
)
def test_a_field_of_another_type_is_told(change: dict[str, object], why: str) -> None:
    with pytest.raises(PeerError, match=why):
        decode_report(json.dumps(json.loads(encode(REPORT)) | change).encode())


@pytest.mark.parametrize("rate", [math.nan, math.inf, "1", None, 10**400])
def test_a_rate_is_a_finite_number(rate: object) -> None:
    raw = json.loads(encode(REPORT))
    raw["residents"][0]["rate"] = rate
    with pytest.raises(PeerError, match="Resident: rate: expected a number"):
        decode_report(json.dumps(raw).encode())


def test_brackets_without_end_are_told() -> None:
    with pytest.raises(PeerError, match="not JSON"):
        decode_report(b'{"version": 1, "node": ' + b"[" * 100_000)


def test_what_may_be_missing_may_be_null() -> None:
    plan = NodePlan("n1", 1, 2, 3, 4, (PlannedJob(1, 0, "u", 5, (0,), 1, 1, is_on=None),), (), "", 0)
    assert decode_plan(encode(plan)) == plan
