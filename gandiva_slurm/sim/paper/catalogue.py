"""What can be run again, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.sim.paper.result import Row, Setup

GANDIVA, GANDIVA_FAIR = "Gandiva, OSDI 2018", "Gandiva_fair, EuroSys 2020"


@dataclass(frozen=True, slots=True)
class Entry:
    """A published table or figure. `is_drawn`: its workload is drawn by chance, so a seed matters."""

    name: str
    title: str
    source: str
    is_drawn: bool = False

    def run(self, setup: Setup) -> list[Row]:
        """Run it; its module is imported now."""
        module = importlib.import_module(f"gandiva_slurm.sim.paper.{self.name.replace('-', '_')}")
        return cast(Callable[[Setup], list[Row]], module.run)(setup)


CATALOGUE = (
    Entry("stride", "who runs in each round, and the passes before it", f"{GANDIVA_FAIR}, stride tables"),
    Entry("timeslicing", "six jobs on four GPUs", f"{GANDIVA}, time-slicing"),
    Entry("packing", "two jobs a GPU: tried, kept or undone", f"{GANDIVA}, packing table"),
    Entry("automl", "a hundred configurations on four GPUs", f"{GANDIVA}, Table 4 (AutoML)", True),
    Entry("early-feedback", "first 100 mini-batches on 180 GPUs", f"{GANDIVA}, 180-GPU cluster", True),
    Entry("homogeneous", "GPU time by user on equal GPUs", f"{GANDIVA_FAIR}, fair share"),
    Entry("trading", "fast GPUs for slow ones between users", f"{GANDIVA_FAIR}, resource trading"),
)


def find(name: str) -> Entry:
    """Return an entry; UsageError lists all."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise UsageError(
        f"nothing is published as {name!r} here; there are: {' '.join(e.name for e in CATALOGUE)}"
    )
