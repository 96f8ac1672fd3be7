"""The figures of Gavel's own simulator on two of its workloads, in its rounds (36 GPUs, no switch costs)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli

DATA = Path(__file__).parents[1] / "data" / "gavel"
W1, W1C = "gavel_poisson200_s0", "gavel_static100_s20"


def run(name: str, *more: str) -> dict[str, float]:
    args = [
        "sim", "run", "--workload", str(DATA / f"{name}.trace"), "--format", "gavel", "--throughputs",
        str(DATA / "simulation_throughputs.json.xz"), "--cluster", "v100:3x4,p100:3x4,k80:3x4",
        "--check-invariants", "--json", "-", *more,
    ]  # fmt: skip
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, (done.output, done.exception)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def test_fifo_perf_of_the_poisson_trace() -> None:
    result = run(W1, "--policy", "fifo", "--compat", "gavel")
    assert result["avg_jct_s"] == pytest.approx(17616, rel=0.002)
    assert result["makespan_s"] == pytest.approx(250197, abs=1)


def test_fifo_perf_of_the_static_trace() -> None:
    result = run(W1C, "--policy", "fifo", "--compat", "gavel")
    assert result["avg_jct_s"] == pytest.approx(43497, rel=0.01)


@pytest.mark.parametrize(
    ("name", "policy", "avg_jct_s"),
    [
        (W1, "gavel_max_min", 16835),
        (W1C, "gavel_max_min", 31871),
        (W1, "gavel_max_min_alone", 17460),
        (W1C, "gavel_max_min_alone", 37008),
    ],
)
def test_max_min_by_linear_programme(name: str, policy: str, avg_jct_s: float) -> None:
    result = run(name, "--policy", policy, "--compat", "gavel")
    assert result["avg_jct_s"] == pytest.approx(avg_jct_s, rel=0.04)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--policy", "srtf"), "--compat gavel knows fifo and gavel_max_min, not srtf"),
        (("--policy", "fifo", "--switch-cost", "1"), "neither costs nor slots nor noise nor failures"),
        (("--policy", "fifo", "--slots", "4"), "neither costs nor slots nor noise nor failures"),
    ],
)
def test_what_gavel_does_not_have_is_refused(more: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        run(W1C, "--compat", "gavel", *more)
