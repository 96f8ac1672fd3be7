"""`gandiva sim compare`: several policies side by side, and the picture of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli, main
from gandiva_slurm.sim.timeline import Span, Timeline

S = 10**9


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "w.csv"
    path.write_text("job_id,submit_s,gpus,length_s,user\na,10,2,10,ann\nb,12,1,4,bob\nc,12,1,2,bob\n")
    return ("--workload", str(path), "--format", "gandiva", "--cluster", "gpu:1x2")


def test_a_row_a_policy_and_all_of_the_json(small: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    args = ("--policies", "fifo, srtf", "--json", str(path))
    done = CliRunner().invoke(cli, ["sim", "compare", *small, *args])
    assert done.exit_code == 0, (done.output, done.exception)
    head, *rows = done.output.splitlines()
    assert head.split()[:4] == ["POLICY", "AVGJCT", "P99JCT", "MAKESPAN"]
    assert [row.split()[:2] for row in rows] == [["fifo", "11"], ["srtf", "7"]]
    told = json.loads(path.read_text())
    assert told["version"] == 1
    assert [run["policy"] for run in told["runs"]] == ["fifo", "srtf"]
    assert all(run["finished"] == 3 for run in told["runs"])


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(small: tuple[str, ...], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    done = CliRunner().invoke(cli, ["sim", "compare", *small, "--policies", "fifo,srtf", "--draw", str(path)])
    assert done.exit_code == 0, (done.output, done.exception)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") if ending == "png" else b"<svg" in data[:1000]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--policies", "fifo,nobody"), "there is no policy 'nobody'"),
        (("--policies", "fifo", "--draw", "out.bmp"), "'out.bmp' ends in none of .png .svg"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    small: tuple[str, ...], args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sim", "compare", *small, *args])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_shares_over_time_and_halves_of_a_shared_gpu() -> None:
    timeline = Timeline()
    timeline.spans = [
        Span("a", "ann", (0,), 0, 20 * S),
        Span("b", "bob", (0,), 10 * S, 20 * S),
        Span("c", "bob", (1, 2), 5 * S, 15 * S),
    ]
    assert list(timeline.shares(10 * S)) == [
        (10 * S, {"ann": 1.0, "bob": 1.0}),
        (20 * S, {"ann": 0.5, "bob": 0.5 + 1.0}),
    ]
