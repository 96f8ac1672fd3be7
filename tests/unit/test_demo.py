"""The demo's parts that need no cluster: scripts, turns, the report."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli.main import main
from gandiva_slurm.mini import demo, demo_command, demo_jobs, demo_slicing
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
    assert command[0] == sys.executable and "--nproc_per_node" in command
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
    (tmp_path / "j.0.steps").write_text("# 0,1\n5 9 4\n11 17 6\n")
    assert demo_jobs.read_losses(tmp_path / "j", 2) == [["0x1.8p+0", "0x1.4p+0"], []]
    assert demo_jobs.read_steps(tmp_path / "j", 1) == [[(5, 9), (11, 17)]]
    assert demo_jobs.read_timed_steps(tmp_path / "j") == [(5, 9, 4), (11, 17, 6)]
    assert demo_jobs.read_timed_steps(tmp_path / "none") == []


# --- what slicing costs -------------------------------------------------------------------------------


Steps = list[tuple[int, int, int]]


def steps_from(at_ms: int, count: int, step_ms: int = 10) -> Steps:
    """Steps of which the processor worked all but 2 ms."""
    begins = [at_ms + n * step_ms for n in range(count)]
    return [(began * MS, (began + step_ms - 2) * MS, (step_ms - 2) * MS) for began in begins]


def sliced(turns: int, turn_ms: int = 5000, step_ms: int = 10, switch_ms: int = 0) -> dict[str, Steps]:
    steps: dict[str, Steps] = {"left": [], "right": []}
    for turn in range(turns):
        at_ms = turn * (turn_ms + switch_ms)
        steps["left" if turn % 2 == 0 else "right"] += steps_from(at_ms, turn_ms // step_ms, step_ms)
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
    ratio = demo_slicing.Slicing({"left": 100.0, "right": 100.0}, counts, window_s, 1.0).ratio
    assert ratio == pytest.approx(want, rel=1e-3)


def test_unequal_turns_are_weighed_by_what_they_did() -> None:
    slicing = demo_slicing.Slicing({"left": 100.0, "right": 50.0}, {"left": 1000, "right": 1000}, 30.0, 1.0)
    assert slicing.ratio == pytest.approx(1.0)


def test_rate_leaves_the_warm_up_out() -> None:
    steps = [*steps_from(0, 20, 50), *steps_from(1000, 101)]
    assert demo_slicing.steady_rate(steps) == pytest.approx(100.0)


def test_alone_is_before_and_after() -> None:
    """left alone for 8 s, at half the speed right has alone at the end; 9 turns of both between."""
    steps = sliced(9)
    steps = {
        name: [(b + 8000 * MS, e + 8000 * MS, cpu) for b, e, cpu in spans] for name, spans in steps.items()
    }
    steps["left"] = steps_from(0, 400, 20) + steps["left"]
    steps["right"] += steps_from(53_000, 800)
    made = demo_slicing.evaluate(steps, 8000 * MS, 53_000 * MS)
    assert made.alone == {"left": pytest.approx(50.0), "right": pytest.approx(100.0)}
    assert made.ratio == pytest.approx(1.5)
    assert made.quiet == pytest.approx(1.0)


def test_a_busy_machine_shows_in_the_processor_time() -> None:
    busy = [(began, ended, cpu * 9 // 10) for began, ended, cpu in steps_from(0, 10)]
    assert demo_slicing.processor_share(busy) == pytest.approx(0.9)


class FakeCluster:
    def __init__(self) -> None:
        self.is_down = False

    def down(self) -> None:
        self.is_down = True


@pytest.mark.parametrize(("quiet", "want"), [([0.99], 1), ([0.8, 0.99], 2), ([0.8, 0.8], 2)])
def test_a_busy_machine_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, quiet: list[float], want: int
) -> None:
    cluster, runs = FakeCluster(), []

    def run(_: Any) -> demo_slicing.Slicing:
        runs.append(quiet[len(runs)])
        return demo_slicing.Slicing({"left": 1.0}, {"left": 1}, 1.0, runs[-1])

    monkeypatch.setattr(demo_slicing.MiniCluster, "up", lambda spec: cluster)
    monkeypatch.setattr(demo_slicing, "_run", run)
    assert demo_slicing.measure("x", "local", lambda text: None).quiet == quiet[-1]
    assert len(runs) == want and cluster.is_down


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


@pytest.mark.parametrize("is_ok", [True, False])
def test_command_writes_the_report_and_tells_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ok: bool
) -> None:
    monkeypatch.setattr(demo, "run", lambda name, backend, say: {"version": 1, "ok": is_ok})
    monkeypatch.setattr(demo_command.signal, "signal", lambda number, action: None)
    file = tmp_path / "report.json"
    with pytest.raises(SystemExit) as end:
        main(["mini", "demo", "--json", str(file)])
    assert end.value.code == (0 if is_ok else 1)
    assert json.loads(file.read_text()) == {"version": 1, "ok": is_ok}


def test_command_writes_only_the_report_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, backend: str, say: Any) -> dict[str, Any]:
        say("a line for people")
        return {"version": 1, "ok": True}

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(demo_command.signal, "signal", lambda number, action: None)
    with pytest.raises(SystemExit):
        main(["mini", "demo", "--json", "-"])
    out = capsys.readouterr()
    assert json.loads(out.out)["ok"] and "a line for people" in out.err
