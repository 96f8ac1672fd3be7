"""Six jobs on the four GPUs of a server: each gets four sixths of one, little is lost (Gandiva)."""

from __future__ import annotations

from gandiva_slurm.policy import gandiva
from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs

#: A vision model: 0.1 s to stop and go on, on whichever GPU of its server.
QUANTUM_S, SWITCH_S, LENGTH_S = 60, 0.1, 4 * 3600
_S = 10**9


def run(setup: Setup) -> list[Row]:
    """Run them to their ends, and compare with four that run alone."""
    paper = published("gandiva")["timeslicing"]
    jobs, gpus = paper["jobs"], paper["gpus"]
    specs = [Spec(n, str(n), "all", 1, 0, LENGTH_S * _S, can_pack=False) for n in range(jobs)]
    switch_ns = round(SWITCH_S * _S)
    scene = Scene(specs, Cluster([("p40", gpus)]), Homogeneous(), Costs(switch_ns, switch_ns))
    outcome = simulate(scene, gandiva.make(PolicySettings(QUANTUM_S * _S, switch_ns)))
    rates = [LENGTH_S / jct_s for jct_s in outcome.jct_s()]
    done_s = sum(spec.length_ns for spec in specs) / _S
    overhead = 1 - done_s / (gpus * outcome.summary()["makespan_s"])
    most, stops = paper["most_overhead_pct"], outcome.counts["suspends"]
    return [
        Row("slowest job, of its rate alone", round(min(rates), 4), round(gpus / jobs, 4)),
        Row("fastest job, of its rate alone", round(max(rates), 4), round(gpus / jobs, 4)),
        Row("lost in all", round(100 * overhead, 2), f"< {most}", "%", f"{stops} suspends"),
    ]
