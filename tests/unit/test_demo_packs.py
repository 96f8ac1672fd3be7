"""What the demonstration makes of GPUs that two jobs share, and of ends that are no good ones."""

import pytest

from gandiva_slurm.mini import demo_checks as checks
from gandiva_slurm.mini.demo_checks import JobRecord
from gandiva_slurm.mini.demo_holds import overlaps_in_events

S = checks.NS_PER_S


def event(name: str, at_ns: int, job_id: int, **fields: object) -> dict[str, object]:
    return {"event": name, "mono_ns": at_ns, "node": "n1", "job": job_id, "restart": 0, "gpus": [0], **fields}


def test_a_pack_that_is_over_excuses_no_overlap() -> None:
    packed = [event("grant", 0, 1), event("grant", 1, 2), event("packed", 1, 1, mate=2)]
    apart = [event("unpacked", 8, 1, mate=2), event("release", 8, 2)]
    again = [event("grant", 20, 2), event("release", 30, 2), event("release", 40, 1)]
    assert overlaps_in_events([*packed, *apart, again[-1]]) == 0
    assert overlaps_in_events([*packed, *apart, *again]) == 1


def test_time_that_two_shared_counts_half_for_each() -> None:
    jobs = [JobRecord(number, f"job{number}", f"user{number}", 1) for number in (1, 2)]
    holds = [
        {"user": "user1", "gpus": [0], "t0_ns": 0, "t1_ns": 10 * S, "shared_with": 2},
        {"user": "user2", "gpus": [0], "t0_ns": 0, "t1_ns": 10 * S, "shared_with": 1},
        {"user": "user2", "gpus": [0], "t0_ns": 10 * S, "t1_ns": 20 * S},
    ]
    users = checks.user_shares(holds, (0, 20 * S), {"user1": 100, "user2": 100}, jobs, 1)
    assert (users["user1"]["gpu_s"], users["user2"]["gpu_s"]) == (5, 15)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "RUNNING", ""])
def test_only_completed_jobs_have_ended_well(state: str) -> None:
    assert checks.check_ends([JobRecord(1, "one", "user1", 1, state="COMPLETED")]).ok
    assert not checks.check_ends([JobRecord(1, "one", "user1", 1, state=state)]).ok
