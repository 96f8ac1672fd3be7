"""Gangs in pieces on several nodes: what that costs them by type, and which go together again, and where.

A gang that was seated in pieces, since no node of its type had room, goes on so for as long as it keeps its
GPUs. At a turn's beginning it is seated on one node where there is room now, if what is known of its rates
says that this is worth a move; and a type on which it would be in pieces is worth to it what it does there
(locality: Gandiva, section 3.3; Tiresias calls it consolidation).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

from gandiva_slurm.policy.placement.free import largest_host
from gandiva_slurm.policy.port import Cluster, JobView, Rates
from gandiva_slurm.policy.shares.rounds import Runs, Wanted

#: Tells the GPUs to which a job may not come.
Barred = Callable[[JobView], frozenset[int]]


class Apart:
    """Of one question's gangs those that are in pieces, or would be: what is free on single nodes."""

    def __init__(self, cluster: Cluster, rates: Rates, taken: Set[int], homes: Runs, barred: Barred) -> None:
        """`taken`: GPUs that nobody of these can have; `homes`: where those live who are to be seated."""
        self._cluster, self._rates, self._barred = cluster, rates, barred
        #: by GPU: how many live there, one that is taken counts as one
        self._uses = Counter([*taken, *itertools.chain(*homes.values())])
        #: by the GPUs that are barred to a job: what is spare for it
        self._spare: dict[frozenset[int], SpareNodes] = {}

    def factor(self, job: JobView, gpu_type: str) -> float:
        """Return what part of its speed on one node a gang has on this type, where it must be in pieces."""
        if self._node_for(job, gpu_type) is not None:
            return 1.0
        near, apart = self._speeds(job, gpu_type)
        return min(1.0, apart / near) if near and apart is not None else 1.0

    def together(self, wanted: Iterable[Wanted], types: Mapping[int, str], least: float) -> set[int]:
        """Return those in pieces for which a node of their type has room, each node's given once.

        `least`: how much faster it must be there, as a factor.
        """
        found = set[int]()
        for job, _, _ in wanted:
            gpu_type = types.get(job.job_id, "")
            if not self.is_apart(job) or gpu_type != self._cluster.type_of[job.gpus[0]]:
                continue
            near, apart = self._speeds(job, gpu_type)
            node = self._node_for(job, gpu_type)
            if node is None or apart is None or (near is not None and near < apart * least):
                continue
            self._move(job, node)
            found.add(job.job_id)
        return found

    def is_apart(self, job: JobView) -> bool:
        """True for a gang in pieces that may go elsewhere, and did not ask for several nodes."""
        is_loose = len(job.gpus) > 1 and job.can_migrate and len(job.gpus) == job.size
        return is_loose and may_be_together(job) and not self._cluster.are_near(job.gpus)

    def _speeds(self, job: JobView, gpu_type: str) -> tuple[float | None, float | None]:
        """Return a gang's rates on one node of this type, and in pieces."""
        alone = self._rates.alone
        return alone(job.model, job.size, gpu_type), alone(job.model, job.size, gpu_type, is_local=False)

    def _node_for(self, job: JobView, gpu_type: str) -> int | None:
        """Return the node of this type with the least room for the gang, its own GPUs there among it."""
        barred = self._barred(job)
        if barred not in self._spare:
            used = barred.union(gpu for gpu, count in self._uses.items() if count)
            self._spare[barred] = SpareNodes(self._cluster, used)
        own = Counter(self._cluster.host_of[gpu] for gpu in self._left_by(job) if gpu not in barred)
        return self._spare[barred].tightest(gpu_type, job.size, own)

    def _left_by(self, job: JobView) -> list[int]:
        """Return the GPUs that are spare once this job has left them."""
        return [gpu for gpu in job.gpus if self._uses[gpu] == 1]

    def _move(self, job: JobView, node: int) -> None:
        """Let a job live on a node that has room for it."""
        self._note(self._left_by(job), 1)
        self._uses.subtract(job.gpus)
        barred, gpus = self._barred(job), self._cluster.hosts[node].gpus
        taken = [gpu for gpu in gpus if not self._uses[gpu] and gpu not in barred][: job.size]
        self._note(taken, -1)
        self._uses.update(taken)

    def _note(self, gpus: Iterable[int], more: int) -> None:
        """These are spare from now on (1), or not any more (-1)."""
        for gpu in gpus:
            for barred, spare in self._spare.items():
                if gpu not in barred:
                    spare.add(self._cluster.host_of[gpu], more)


class SpareNodes:
    """Nodes by type and by how many spare GPUs each has: none is found by a walk over the others."""

    def __init__(self, cluster: Cluster, used: Set[int]) -> None:
        """All GPUs are spare but the used."""
        self._cluster = cluster
        self._count = [sum(gpu not in used for gpu in host.gpus) for host in cluster.hosts]
        #: by type and number: the nodes' indexes, ascending
        self._nodes: dict[str, list[list[int]]] = {
            gpu_type: [[] for _ in range(largest_host(cluster, gpu_type) + 1)] for gpu_type in cluster.counts
        }
        for index, host in enumerate(cluster.hosts):
            self._nodes[host.gpu_type][self._count[index]].append(index)

    def add(self, index: int, more: int) -> None:
        """Add a number, which may be below 0, to what a node has."""
        by_count = self._nodes[self._cluster.hosts[index].gpu_type]
        before = by_count[self._count[index]]
        del before[bisect_left(before, index)]
        self._count[index] += more
        insort(by_count[self._count[index]], index)

    def tightest(self, gpu_type: str, size: int, own: Mapping[int, int]) -> int | None:
        """Return the node with the fewest of those with at least `size`, the first of equals; None: none.

        `own`: by node, GPUs that count as spare besides.
        """
        rooms = [(self._count[index] + count, index) for index, count in own.items()
                 if self._cluster.hosts[index].gpu_type == gpu_type]  # fmt: skip
        found = [room for room in rooms if room[0] >= size]
        by_count = self._nodes[gpu_type]
        for count in range(size, len(by_count)):
            other = next((index for index in by_count[count] if index not in own), None)
            if other is not None:
                found.append((count, other))
                break
        return min(found)[1] if found else None


def may_be_together(job: JobView) -> bool:
    """True for a gang that asked for no number of nodes and no cell."""
    return job.size > 1 and job.nodes <= 1 and not job.cell
