"""Workloads after Gavel's generator, by seed: jobs of one GPU, or gangs among them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.workloads.load import Source, load
from tests.sim.mixed import CLUSTER, DATA, W1, S

USERS = 4
#: A job's length on a V100 in seconds, evenly between these, as in Gavel's traces here.
_SHORTEST_S, _LONGEST_S = 720, 28_800
#: Sizes and their parts, where there are gangs.
_SIZES, _PARTS = (1, 2, 4), (0.7, 0.15, 0.15)


def rows(name: str = W1) -> tuple[list[Spec], Oracle]:
    """Return the jobs of one of Gavel's traces that take one GPU, dealt out to four users."""
    specs, truth = load(
        Source(DATA / f"{name}.trace", "gavel", DATA / "simulation_throughputs.json.xz"), CLUSTER
    )
    assert isinstance(truth, Oracle)
    one = [spec for spec in specs if spec.size == 1]
    return [replace(spec, user=f"user{n % USERS}") for n, spec in enumerate(one)], truth


def drawn(seed: int, count: int = 200, mean_s: float = 600, gangs: bool = False) -> tuple[list[Spec], Oracle]:
    """Draw jobs: a model that runs on a V100, a length, and when it arrives."""
    _, truth = rows()
    draw, at_s, specs = random.Random(seed), 0.0, []
    for number in range(count):
        size = draw.choices(_SIZES, _PARTS)[0] if gangs else 1
        model = draw.choice(_models(truth, size))
        length_s = draw.uniform(_SHORTEST_S, _LONGEST_S)
        steps = max(
            1, round(length_s * truth.alone(Spec(0, "", "", size, 0, model=model), size, "v100", True))
        )
        user, name, types = f"user{number % USERS}", str(number), _types(truth, model, size)
        specs.append(
            Spec(number, name, user, size, round(at_s * S), steps=steps, model=model, gpu_types=types)
        )
        at_s += draw.expovariate(1 / mean_s)
    return specs, truth


def _models(truth: Oracle, size: int) -> Sequence[str]:
    return sorted(
        model
        for model, count in truth.tables["v100"]
        if count == size and truth.rates.alone(model, size, "v100")
    )


def _types(truth: Oracle, model: str, size: int) -> tuple[str, ...]:
    """The types on which it runs; (): all."""
    able = tuple(name for name in CLUSTER.counts if truth.rates.alone(model, size, name))
    return () if len(able) == len(CLUSTER.counts) else able
