"""`--cluster v100:3x4,k80:3x4`: node groups of a simulated cluster."""

from __future__ import annotations

import re

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster

_GROUP = re.compile(r"([A-Za-z0-9_.-]+):(\d+)x(\d+)")
#: More GPUs than any site has: a slip of the finger.
_MOST_GPUS = 1_000_000


def read_cluster(text: str) -> Cluster:
    """Read TYPE:NODESxGPUS[,…]; UsageError says which group is wrong and what it takes."""
    shape: list[tuple[str, int]] = []
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        if not match or int(match[2]) < 1 or int(match[3]) < 1:
            raise UsageError(f"--cluster: {group.strip()!r} is not TYPE:NODESxGPUS (as v100:3x4)")
        if int(match[2]) * int(match[3]) > _MOST_GPUS:
            raise UsageError(f"--cluster: {group.strip()!r} has more than {_MOST_GPUS} GPUs")
        shape += [(match[1], int(match[3]))] * int(match[2])
    return Cluster(shape)
