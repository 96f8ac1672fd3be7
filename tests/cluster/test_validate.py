"""`gandiva mini validate` in small, on a real cluster: what it records is whole, whatever the load."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from gandiva_slurm.mini.demo_screen import Left, Screen
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.mini.validation import plan, play
from tests.slow import soak

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("slurm_here")]


@soak("70 s; tests/unit/test_validation_costs.py and tests/sim/test_validation.py have its halves")
def test_a_few_trainings_are_played_measured_and_simulated(tmp_path: Path) -> None:
    spec = MiniSpec(
        f"test-validate-{os.getpid()}", parse_nodes(plan.NODES), plan.QUANTUM_S,
        client_wait_s=plan.CLIENT_WAIT_S, policy=plan.POLICY,
    )  # fmt: skip
    picture = tmp_path / "both.png"
    report = play.run(spec, plan.SHORT, Screen(Console(), Left({})), picture)
    words = {check["name"]: check["verdict"] for check in report["checks"]}
    assert words["ends"] == words["mini-batches"] == words["left behind"] == "OK", report["checks"]
    costs, counts = report["costs"], report["costs"]["counts"]
    assert counts["load"] == len(plan.SHORT) <= counts["slurm"]
    # One that was parked behind its last mini-batch has none in its last turn: that tells no cost of ends.
    assert 0 < counts["exit"] <= len(plan.SHORT)
    assert counts["park"] >= counts["resume"] > 0, "gangs take turns on the slower node"
    assert min(costs["load_s"], costs["slurm_s"], costs["switch_s"]) > 0
    fast, slower = (costs["steps_s"][kind] for kind in ("v100 x 1", "p100 x 4"))
    assert 0.1 <= fast < slower, "a mini-batch takes its time on each type"
    assert all(job["end_s"] > job["submit_s"] and job["simulated_gpu_s"] > 0 for job in report["jobs"])
    assert picture.stat().st_size > 10_000
