"""A line for each of some simulations that stands for its JSON and its jobs' rows.

`python -m tests.bench.results > FILE` before and after a change that is to be of speed alone: the same lines.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gandiva_slurm.policy import gandiva, gandiva_fair, gandiva_market
from gandiva_slurm.policy.baselines import gavel_max_min, themis, tiresias
from gandiva_slurm.sim.outcome import write_jobs
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import CLUSTER, W1, W1C, settings, workload

POLICIES = {
    policy.__name__.rsplit(".", 1)[-1]: policy.make
    for policy in (gandiva_fair, gandiva, gandiva_market, gavel_max_min, themis, tiresias)
}
#: Of the JSON: what is not the same each time.
_OF_THE_MACHINE = ("wall_s", "peak_rss_mib")


class Case(NamedTuple):
    """One simulation: its jobs, all at once or as they come, who decides, and what it costs."""

    name: str
    most_jobs: int
    at_once: bool
    policy: str
    by_engine: bool
    quantum_s: int
    move_s: int


CASES = [
    Case(name, 1000, False, policy, by_engine, 60, move_s)
    for name in (W1, W1C)
    for policy, by_engine, move_s in [
        ("gandiva_fair", False, 0),
        ("gandiva_fair", False, 8),
        ("gandiva_fair", True, 8),
        ("gandiva_fair", True, 60),
        ("gandiva", False, 0),
        ("gavel_max_min", False, 8),
        ("themis", True, 8),
    ]
] + [
    Case("gavel_scale300_s10", 300, True, "gandiva_fair", False, 360, 0),
    Case("gavel_scale300_s10", 300, True, "gandiva_fair", False, 60, 60),
    Case("gavel_scale300_s10", 100, True, "gandiva_fair", True, 60, 8),
    Case("gavel_scale300_s10", 300, True, "gandiva", False, 360, 0),
    Case("gavel_scale300_s10", 300, True, "tiresias", False, 360, 8),
    Case("gavel_scale300_s10", 100, False, "gandiva_market", False, 360, 8),
]


def result_of(case: Case) -> str:
    """Run it, and return what stands for its JSON and its jobs' rows."""
    specs, truth = workload(case.name)
    specs = [replace(spec, submit_ns=0) if case.at_once else spec for spec in specs[: case.most_jobs]]
    told = settings(case.quantum_s, 1 if case.move_s else 0, case.move_s)
    if case.policy == "gavel_max_min":
        told = replace(told, oracle=truth.rates)
    policy = POLICIES[case.policy](told)
    costs = Costs(told.switch_ns, told.restart_ns, slots=4 if case.move_s else 0)
    scene = Scene(specs, CLUSTER, truth, costs)
    outcome = simulate(scene, SlurmWorld(told, policy) if case.by_engine else policy, bool(told.oracle))
    summary = {key: value for key, value in outcome.summary().items() if key not in _OF_THE_MACHINE}
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "jobs.csv"
        write_jobs(rows, outcome.books)
        whole = json.dumps(summary).encode() + rows.read_bytes()
    return f"{hashlib.blake2b(whole, digest_size=8).hexdigest()} {summary['avg_jct_s']:.6f}"


if __name__ == "__main__":
    for one in CASES:
        print(*one, result_of(one), flush=True)
