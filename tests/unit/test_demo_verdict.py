"""The verdict: what is judged, what is told, and that each way to be wrong turns it red, by name."""

import dataclasses
import json
from typing import Any

import pytest

from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_checks import NS_PER_S, JobRecord
from gandiva_slurm.mini.demo_jobs import FIRST_JOBS, LATE_JOB
from gandiva_slurm.mini.demo_plan import ACCEPTANCE, DEMO
from gandiva_slurm.mini.demo_verdict import Around, Recorded, exit_code, lines_of, report_of

MS = 1_000_000
QUIET, BUSY = Usage(100, 80, 75), Usage(100, 95, 75)


def events_of(job: int, parks: int = 2) -> list[dict[str, Any]]:
    """A job on a GPU of its own: each 100 ms it is parked at 90 and released at 99."""
    names = (("park", 90), ("parked", 99), ("release", 99), ("grant", 100), ("resume", 100))
    times = [(name, 100 * n + at) for n in range(parks) for name, at in names]
    plain = {"node": "n1", "job": job, "restart": 0, "gpus": [job], "reaims": 0}
    return [plain | {"event": name, "mono_ns": at * MS} for name, at in [("grant", 0), *times]]


def steps_of(count: int) -> list[tuple[int, int]]:
    """One step of 8 ms every 10 ms."""
    return [(at * 10 * MS, (at * 10 + 8) * MS) for at in range(count)]


def jobs_of(count: int) -> list[JobRecord]:
    loss = [f"0x1.{n:x}p+0" for n in range(count)]
    return [
        JobRecord(
            n, job.name, job.user, job.gpus, "COMPLETED", 3, 0.4,
            losses=[loss] * job.gpus, reference=[loss] * job.gpus, steps=[steps_of(30)] * job.gpus,
        )
        for n, job in enumerate((*FIRST_JOBS, LATE_JOB), 1)
    ]  # fmt: skip


def sorted_events(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((event for found in lists for event in found), key=lambda event: event["mono_ns"])


def recorded(**fields: Any) -> Recorded:
    """A demonstration in which everything is right, but for the fields."""
    spans = (("user1", 2, 10, 30), ("user2", 2, 10, 30), ("user3", 4, 0, 10))
    holds = [
        {"user": user, "gpus": list(range(gpus)), "t0_ns": t0 * NS_PER_S, "t1_ns": t1 * NS_PER_S}
        for user, gpus, t0, t1 in spans
    ]
    events = sorted_events(*(events_of(job) for job in range(1, 7)))
    tickets = dict.fromkeys(("user1", "user2", "user3"), 100)
    good = Recorded(jobs_of(40), holds, events, (0, 30 * NS_PER_S), tickets, "slurm-wlm 22.05.8")
    return dataclasses.replace(good, **fields)


def changed(at: int, **fields: Any) -> list[JobRecord]:
    jobs = jobs_of(40)
    jobs[at] = dataclasses.replace(jobs[at], **fields)
    return jobs


def failed(report: dict[str, Any]) -> list[str]:
    return [row["name"] for row in report["checks"] if row["verdict"] == "FAILED"]


def test_report_has_the_promised_shape() -> None:
    report = report_of(recorded(), ACCEPTANCE, Around(QUIET, (), 0.99))
    assert report["ok"], report["checks"]
    assert {
        "version", "ok", "slurm", "pyslurm", "users", "jobs", "overlaps", "parks_off_boundary", "reaims",
        "suspend_ms", "resume_ms", "start_latency_s", "aggregate_vs_exclusive", "busy", "not_judged",
    } <= report.keys()  # fmt: skip
    assert report["slurm"] == "22.05.8"
    assert set(report["users"]["user1"]) == {"tickets", "gpu_s", "share", "entitled"}
    assert {"job_id", "user", "gpus", "steps", "suspends", "loss_identical"} <= report["jobs"][0].keys()
    assert set(report["suspend_ms"]) == {"p50", "p99"}
    json.dumps(report)


def test_acceptance_has_nine_checks_and_what_is_left() -> None:
    checks = report_of(recorded(), ACCEPTANCE, Around(QUIET, (), 0.99))["checks"]
    assert len(checks) == 10 and sum(row["of_time"] for row in checks) == 4


# --- a demonstration that is wrong --------------------------------------------------------------------


def torn() -> Recorded:
    """Job 1 is parked at 93 ms, in the step from 90 to 98."""
    events = sorted_events(events_of(1), events_of(2))
    return recorded(events=[
        event | {"mono_ns": 93 * MS}
        if event["job"] == 1 and event["event"] in ("parked", "release") and event["mono_ns"] == 99 * MS
        else event
        for event in events
    ])  # fmt: skip


def unfair() -> Recorded:
    """user1 has 10 % more than is due, user2 10 % less."""
    holds = [dict(hold) for hold in recorded().holds]
    holds[0]["t1_ns"] += 2 * NS_PER_S
    holds[1]["t1_ns"] -= 2 * NS_PER_S
    return recorded(holds=holds, window_ns=(0, 32 * NS_PER_S))


def other_loss() -> Recorded:
    losses = [list(rank) for rank in jobs_of(40)[0].losses]
    losses[1][17] = "0x1.00001p+0"
    return recorded(jobs=changed(0, losses=losses))


def held_twice() -> Recorded:
    second = [event | {"gpus": [1]} for event in events_of(2)]
    return recorded(events=sorted_events(events_of(1), second))


WRONG = {
    "parks off a boundary": torn(),
    "GPU time over entitlement": unfair(),
    "losses": other_loss(),
    "GPUs held twice": held_twice(),
    "jobs": recorded(jobs=changed(3, state="LOST")),
}


@pytest.mark.parametrize("plan", [DEMO, ACCEPTANCE], ids=lambda plan: plan.title)
@pytest.mark.parametrize("usage", [QUIET, BUSY], ids=["quiet", "busy"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_red_by_name_whatever_the_load(name: str, plan: Any, usage: Usage) -> None:
    report = report_of(WRONG[name], plan, Around(usage, (), 0.99)) | {"wall_s": 1.0}
    assert not report["ok"] and failed(report) == [name]
    assert exit_code(report, strict=False) == exit_code(report, strict=True) == 1
    assert lines_of(report, usage)[-1] == f"FAILED in 1 s: {name}"


def test_a_torn_step_is_seen_by_its_script_even_where_the_node_says_nothing() -> None:
    report = report_of(torn(), DEMO, Around(QUIET))
    assert report["parks_off_boundary"] == 2, "one on each of its two ranks"


def test_the_first_loss_that_differs_is_named() -> None:
    rows = report_of(other_loss(), DEMO, Around(QUIET))["checks"]
    (row,) = [row for row in rows if row["name"] == "losses"]
    assert row["text"] == "cnn-pair differs from step 18 on (rank 1)"


def test_what_is_left_behind_is_red_unless_the_cluster_was_kept() -> None:
    report = report_of(recorded(), DEMO, Around(QUIET, ["process 7 in pid:[1]"]))
    assert failed(report) == ["left behind"]
    kept = report_of(recorded(), DEMO, Around(QUIET, None))
    assert kept["ok"] and "left behind" not in [row["name"] for row in kept["checks"]]


# --- losses compared ----------------------------------------------------------------------------------


def test_as_many_losses_as_asked_are_compared() -> None:
    def compared(job: JobRecord, reference: int) -> JobRecord:
        alone = [rank[:reference] for rank in job.losses]
        return dataclasses.replace(job, compared=30, reference=alone)

    assert report_of(recorded(jobs=[compared(job, 30) for job in jobs_of(40)]), DEMO, Around(QUIET))["ok"]
    for there, alone in ((40, 29), (29, 29)):
        jobs = [compared(job, alone) for job in jobs_of(there)]
        report = report_of(recorded(jobs=jobs), DEMO, Around(QUIET))
        assert failed(report) == ["losses"]
        assert f"cnn-pair has {there}, the run alone {alone}, of 30" in str(report["checks"])


def test_every_job_has_500_losses_compared_and_acceptance_compares_all() -> None:
    ranks = [job.gpus for job in (*FIRST_JOBS, LATE_JOB)]
    assert [DEMO.compared(count) for count in ranks] == [500, 500, 500, 500, 500, 250]
    assert [ACCEPTANCE.compared(count) for count in ranks] == [0] * 6


# --- limits on times ----------------------------------------------------------------------------------

SLOW = {"jobs": changed(2, start_latency_s=9.0)}


def test_times_are_told_by_the_demonstration() -> None:
    report = report_of(recorded(**SLOW), DEMO, Around(QUIET)) | {"wall_s": 70.0}
    assert report["ok"] and exit_code(report, strict=True) == 0
    lines = lines_of(report, QUIET)
    assert "told    released to running: at most 9.00 s in 6 starts" in lines and lines[-1] == "OK in 70 s"
    assert len(lines) <= 15


def test_times_are_judged_by_acceptance_on_a_quiet_machine() -> None:
    report = report_of(recorded(**SLOW), ACCEPTANCE, Around(QUIET, (), 0.5))
    assert failed(report) == ["released to running", "steps per second, sliced over exclusive"]
    assert exit_code(report, strict=False) == 1


def test_times_are_not_judged_on_a_busy_machine() -> None:
    report = report_of(recorded(**SLOW), ACCEPTANCE, Around(BUSY, (), 0.99)) | {"wall_s": 250.0}
    assert report["ok"] and report["not_judged"] == ["released to running"]
    assert (exit_code(report, strict=False), exit_code(report, strict=True)) == (0, 2)
    lines = lines_of(report, BUSY)
    told = "not judged: machine busy (at most 9.00 s in 6 starts; limit 2 s)"
    assert f"-       released to running: {told}" in lines
    assert "machine busy: other processes and steal used 20 % of the processors" in lines[-2]
    assert lines[-1].startswith("OK in 250 s, but not judged, for the machine was busy: released to running")
    assert len(lines) <= 15


def test_a_longer_phase_is_said() -> None:
    report = report_of(recorded(extended=2), DEMO, Around(QUIET)) | {"wall_s": 1.0}
    assert any("extended 2 times, to 30 s" in line for line in lines_of(report, QUIET))
