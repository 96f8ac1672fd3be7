"""What a run cost, taken from a made record: two jobs on one GPU, the first of which is moved."""

from __future__ import annotations

from typing import Any

import pytest

from gandiva_slurm.mini.validation.costs import measure
from gandiva_slurm.mini.validation.holds import holds_of
from gandiva_slurm.mini.validation.live import Recorded, Step
from gandiva_slurm.mini.validation.plan import PacedJob

MS = 1_000_000
TYPES = {"n1": "v100", "n2": "p100"}
JOBS = (PacedJob("a", "user1", 1, 6, 0), PacedJob("b", "user2", 1, 5, 0))


def event(what: str, job: int, ms: int, node: str = "n1", restart: int = 0) -> dict[str, Any]:
    return {"event": what, "job": job, "restart": restart, "node": node, "gpus": [0], "t_ns": ms * MS}


def steps(*spans: tuple[int, int, int]) -> list[Step]:
    """(restart count, when it begins, when it ends), in ms."""
    return [
        Step(restart, number, began * MS, ended * MS, 0, "0x0p+0")
        for number, (restart, began, ended) in enumerate(spans)
    ]


#: a loads 2 s and trains; b, started at 4 s, takes turns with it; a leaves for n2, where it ends; b ends.
RECORD = Recorded(
    JOBS, {"a": 1, "b": 2}, {"a": 0, "b": 3000 * MS},
    [
        event("grant", 1, 1000), event("parked", 1, 3530), event("release", 1, 3530),
        event("grant", 2, 4600), event("parked", 2, 6000), event("release", 2, 6000),
        event("grant", 1, 6000), event("parked", 1, 6150), event("release", 1, 6150), event("saved", 1, 6151),
        event("grant", 2, 6160), event("release", 2, 6500),
        event("grant", 1, 7150, "n2", 1), event("release", 1, 9600, "n2", 1),
    ],
    [
        ("Start", 1, 0, 500 * MS), ("Start", 2, 0, 4000 * MS),
        ("Requeue", 1, 0, 6300 * MS), ("Start", 1, 1, 6750 * MS),
    ],
    {
        "a": steps(
            (0, 3000, 3100), (0, 3110, 3210), (0, 3220, 3500), (0, 6010, 6110), (1, 9250, 9375),
            (1, 9400, 9525),
        ),
        "b": steps((0, 5600, 5700), (0, 5710, 5810), (0, 5820, 5980), (0, 6200, 6300), (0, 6310, 6440)),
    },
    {"a": "COMPLETED", "b": "COMPLETED"},
)  # fmt: skip


def test_every_cost_is_what_the_record_says() -> None:
    costs = measure(RECORD, holds_of(RECORD), TYPES)
    assert costs.slurm_s == pytest.approx((500 + 600 + 400) / 3 / 1000)
    assert costs.load_s == pytest.approx((2000 + 1000) / 2 / 1000)
    assert costs.reload_s == pytest.approx(2.1)
    assert costs.exit_s == pytest.approx((60 + 75) / 2 / 1000)
    assert costs.save_s == pytest.approx(0.05), "10 ms before the last mini-batch there, 40 ms after it"
    assert costs.told_s == pytest.approx(9.25 - 6.15)
    assert costs.switch_s == pytest.approx(0.04 + (30 + 20) / 2 / 1000)
    assert costs.steps_s == {
        ("p100", 1): pytest.approx(0.15), ("v100", 1): pytest.approx((110 + 110 + 110 + 110 + 110) / 5 / 1000)
    }  # fmt: skip


def test_a_gpu_that_waits_for_who_lives_there_is_seen_to_wait() -> None:
    """b ends while a, parked there, has not been moved."""
    events = [*RECORD.events[:6], event("grant", 2, 6000), event("release", 2, 6500), event("grant", 1, 6900),
              event("release", 1, 9000)]  # fmt: skip
    record = Recorded(JOBS, RECORD.ids, RECORD.submitted_ns, events, (), RECORD.steps, RECORD.states)
    assert measure(record, holds_of(record), TYPES).look_s == pytest.approx(0.4)


def test_a_job_that_only_comes_then_tells_nothing_of_that() -> None:
    events = [
        event("grant", 2, 1000), event("release", 2, 2000), event("grant", 1, 2900), event("release", 1, 9000)
    ]  # fmt: skip
    record = Recorded(JOBS, RECORD.ids, RECORD.submitted_ns, events, (), RECORD.steps, RECORD.states)
    assert measure(record, holds_of(record), TYPES).counts["look"] == 0


def test_where_no_gang_of_a_size_trained_the_type_tells() -> None:
    costs = measure(RECORD, holds_of(RECORD), TYPES)
    assert costs.step_s("p100", 4) == costs.step_s("p100", 1) == pytest.approx(0.15)
