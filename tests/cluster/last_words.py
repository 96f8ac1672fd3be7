"""What Slurm and the daemons of a cluster said last, for the report of a test that failed on it."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from gandiva_slurm.mini.cluster import MiniCluster

LINES = 30
LOGS = ("gandiva", "slurmctld", "slurmd-")
ASKED = (["squeue", "-a"], ["sinfo", "-NlR"], ["gandiva", "queue"], ["gandiva", "nodes"])


def clusters_of(values: Iterable[Any]) -> Iterator[MiniCluster]:
    """The clusters among a test's fixtures, or below them, each once."""
    seen: set[int] = set()
    for value in values:
        fleet = getattr(value, "fleet", value)
        cluster = getattr(fleet, "mini", fleet)
        if isinstance(cluster, MiniCluster) and id(cluster) not in seen:
            seen.add(id(cluster))
            yield cluster


def last_words(cluster: MiniCluster) -> str:
    """Jobs, nodes and the ends of their logs; what a dead daemon cannot tell is left out."""
    parts = []
    for words in ASKED:
        with contextlib.suppress(Exception):  # it explains a failure, and must not add one
            done = cluster.exec(words, check=False, timeout_s=30)
            parts.append(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")
    with contextlib.suppress(OSError):
        for log in sorted(log for log in cluster.at.log.glob("*.log") if log.name.startswith(LOGS)):
            lines = log.read_text(errors="replace").splitlines()[-LINES:]
            parts.append("\n".join([f"--- {log.name}", *lines]))
    return "\n".join(parts)
