"""Free GPUs: which there are, and the place where a gang is put together best."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from gandiva_slurm.policy.placement.topology import closest
from gandiva_slurm.policy.port import CELLS, GPU, Cluster, JobView


class FreeGpus:
    """Free GPUs, kept by how many a node has, so that a gang's place is found without a walk over nodes."""

    def __init__(self, cluster: Cluster, blocked: Collection[int] = ()) -> None:
        """All of them but the blocked: those that are down, or taken."""
        self._cluster = cluster
        self._free = [[gpu for gpu in host.gpus if gpu not in blocked] for host in self._cluster.hosts]
        self._left = dict.fromkeys(self._cluster.counts, 0)
        most = {gpu_type: largest_host(self._cluster, gpu_type) for gpu_type in self._left}
        #: by type and by free GPUs on the node: a heap of nodes; stale entries are dropped on sight
        self._heaps: dict[str, list[list[int]]] = {
            gpu_type: [[] for _ in range(count + 1)] for gpu_type, count in most.items()
        }
        for index, host in enumerate(self._cluster.hosts):
            self._left[host.gpu_type] += len(self._free[index])
            self._push(index)

    @property
    def left(self) -> int:
        """Free GPUs in all."""
        return sum(self._left.values())

    def left_of(self, gpu_type: str) -> int:
        """Free GPUs of a type."""
        return self._left[gpu_type]

    def widest(self, gpu_type: str) -> int:
        """GPUs of the largest node of a type, free or not."""
        return len(self._heaps[gpu_type]) - 1

    def has_together(self, size: int, gpu_type: str) -> bool:
        """True when one node has so many free."""
        counts = range(size, self.widest(gpu_type) + 1)
        return any(self._first(gpu_type, count) is not None for count in counts)

    def has(self, gpus: Iterable[int]) -> bool:
        """True when all of these are free."""
        return all(gpu in self._free[self._cluster.host_of[gpu]] for gpu in gpus)

    def take(self, gpus: Iterable[int]) -> None:
        """Take exactly these; ValueError when one is not free."""
        touched = set()
        for gpu in gpus:
            index = self._cluster.host_of[gpu]
            self._free[index].remove(gpu)
            self._left[self._cluster.type_of[gpu]] -= 1
            touched.add(index)
        for index in sorted(touched):
            self._push(index)

    def shut(self, gpus: Iterable[int]) -> list[int]:
        """Take those of these that are free; return them, to be given back."""
        taken = [gpu for gpu in gpus if self.has((gpu,))]
        self.take(taken)
        return taken

    def give(self, gpus: Iterable[int]) -> None:
        """Give these back."""
        touched = set()
        for gpu in gpus:
            index = self._cluster.host_of[gpu]
            self._free[index].append(gpu)
            self._left[self._cluster.type_of[gpu]] += 1
            touched.add(index)
        for index in sorted(touched):
            self._free[index].sort()
            self._push(index)

    def place(
        self, job: JobView, types: Sequence[str], most_extra: int | None = None, is_spread: bool = False
    ) -> tuple[int, ...] | None:
        """Take a place for a job: where it is parked if that is free, else the best of these types.

        `most_extra`: nodes it may have beyond the fewest that its size needs. None: no such place now.
        """
        if job.gpus and self.has(job.gpus) and self._is_good_old_place(job, types):
            self.take(job.gpus)
            return job.gpus
        if job.gpus and not job.can_migrate:
            return None
        best: tuple[int, tuple[int, ...]] | None = None
        for gpu_type in types:
            if self._left[gpu_type] < job.size or (best and best[0] == 0):
                continue
            gpus = self.gather_for(job, job.size, gpu_type, is_spread)
            if gpus is None:
                continue
            extra = extra_hosts(self._cluster, gpus)
            self.give(gpus)
            if (most_extra is None or extra <= most_extra) and (best is None or extra < best[0]):
                best = (extra, gpus)
        if best is None:
            return None
        self.take(best[1])
        return best[1]

    def gather(
        self, size: int, gpu_type: str, is_spread: bool = False, near: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Take so many of a type, which must be there: first on the nodes `near`, then on the fewest others.

        Spread: one by one on the emptiest node.
        """
        gpus: list[int] = []
        while len(gpus) < size:
            index = self._next_host(gpu_type, size - len(gpus), is_spread, near)
            part = self._near(index, 1 if is_spread else size - len(gpus))
            self.take(part)
            gpus += part
        return tuple(sorted(gpus))

    def gather_for(
        self, job: JobView, size: int, gpu_type: str, is_spread: bool = False
    ) -> tuple[int, ...] | None:
        """Take GPUs of a type for a job, where it may be and as it asks for; None: there are none so."""
        hosts = enumerate(self._cluster.hosts)
        barred = [host.gpus for index, host in hosts if job.hosts is not None and index not in job.hosts]
        shut = self.shut(gpu for gpus in barred for gpu in gpus)
        gpus: tuple[int, ...] | None = None
        if job.nodes:
            gpus = self.gather_evenly(size, gpu_type, job.nodes)
        elif job.cell in CELLS:
            gpus = self.gather_in(size, gpu_type, job.cell)
        elif self._left[gpu_type] >= size:
            gpus = self.gather(size, gpu_type, is_spread)
        self.give(shut)
        return gpus

    def gather_in(self, size: int, gpu_type: str, cell: str) -> tuple[int, ...] | None:
        """Take so many of a type in one such cell (port.CELLS), the tightest; None where there is none."""
        below: dict[tuple[int, int], list[int]] = {}
        for index, host in enumerate(self._cluster.hosts):
            for gpu in self._free[index] if host.gpu_type == gpu_type else ():
                level = CELLS.index(cell) - 1 if cell != GPU else 0
                below.setdefault((self._cluster.lines[gpu][level], index), []).append(gpu)
        fitting = [
            (len(gpus), len(self._free[key[1]]), gpus) for key, gpus in below.items() if len(gpus) >= size
        ]
        if not fitting or (cell == GPU and size > 1):
            return None
        lines = self._cluster.lines
        chosen = closest(min(fitting)[2], size, lines.__getitem__, is_tightest=True)
        assert chosen is not None
        self.take(chosen)
        return tuple(sorted(chosen))

    def gather_evenly(self, size: int, gpu_type: str, nodes: int) -> tuple[int, ...] | None:
        """Take as many of a type on each of some nodes, the fullest that have them; None: there are none."""
        part = size // nodes
        able = [index for index, host in enumerate(self._cluster.hosts) if host.gpu_type == gpu_type]
        able = [index for index in able if len(self._free[index]) >= part]
        if part * nodes != size or len(able) < nodes:
            return None
        able.sort(key=lambda index: (len(self._free[index]), index))
        gpus = [gpu for index in able[:nodes] for gpu in self._near(index, part)]
        self.take(gpus)
        return tuple(sorted(gpus))

    def _near(self, index: int, count: int) -> list[int]:
        """So many free GPUs of a node, or all it has: those that are nearest to each other."""
        free = self._free[index]
        if not self._cluster.has_parts or count >= len(free):
            return free[:count]
        return [*(closest(free, count, self._cluster.lines.__getitem__, is_tightest=True) or ())]

    def _is_good_old_place(self, job: JobView, types: Sequence[str]) -> bool:
        return len(job.gpus) == job.size and self._cluster.type_of[job.gpus[0]] in types

    def _next_host(self, gpu_type: str, size: int, is_spread: bool, near: Collection[int]) -> int:
        beside = [index for index in sorted(near) if self._free[index]]
        if beside:
            return max(beside, key=lambda index: (len(self._free[index]), -index))
        most = self.widest(gpu_type)
        tight = () if is_spread else range(size, most + 1)
        for count in (*tight, *range(most, 0, -1)):
            index = self._first(gpu_type, count)
            if index is not None:
                return index
        raise ValueError(f"no free {gpu_type} is left")

    def _first(self, gpu_type: str, count: int) -> int | None:
        heap = self._heaps[gpu_type][count]
        while heap and len(self._free[heap[0]]) != count:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _push(self, index: int) -> None:
        heaps = self._heaps[self._cluster.hosts[index].gpu_type]
        heapq.heappush(heaps[len(self._free[index])], index)


def largest_host(cluster: Cluster, gpu_type: str) -> int:
    """GPUs of the largest node of a type."""
    return max((len(host.gpus) for host in cluster.hosts if host.gpu_type == gpu_type), default=0)


def extra_hosts(cluster: Cluster, gpus: Sequence[int]) -> int:
    """Nodes of a gang beyond the fewest that its size needs."""
    hosts = cluster.hosts_of(gpus)
    most = max(len(cluster.hosts[index].gpus) for index in hosts)
    return max(0, len(hosts) - -(-len(gpus) // most))
