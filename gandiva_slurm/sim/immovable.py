"""Jobs that cannot be moved: a part of a workload, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from gandiva_slurm.sim.job import Spec


def immovable(specs: Sequence[Spec], part: float, seed: int) -> list[Spec]:
    """Make exactly this part of the jobs immovable; those of a smaller part are among a larger one's."""
    order = list(range(len(specs)))
    random.Random(f"immovable/{seed}").shuffle(order)
    drawn = {*order[: round(part * len(specs))]}
    return [replace(spec, can_migrate=False) if row in drawn else spec for row, spec in enumerate(specs)]
