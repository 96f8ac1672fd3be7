"""A day on a GPU machine, as far as it goes without one: the script, its figures, its table."""

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.device import build
from tests.gpu import own_python
from tests.gpu.figures import COMMAND, DEVICE, VARIABLE, figure, table
from tests.skips import NO_CARD
from tests.slow import long_form, slow, soaked

REPO = Path(__file__).resolve().parents[2]
SCRIPT = "tests/gpu/day.sh"


def run(tmp_path, *words, **env):
    """Run the script with this Python; its figures go to `tmp_path`."""
    env = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, **env}
    return subprocess.run([SCRIPT, *words], cwd=REPO, env=env, capture_output=True, text=True, timeout=580)


def test_figures_are_noted_and_make_a_table(tmp_path, monkeypatch, capsys):
    noted = tmp_path / "figures"
    monkeypatch.setenv(VARIABLE, str(noted))
    monkeypatch.setenv(COMMAND, "day.sh A")
    monkeypatch.setattr(time, "strftime", lambda form: "2026-01-02")
    figure(DEVICE, "a card")
    figure("a park", "5 ms", "< 50 ms")
    figure("a resume", "6 ms")
    assert "a park: 5 ms (wanted: < 50 ms)" in capsys.readouterr().out
    lines = noted.read_text().splitlines()
    assert all('"date": "2026-01-02", "command": "day.sh A"' in line for line in lines)
    told = table(lines)
    assert told.splitlines() == [
        "2026-01-02, a card, `day.sh A`", "", "| what | wanted | measured |", "|---|---|---|",
        "| a park | < 50 ms | 5 ms |", "| a resume |  | 6 ms |",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [(), ("G",)])
def test_a_stage_that_is_none_is_refused(tmp_path, words):
    done = run(tmp_path, *words)
    assert (done.returncode, done.stderr) == (2, f"usage: {SCRIPT} A|B|C|D|E|F|wheels\n")


@pytest.fixture(scope="module")
def built():
    """The library of the simulated card, which the script builds where it is missing."""
    try:
        build.library()
    except build.CannotBuildError as err:
        pytest.skip(f"{NO_CARD}: {err}")


def test_turns_of_a_minute_are_not_for_the_simulated_card(tmp_path):
    done = run(tmp_path, "D", DEVICE="sim")
    assert done.returncode == 2 and done.stderr.endswith("DEVICE=sim has A, B, C, E and F\n")


@slow("6 s; test_park and test_spill of tests/device are of stage A, too")
def test_a_part_of_stage_a_on_the_simulated_card(tmp_path, built):
    """So that not a minute on the machine is lost to a slip; whole stages are long forms."""
    done = run(tmp_path, "A", DEVICE="sim", ONLY="what_is_there or work_that_is_queued")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    told = (tmp_path / "A.md").read_text()
    command = "DEVICE=sim tests/gpu/day.sh A (ONLY: what_is_there or work_that_is_queued)"
    assert f"simulated card, `{command}`" in told and "queued work | < 1.2 s | 0.2" in told
    assert (tmp_path / "A.jsonl").read_text().count("\n") == 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stage", "figures"),
    [
        soaked("A", ("pinned copies", "gone above its context | 95 %", "copied in"), why="a part is above"),
        soaked("B", ("1.2 cards of 1024 MiB", "8 turns, same losses"), why="50 s; E has turns, too"),
        soaked("C", ("two `small` packed", "guaranteed job's step"), why="4 min"),
        soaked("F", ("`scaled`, parked 3 times", "`bert`: losses"), why="63 s"),
        long_form("E", ("through Slurm | same losses", "losses the same"), why="a mini cluster"),
    ],
)
def test_a_stage_on_the_simulated_card(tmp_path, built, stage, figures):
    done = run(tmp_path, stage, DEVICE="sim")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    told = (tmp_path / f"{stage}.md").read_text()
    assert all(figure in told for figure in figures), told
    assert " failed" not in done.stdout


def test_a_python_where_nothing_can_be_installed_has_the_commands_and_the_policies(tmp_path):
    look = "from gandiva_slurm.policy import registry; print(*registry.policy_names())"
    python = own_python.make(tmp_path / "bare", [])
    named = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "gandiva_fair" in named.stdout.split(), named.stderr
    command = own_python.make(tmp_path / "with", [sysconfig.get_path("purelib")]).with_name("gandiva")
    told = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
