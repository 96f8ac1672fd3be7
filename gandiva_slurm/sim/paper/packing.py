"""Two jobs of a model on one P40: packed, measured, kept or taken apart again (Gandiva, packing table).

What is true of each pair is the paper's; what comes of it is decided by `gandiva_fair`, which knows nothing
of it and tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.packing.pairs import normal_rates
from gandiva_slurm.policy.port import Cluster, PolicySettings, Rates
from gandiva_slurm.policy.traits import Traits
from gandiva_slurm.sim.job import RATE, Spec
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.paper.watched import Watched
from gandiva_slurm.sim.run import Scene, simulate

GPU_TYPE, QUANTUM_S, LENGTH_S = "p40", 60, 3600
_S = 10**9


class PairTruth:
    """A step is a second of work; each of two keeps half of what its pair with itself comes to."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        self.rates: Rates = self  # type: ignore[assignment]
        self._sums = sums

    def work(self, spec: Spec) -> int:
        """Return units of work."""
        return spec.length_ns * RATE

    def alone(self, spec: Spec, size: int, gpu_type: str, is_local: bool = True) -> float:
        """Return 1: a second of work a second."""
        return 1.0

    def packed(self, spec: Spec, other: Spec, gpu_type: str) -> float:
        """Return what the first keeps."""
        return self._sums[spec.model] / 2


def pair_sums() -> dict[str, float]:
    """What two jobs of each model come to on one GPU, of one alone."""
    return {model: row["pair_sum"] for model, row in published("gandiva")["packing"].items()}


def run(setup: Setup) -> list[Row]:
    """Run two jobs of each model on one GPU."""
    table = published("gandiva")["packing"]
    rows = []
    for done, (model, paper) in enumerate(table.items(), 1):
        rows.append(_row(model, paper))
        setup.tell(done, len(table))
    return rows


def _row(model: str, paper: Mapping[str, Any]) -> Row:
    packing, watched = _two_jobs(model, packs=True)
    slicing, _ = _two_jobs(model, packs=False)
    policy = watched.policy
    assert isinstance(policy, GandivaFair) and watched.rates
    both = normal_rates(watched.rates, model, model, GPU_TYPE)
    ours = round(100 * (sum(both) - 1)) if both else None
    counts = policy.counts
    verdict = "kept" if counts["packs_kept"] else "undone" if counts["packs_undone"] else "never tried"
    note = f"{verdict}, tried {counts['packs_tried']}x; done in {packing:.0f} s, {slicing:.0f} s in turn"
    return Row(f"{model} x 2", ours, paper["gain_pct"], "% more", note)


def _two_jobs(model: str, packs: bool) -> tuple[float, Watched]:
    """Return when both are done, and the policy that ran them."""
    specs = [
        Spec(number, str(number), "all", 1, 0, LENGTH_S * _S, steps=LENGTH_S, model=model)
        for number in range(2)
    ]
    policy = GandivaFair(PolicySettings(QUANTUM_S * _S), Traits(packs=packs))
    watched = Watched(policy)
    outcome = simulate(Scene(specs, Cluster([(GPU_TYPE, 1)]), PairTruth(pair_sums())), watched)
    return outcome.summary()["makespan_s"], watched
