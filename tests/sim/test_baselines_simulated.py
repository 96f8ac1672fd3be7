"""Other schedulers in the simulator, every invariant checked: real jobs, costs, failures, elastic jobs."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import takewhile
from pathlib import Path

import pytest

from gandiva_slurm.policy.port import OPPORTUNISTIC, Policy, PolicySettings
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.faults import by_chance
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Truth
from gandiva_slurm.sim.workloads.load import Source, load
from gandiva_slurm.sim.world import Costs

S = 10**9
REPO = Path(__file__).parents[2]
GROUP = "gandiva_slurm.policies"
ENTRIES = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
    GROUP
]
NAMES = ("antman", "backfill", "ffdl", "ffdl_spread", "optimus", "philly", "themis", "tiresias")
HOMOGENEOUS = read_cluster("v100:8x8")
MIXED = read_cluster("v100:3x4,p100:3x4,k80:3x4")

#: Strict FIFO's and SRSF's mean completion times on this workload, as other people's simulators have them.
FIFO_S, SRSF_S = 64288.5897, 33650.5077


def policy_named(name: str) -> Policy:
    """Make a policy by its entry point."""
    return EntryPoint(name, ENTRIES[name], GROUP).load()(PolicySettings(quantum_ns=60 * S))


def real_jobs() -> tuple[list[Spec], Truth]:
    """Give 195 real jobs on 64 equal GPUs."""
    return load(Source(REPO / "tests/data/elasticflow/195job.csv", "elasticflow"), HOMOGENEOUS)


def mixed_jobs() -> tuple[list[Spec], Truth]:
    """Give 100 jobs at once on three GPU types; every third is opportunistic, every fourth may not move."""
    data = REPO / "tests/data/gavel"
    source = Source(data / "gavel_static100_s20.trace", "gavel", data / "simulation_throughputs.json.xz", 4)
    specs, truth = load(source, MIXED)
    mixed = [
        replace(
            spec,
            job_class=OPPORTUNISTIC if n % 3 == 0 else spec.job_class,
            can_migrate=n % 4 != 0,
        )
        for n, spec in enumerate(specs)
    ]
    return mixed, truth


@pytest.mark.parametrize("name", NAMES)
def test_baseline_ends_real_jobs_between_fifo_and_srsf(name: str) -> None:
    specs, truth = real_jobs()
    result = simulate(Scene(specs, HOMOGENEOUS, truth, is_checked=True), policy_named(name)).summary()
    assert result["finished"] == 195
    assert SRSF_S <= result["avg_jct_s"] <= FIFO_S + 0.001
    if name.startswith("ffdl"):
        assert result["avg_jct_s"] == pytest.approx(FIFO_S, abs=1e-3)
        assert result["makespan_s"] == 857718


def test_themis_is_fairest_to_the_worst_off() -> None:
    specs, truth = real_jobs()
    worst = {
        name: simulate(Scene(specs, HOMOGENEOUS, truth), policy_named(name)).summary()["max_ftf"]
        for name in NAMES
    }
    assert min(worst, key=worst.__getitem__) == "themis"
    assert worst["themis"] < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_baseline_lives_with_costs_failures_and_jobs_that_cannot_move(name: str) -> None:
    specs, truth = mixed_jobs()
    faults = list(
        takewhile(lambda fault: fault.at_ns < 100_000 * S, by_chance(9, 40_000 * S, 2000 * S, seed=1))
    )
    down = {fault.host: fault.is_down for fault in faults}
    faults += [
        faults[-1]._replace(host=host, is_down=False, at_ns=100_000 * S) for host in down if down[host]
    ]
    costs = Costs(switch_ns=S, restart_ns=30 * S)
    scene = Scene(specs, MIXED, truth, costs, faults=faults, is_checked=True)
    assert simulate(scene, policy_named(name)).summary()["finished"] == 100


@pytest.mark.parametrize("name", ["optimus", "tiresias", "antman"])
def test_baseline_runs_elastic_jobs(name: str) -> None:
    specs, truth = real_jobs()
    elastic = [replace(spec, min_size=1, max_size=2 * spec.size) for spec in specs[:80]]
    result = simulate(Scene(elastic, HOMOGENEOUS, truth, is_checked=True), policy_named(name)).summary()
    assert result["finished"] == 80
    assert (result["grows"] + result["shrinks"] > 0) == (name == "optimus")
