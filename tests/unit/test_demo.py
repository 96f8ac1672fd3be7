"""The demo's parts that need no cluster: scripts, runs alone, turns, the command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli.main import main
from gandiva_slurm.mini import demo, demo_guard, demo_jobs, demo_slicing
from gandiva_slurm.mini.demo_alone import Reference, run_references
from gandiva_slurm.mini.demo_checks import NS_PER_S
from gandiva_slurm.mini.demo_jobs import FIRST_JOBS, LATE_JOB, DemoJob, script_of
from gandiva_slurm.mini.demo_plan import ACCEPTANCE, DEMO
from gandiva_slurm.model.errors import GandivaError
from tests import patience

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
    told = Reference(LATE_JOB, 7, Path("x")).told("y")
    assert (told["name"], told["ranks"]) == ("tiny-gang", 4)
    assert told["arguments"] == [*LATE_JOB.arguments, "--steps", "7", "--out", "y"]
    assert " ".join(LATE_JOB.arguments) in script_of(LATE_JOB)


def test_references_are_what_each_script_writes_by_itself(tmp_path: Path) -> None:
    solo, gang = DemoJob("solo", "user1", 1, "mlp", 2), DemoJob("gang", "user1", 2, "cnn", 3, batch=16)
    runs = [Reference(solo, 9, tmp_path / "solo"), Reference(gang, 5, tmp_path / "gang")]
    run_references(runs, 2, 300 * patience.slowness(), tmp_path / "log")
    words = [*solo.arguments, "--steps", "9", "--out", str(tmp_path / "x")]
    words = [sys.executable, "-m", demo_jobs.TRAIN, *words]
    subprocess.run(words, check=True, capture_output=True, timeout=300 * patience.slowness())
    (losses,) = demo_jobs.read_losses(tmp_path / "solo", 1)
    assert len(losses) == 9 and [losses] == demo_jobs.read_losses(tmp_path / "x", 1)
    first, second = demo_jobs.read_losses(tmp_path / "gang", 2)
    assert len(first) == len(second) == 5 and first != second


def stand_in(code: str) -> Any:
    def start(references: Any, at_once: int, log: Path) -> Any:
        with log.open("wb") as out:
            return subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=out)

    return start


def test_a_failing_reference_is_told(tmp_path: Path) -> None:
    with pytest.raises(GandivaError, match="ended with 3: no such model"):
        run_references([], 2, 60, tmp_path / "log", stand_in("print('no such model'); raise SystemExit(3)"))


def test_references_have_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(GandivaError, match="took longer than"):
        run_references([], 2, 0.3, tmp_path / "log", stand_in("import time; time.sleep(60)"))


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


def slicing_of(steps: dict[str, Steps], alone: dict[str, float]) -> demo_slicing.Slicing:
    return demo_slicing.Slicing(alone, *demo_slicing.in_window(steps, 3), 1.0)


def test_turns_are_found() -> None:
    turns = demo_slicing.turns_of(sliced(3))
    assert [(turn.name, turn.began_ns[0], len(turn.began_ns)) for turn in turns] == [
        ("left", 0, 500),
        ("right", 5 * NS_PER_S, 500),
        ("left", 10 * NS_PER_S, 500),
    ]


def test_first_turns_warm_up() -> None:
    assert not demo_slicing.has_turns(sliced(8), 3)
    assert demo_slicing.has_turns(sliced(9), 3)


@pytest.mark.parametrize(("switch_ms", "want"), [(0, 1.0), (100, 5 / 5.1), (250, 5 / 5.25)])
def test_ratio_counts_the_switches(switch_ms: int, want: float) -> None:
    slicing = slicing_of(sliced(9, switch_ms=switch_ms), {"left": 100.0, "right": 100.0})
    assert slicing.ratio == pytest.approx(want, rel=1e-3)
    assert slicing.beside_alone == pytest.approx(want, rel=1e-3)
    assert "1500 of left + 1500 of right steps" in str(slicing)


def test_ratio_counts_slow_steps_after_a_change_of_hands() -> None:
    """The first 50 steps of each turn take 20 ms, the others 10: half a second of five is lost."""
    steps: dict[str, Steps] = {"left": [], "right": []}
    for turn in range(9):
        own = steps["left" if turn % 2 == 0 else "right"]
        own += [*steps_from(turn * 5000, 50, 20), *steps_from(turn * 5000 + 1000, 400)]
    assert slicing_of(steps, {"left": 100.0, "right": 100.0}).ratio == pytest.approx(0.9, rel=1e-3)


def test_ratio_leaves_the_drift_of_the_machine_out() -> None:
    """While the two share, each step takes a quarter longer, of whichever job."""
    slicing = slicing_of(sliced(9, turn_ms=5000, step_ms=10), {"left": 125.0, "right": 125.0})
    assert slicing.ratio == pytest.approx(1.0, rel=1e-3)
    assert slicing.beside_alone == pytest.approx(0.8, rel=1e-3)


def test_jobs_of_unlike_speed_are_weighed_by_the_time_they_take() -> None:
    steps = sliced(9, switch_ms=100)
    steps["right"] = [step for turn in range(1, 9, 2) for step in steps_from(turn * 5100, 250, 20)]
    assert slicing_of(steps, {"left": 100.0, "right": 50.0}).ratio == pytest.approx(5 / 5.1, rel=1e-3)


def test_rate_leaves_the_warm_up_out() -> None:
    steps = [*steps_from(0, 20, 50), *steps_from(1000, 101)]
    assert demo_slicing.Turn("left", [began for began, _, _ in steps]).rate == pytest.approx(100.0)
    assert demo_slicing.Turn("left", [0, 10 * MS]).rate == 0.0


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
    assert made.beside_alone == pytest.approx(1.5)
    assert made.quiet == pytest.approx(1.0)


def test_a_busy_machine_shows_in_the_processor_time() -> None:
    busy = [(began, ended, cpu * 9 // 10) for began, ended, cpu in steps_from(0, 10)]
    assert demo_slicing.processor_share(busy) == pytest.approx(0.9)


@pytest.mark.parametrize(("quiet", "want"), [([0.99], 1), ([0.8, 0.99], 2), ([0.8, 0.8], 2)])
def test_a_busy_machine_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, quiet: list[float], want: int
) -> None:
    cluster: Any = object()
    runs: list[float] = []

    def run(given: Any) -> demo_slicing.Slicing:
        assert given is cluster
        runs.append(quiet[len(runs)])
        return demo_slicing.Slicing({"left": 1.0}, [], 1.0, runs[-1])

    monkeypatch.setattr(demo_slicing, "_run", run)
    assert demo_slicing.measure(cluster, lambda text: None).quiet == quiet[-1]
    assert len(runs) == want


# --- the command --------------------------------------------------------------------------------------


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work in this process: a guard forks."""
    monkeypatch.setattr(demo_guard, "guarded", lambda name, work, say: work())


def report(is_ok: bool, not_judged: list[str]) -> dict[str, Any]:
    return {"version": 1, "ok": is_ok, "not_judged": not_judged}


@pytest.mark.parametrize(
    ("words", "is_ok", "not_judged", "code"),
    [
        (["demo"], True, [], 0),
        (["demo"], False, [], 1),
        (["acceptance"], True, ["re-aims"], 0),
        (["acceptance", "--strict"], True, ["re-aims"], 2),
        (["acceptance", "--strict"], False, ["re-aims"], 1),
        (["acceptance", "--strict"], True, [], 0),
    ],
)
@pytest.mark.usefixtures("unguarded")
def test_command_writes_the_report_and_exits_by_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    is_ok: bool,
    not_judged: list[str],
    code: int,
) -> None:
    plans = []

    def run(spec: Any, plan: Any, screen: Any, keep: bool, picture: Any) -> dict[str, Any]:
        plans.append(plan)
        return report(is_ok, not_judged)

    monkeypatch.setattr(demo, "run", run)
    file = tmp_path / "report.json"
    with pytest.raises(SystemExit) as end:
        main(["mini", *words, "--json", str(file)])
    assert end.value.code == code and json.loads(file.read_text()) == report(is_ok, not_judged)
    assert plans == [DEMO if words == ["demo"] else ACCEPTANCE]


@pytest.mark.usefixtures("unguarded")
def test_command_writes_only_the_report_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(spec: Any, plan: Any, screen: Any, keep: bool, picture: Any) -> dict[str, Any]:
        screen.say("a line for people")
        return report(True, [])

    monkeypatch.setattr(demo, "run", run)
    with pytest.raises(SystemExit):
        main(["mini", "demo", "--json", "-", "--keep"])
    out = capsys.readouterr()
    assert json.loads(out.out)["ok"] and "a line for people" in out.err and "gandiva why JOBID" in out.err
