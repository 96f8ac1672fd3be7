"""The demo's parts that need no cluster: scripts, turns, the report."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini import demo, demo_jobs, demo_slicing
from gandiva_slurm.mini.demo_checks import NS_PER_S, JobRecord
from gandiva_slurm.mini.demo_jobs import FIRST_JOBS, LATE_JOB, DemoJob, Reference, run_references, script_of
from gandiva_slurm.model.errors import GandivaError

MS = 1_000_000


def test_users_ask_for_what_the_main_job_says() -> None:
    asked = [(job.user, job.gpus) for job in (*FIRST_JOBS, LATE_JOB)]
    assert asked == [("user1", 2), *[("user2", 1)] * 4, ("user3", 4)]


@pytest.mark.parametrize("job", [*FIRST_JOBS, LATE_JOB], ids=lambda job: job.name)
def test_scripts_are_complete(job: DemoJob) -> None:
    text = script_of(job)
    assert f"--gres=gpu:v100:{job.gpus}" in text and " --partition=gandiva --gandiva " in text
    assert f"--out {job.name} --stop-file" in text
    assert text.count("'") % 2 == 0


def test_reference_has_the_job_s_own_arguments() -> None:
    command = Reference(LATE_JOB, 7, Path("x")).command()
    assert command[0] == sys.executable and "--nproc-per-node" in command
    assert command[-4:] == ["--steps", "7", "--out", "x"]
    assert " ".join(LATE_JOB.arguments) in " ".join(command)


def test_references_run_and_a_failing_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = DemoJob("j", "user1", 1, "mlp", 1)
    said: list[str] = []
    monkeypatch.setattr(
        Reference, "command", lambda self: [sys.executable, "-c", f"raise SystemExit({self.steps})"]
    )
    run_references([Reference(job, 0, tmp_path / "a"), Reference(job, 0, tmp_path / "b")], 2, 20, said.append)
    assert len(said) == 2
    with pytest.raises(GandivaError, match="j ended with 3"):
        run_references([Reference(job, 3, tmp_path / "c")], 2, 20, said.append)


def test_references_have_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Reference, "command", lambda self: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    with pytest.raises(GandivaError, match="took longer than"):
        run_references([Reference(FIRST_JOBS[1], 1, tmp_path / "a")], 2, 0.3, lambda text: None)


def test_what_a_rank_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "j.0.loss").write_text("0x1.8p+0\n0x1.4p+0\n0x1.")
    (tmp_path / "j.0.steps").write_text("# 0,1\n5 9\n11 17\n")
    assert demo_jobs.read_losses(tmp_path / "j", 2) == [["0x1.8p+0", "0x1.4p+0"], []]
    assert demo_jobs.read_steps(tmp_path / "j", 1) == [[(5, 9), (11, 17)]]


# --- what slicing costs -------------------------------------------------------------------------------


def sliced(
    turns: int, turn_ms: int = 5000, step_ms: int = 10, switch_ms: int = 0
) -> dict[str, list[tuple[int, int]]]:
    steps: dict[str, list[tuple[int, int]]] = {"left": [], "right": []}
    at_ms = 0
    for turn in range(turns):
        for _ in range(turn_ms // step_ms):
            steps["left" if turn % 2 == 0 else "right"].append((at_ms * MS, (at_ms + step_ms - 2) * MS))
            at_ms += step_ms
        at_ms += switch_ms
    return steps


def test_turns_are_found() -> None:
    turns = list(demo_slicing.turns_of(sliced(3)))
    assert turns == [("left", 0, 500), ("right", 5 * NS_PER_S, 500), ("left", 10 * NS_PER_S, 500)]


def test_first_turns_warm_up() -> None:
    assert not demo_slicing.has_turns(sliced(8), 3)
    assert demo_slicing.has_turns(sliced(9), 3)


@pytest.mark.parametrize(("switch_ms", "want"), [(0, 1.0), (100, 5 / 5.1), (250, 5 / 5.25)])
def test_ratio_counts_the_switches(switch_ms: int, want: float) -> None:
    counts, window_s = demo_slicing.count_in_turns(sliced(9, switch_ms=switch_ms), 3)
    assert counts == {"left": 1500, "right": 1500}
    ratio = demo_slicing.Slicing({"left": 100.0, "right": 100.0}, counts, window_s).ratio
    assert ratio == pytest.approx(want, rel=1e-3)


def test_unequal_turns_are_weighed_by_what_they_did() -> None:
    slicing = demo_slicing.Slicing({"left": 100.0, "right": 50.0}, {"left": 1000, "right": 1000}, 30.0)
    assert slicing.ratio == pytest.approx(1.0)


def test_rate_leaves_the_warm_up_out() -> None:
    steps = [(at * 50 * MS, 0) for at in range(20)] + [((1000 + at * 10) * MS, 0) for at in range(101)]
    assert demo_slicing.steady_rate(steps) == pytest.approx(100.0)


# --- the report ---------------------------------------------------------------------------------------


def recorded(**fields: Any) -> demo.Recorded:
    loss = [["0x1p+0"] * 40]
    steps = [[(at * 10 * MS, (at * 10 + 8) * MS) for at in range(10)]]
    jobs = [
        JobRecord(
            n,
            job.name,
            job.user,
            job.gpus,
            "COMPLETED",
            3,
            0.4,
            loss * job.gpus,
            loss * job.gpus,
            steps * job.gpus,
        )
        for n, job in enumerate((*FIRST_JOBS, LATE_JOB), 1)
    ]
    holds = [
        {"user": user, "gpus": list(range(gpus)), "t0_ns": t0 * NS_PER_S, "t1_ns": t1 * NS_PER_S}
        for user, gpus, t0, t1 in (("user1", 2, 10, 30), ("user2", 2, 10, 30), ("user3", 4, 0, 10))
    ]
    events = [
        {"event": name, "mono_ns": at * MS, "node": "n1", "job": job, "restart": 0, "reaims": 0}
        for job in (1, 2)
        for name, at in (("park", 90), ("parked", 99), ("resume", 200))
    ]
    tickets = dict.fromkeys(("user1", "user2", "user3"), 100)
    good = demo.Recorded(jobs, holds, events, (0, 30 * NS_PER_S), tickets, "slurm-wlm 22.05.8")
    return dataclasses.replace(good, **fields)


def test_report_has_the_promised_shape() -> None:
    report = demo.report_of(recorded(), 0.99)
    assert report["ok"], report["checks"]
    assert {
        "version", "ok", "slurm", "pyslurm", "users", "jobs", "overlaps", "parks_off_boundary", "reaims",
        "suspend_ms", "resume_ms", "start_latency_s", "aggregate_vs_exclusive",
    } <= report.keys()  # fmt: skip
    assert report["slurm"] == "22.05.8"
    assert set(report["users"]["user1"]) == {"tickets", "gpu_s", "share", "entitled"}
    assert {"job_id", "user", "gpus", "steps", "suspends", "loss_identical"} <= report["jobs"][0].keys()
    assert set(report["suspend_ms"]) == {"p50", "p99"}
    json.dumps(report)


@pytest.mark.parametrize(
    "bad",
    [
        {"window_ns": (0, 20 * NS_PER_S)},
        {"jobs": [*recorded().jobs[1:], dataclasses.replace(recorded().jobs[0], reference=[])]},
        {"events": []},
    ],
)
def test_one_failed_check_fails_the_demo(bad: dict[str, Any]) -> None:
    report = demo.report_of(recorded(**bad), 0.99)
    assert not report["ok"]
    assert [check for check in report["checks"] if not check["ok"]]


def test_queue_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now_s": 100.0}
    monkeypatch.setattr(demo.time, "monotonic", lambda: clock["now_s"])
    shown: list[float] = []
    show = demo._every(10.0, lambda: shown.append(clock["now_s"]))
    for clock["now_s"] in (101.0, 110.0, 111.0, 119.0, 121.0):
        show()
    assert shown == [110.0, 121.0]


def test_second_demo_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.Layout, "of", lambda name: demo.Layout(tmp_path / name))
    demo._refuse_second("demo")
    (tmp_path / "demo-slicing").mkdir()
    with pytest.raises(GandivaError, match="GANDIVA_MINI=demo-slicing gandiva mini down"):
        demo._refuse_second("demo")
