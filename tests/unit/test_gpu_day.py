"""A day on a GPU machine, as far as it goes without one: the script, its figures, its table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.figures import DEVICE, VARIABLE, figure, table
from tests.slow import slow

REPO = Path(__file__).resolve().parents[2]
SCRIPT = "tests/gpu/day.sh"


def run(tmp_path, *words, **env):
    """Run the script with this Python; its figures go to `tmp_path`."""
    env = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, **env}
    return subprocess.run([SCRIPT, *words], cwd=REPO, env=env, capture_output=True, text=True, timeout=280)


def test_figures_are_noted_and_make_a_table(tmp_path, monkeypatch, capsys):
    noted = tmp_path / "figures"
    monkeypatch.setenv(VARIABLE, str(noted))
    figure(DEVICE, "a card")
    figure("a park", "5 ms", "< 50 ms")
    figure("a resume", "6 ms")
    assert "a park: 5 ms (wanted: < 50 ms)" in capsys.readouterr().out
    told = table(noted.read_text().splitlines(), "day.sh A", "2026-01-02")
    assert told.splitlines() == [
        "2026-01-02, a card, `day.sh A`", "", "| what | wanted | measured |", "|---|---|---|",
        "| a park | < 50 ms | 5 ms |", "| a resume |  | 6 ms |",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [(), ("E",)])
def test_a_stage_that_is_none_is_refused(tmp_path, words):
    done = run(tmp_path, *words)
    assert (done.returncode, done.stderr) == (2, f"usage: {SCRIPT} A|B|C|D|wheels\n")


def test_the_processor_plays_stage_a_alone(tmp_path):
    done = run(tmp_path, "B", DEVICE="cpu")
    assert (done.returncode, done.stderr) == (2, "day.sh: DEVICE=cpu plays stage A alone\n")


@slow("15 s of processor; the parts that need no device are tried beside it")
def test_stage_a_with_the_processor_played_as_a_device(tmp_path):
    """So that not a minute on the machine is lost to a slip: every line of it but CUDA's own is run."""
    done = run(tmp_path, "A", DEVICE="cpu")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    told = (tmp_path / "A.md").read_text()
    assert "the processor, played as a device, `tests/gpu/day.sh A`" in told
    for what in ("pinned copies", "pinning 16 MiB", "gone above its context | 95 % | 100.0%", "queued work"):
        assert what in told
    assert (tmp_path / "A.jsonl").read_text().count("\n") == 9
