"""Messages between controller and nodes: what does not read as one is told, whichever part of it is wrong."""

import json

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.messages import NodeReport, Resident, decode_plan, decode_report, encode

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
