"""Scripts that hold our answers against those of others: each runs as a user would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slow import long_form, soaked

TESTS = Path(__file__).parent
DATA = TESTS / "data"
PAPERS = TESTS.parent / "gandiva_slurm/sim/paper/data"
#: Average JCT and makespan in seconds, computed by others, see tests/data/elasticflow/ORIGIN.
HOMOGENEOUS = {
    ("195job", 64, "fifo"): (64288.5897, 857718),
    ("195job", 64, "srtf"): (34401.7231, 992175),
    ("195job", 64, "srsf"): (33650.5077, 991644),
    ("cluster10", 16, "fifo"): (71091.4846, 2969377),
    ("cluster10", 16, "srtf"): (50044.2654, 3008192),
    ("cluster10", 16, "srsf"): (49126.2385, 2982740),
}


def ask(script: str, *args: str, timeout_s: float = 120) -> tuple[int, dict[str, Any]]:
    """Run a script; return its exit status and the JSON of its one line."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "oracles" / script), *args],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    return done.returncode, json.loads(lines[0])


def test_stride_tables_agree() -> None:
    status, answer = ask("stride.py", str(PAPERS / "stride.json"))
    assert (status, answer["agree"], answer["tables"], answer["differences"]) == (0, True, 3, {})


def test_a_wrong_stride_table_is_found(tmp_path: Path) -> None:
    tables = json.loads((PAPERS / "stride.json").read_text())
    tables["gang"]["rounds"][1]["run"] = ["C", "D"]
    tables["plain"]["rounds"][2]["pass"] = [0.5, 1]
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(tables))
    status, answer = ask("stride.py", str(wrong))
    assert status == 1 and sorted(answer["differences"]) == ["gang", "plain"]


@pytest.mark.parametrize(("name", "gpus", "policy"), HOMOGENEOUS)
def test_homogeneous_runs_equal_the_table(name: str, gpus: int, policy: str) -> None:
    workload = str(DATA / "elasticflow" / f"{name}.csv")
    status, answer = ask("homogeneous.py", "--workload", workload, "--gpus", str(gpus), "--policy", policy)
    avg_jct_s, makespan_s = HOMOGENEOUS[name, gpus, policy]
    assert status == 0 and answer["finished"] == answer["jobs"]
    assert answer["avg_jct_s"] == pytest.approx(avg_jct_s, abs=1)
    assert answer["makespan_s"] == makespan_s


def test_a_job_too_large_is_named(tmp_path: Path) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("job_id,submission_time,duration,num_gpu\na,0,10,1\nb,0,10,9\n")
    status, answer = ask("homogeneous.py", "--workload", str(workload), "--gpus", "8", "--policy", "fifo")
    assert status == 1 and f"{workload}:3: asks for 9 GPUs" in answer["error"]


SETS = [60, long_form(200, why="more sets of users"), soaked(1000, why="3 minutes")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sets", SETS)
def test_trades_on_sets_drawn_by_seed_are_worth_as_much_as_max_min_fairness(sets: int) -> None:
    status, answer = ask("trading_sets.py", "--sets", str(sets), timeout_s=900)
    assert (status, answer["sets"]) == (0, sets), answer
    assert answer["worst_of_isolated"]["least"] >= 1 and answer["of_max_min"]["p5"] > 1


@pytest.mark.parametrize("script", ["stride.py", "trading.py", "hived.py"])
@pytest.mark.parametrize("text", [None, "no JSON", "[]"])
def test_a_file_that_is_none_of_theirs_is_named(tmp_path: Path, script: str, text: str | None) -> None:
    path = tmp_path / "wrong.json"
    if text is not None:
        path.write_text(text)
    status, answer = ask(script, str(path))
    assert status == 1
    assert str(path) in json.dumps(answer)
    assert "error" in answer
