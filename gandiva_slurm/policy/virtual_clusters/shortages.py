"""GPUs that are promised to virtual clusters, and that no node has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gandiva_slurm.policy.virtual_clusters.deal import UNTYPED, Wanted


def shortages(wanted: Wanted, nodes: Iterable[tuple[str, int]]) -> list[str]:
    """Say which types no node has, and of which more are promised than there are.

    `nodes`: the GPU type of each node ("": it has none), and how many GPUs it has, up or down.
    """
    there: Counter[str] = Counter()
    for gpu_type, gpus in nodes:
        there[gpu_type or UNTYPED] += gpus
    known = ", ".join(sorted(there)) or "none"
    found = []
    for gpu_type in dict.fromkeys(name for types in wanted.values() for name in types):
        promised = {vc: types[gpu_type] for vc, types in wanted.items() if gpu_type in types}
        sum_text = " + ".join(f"{vc} {count}" for vc, count in promised.items())
        if gpu_type not in there:
            found.append(f"no node has GPUs of type {gpu_type} ({sum_text}); known types: {known}")
        elif sum(promised.values()) > there[gpu_type]:
            found.append(f"{sum_text} GPUs of type {gpu_type} are promised, the nodes have {there[gpu_type]}")
    return found
