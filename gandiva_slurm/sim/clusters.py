"""`--cluster v100:3x4,k80:3x4`: node groups of a simulated cluster.

`v100:3x8/2/4`: switches of 2 GPUs, sockets of 4; without them all GPUs of a node are equally near.
"""

from __future__ import annotations

import re

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster

_GROUP = re.compile(r"([A-Za-z0-9_.-]+):(\d+)x(\d+)(?:/(\d+))?(?:/(\d+))?")
#: More GPUs than any site has: a slip of the finger.
_MOST_GPUS = 1_000_000


def read_cluster(text: str) -> Cluster:
    """Read TYPE:NODESxGPUS[/SWITCH[/SOCKET]][,…]; UsageError says which group is wrong, what it takes."""
    shape: list[tuple[str, int]] = []
    parts: list[tuple[int, int]] = []
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        if not match or int(match[2]) < 1 or int(match[3]) < 1:
            raise UsageError(f"--cluster: {group.strip()!r} is not TYPE:NODESxGPUS (as v100:3x4)")
        if int(match[2]) * int(match[3]) > _MOST_GPUS:
            raise UsageError(f"--cluster: {group.strip()!r} has more than {_MOST_GPUS} GPUs")
        count = int(match[3])
        switch, socket = int(match[4] or count), int(match[5] or count)
        if not switch or not socket or socket % switch or count % socket:
            raise UsageError(
                f"--cluster: {group.strip()!r}: a switch divides a socket, a socket a node (8/2/4)"
            )
        shape += [(match[1], count)] * int(match[2])
        parts += [(switch, socket)] * int(match[2])
    return Cluster(shape, parts)
