"""From GPU types to GPUs: a gang on one node, jobs where they were, small ones out of the way of gangs.

A job keeps its GPUs when it can. Where those who stay leave no node for a gang, all who may move on GPUs of
that type are seated anew, the largest first, each on the node it fills best: gangs of powers of two then
always fit, and others are spread over nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gandiva_slurm.policy.port import Cluster


@dataclass(frozen=True, slots=True)
class Guest:
    """A job that is to have `size` GPUs of a type. `gpus`: those it has or had, () when none."""

    job_id: int
    size: int
    gpu_type: str
    gpus: tuple[int, ...] = ()
    is_running: bool = False
    #: False: those GPUs or none
    can_move: bool = True

    @property
    def is_bound(self) -> bool:
        """True when it can have no other GPUs."""
        return bool(self.gpus) and not self.can_move


def seat_all(cluster: Cluster, down: frozenset[int], guests: Sequence[Guest]) -> dict[int, tuple[int, ...]]:
    """Return the GPUs of every guest that found a seat, ascending."""
    seats: dict[int, tuple[int, ...]] = {}
    for gpu_type in cluster.counts:
        here = [guest for guest in guests if guest.gpu_type == gpu_type]
        if here:
            seats.update(_seat_type(cluster, down, gpu_type, here))
    return seats


def _seat_type(
    cluster: Cluster, down: frozenset[int], gpu_type: str, guests: Sequence[Guest]
) -> dict[int, tuple[int, ...]]:
    stays = [guest for guest in guests if guest.gpus and cluster.type_of[guest.gpus[0]] == gpu_type]
    stays.sort(key=lambda guest: (guest.can_move, not guest.is_running, -guest.size, guest.job_id))
    room = _Room(cluster, down, gpu_type)
    seats = {guest.job_id: guest.gpus for guest in stays if room.keep(guest)}
    others = [guest for guest in guests if guest.job_id not in seats and not guest.is_bound]
    if room.seat(others, seats):
        return seats
    room = _Room(cluster, down, gpu_type)
    seats = {guest.job_id: guest.gpus for guest in stays if guest.is_bound and room.keep(guest)}
    free = [guest for guest in guests if not guest.is_bound]
    if not room.seat(free, seats):
        room.spread([guest for guest in free if guest.job_id not in seats], seats)
    return seats


class _Room:
    """The free GPUs of one type, by node."""

    def __init__(self, cluster: Cluster, down: frozenset[int], gpu_type: str) -> None:
        hosts = [(index, host) for index, host in enumerate(cluster.hosts) if host.gpu_type == gpu_type]
        self._free = {index: [gpu for gpu in host.gpus if gpu not in down] for index, host in hosts}
        self._widest = max((len(host.gpus) for _, host in hosts), default=0)
        self._host_of = cluster.host_of
        #: nodes by how many GPUs they have free; an entry whose number has changed since is passed over
        self._by_free: list[list[int]] = [[] for _ in range(self._widest + 1)]
        for index in self._free:
            self._note(index)

    def keep(self, guest: Guest) -> bool:
        """Give a guest the GPUs it had; False when they are not all free."""
        if len(guest.gpus) != guest.size or not all(gpu in self._of(gpu) for gpu in guest.gpus):
            return False
        for gpu in guest.gpus:
            self._of(gpu).remove(gpu)
        for index in {self._host_of[gpu] for gpu in guest.gpus}:
            self._note(index)
        return True

    def seat(self, guests: Iterable[Guest], seats: dict[int, tuple[int, ...]]) -> bool:
        """Seat these, the largest first; False when one found no seat."""
        is_whole = True
        for guest in sorted(guests, key=lambda guest: (-guest.size, guest.job_id)):
            if self.keep(guest):
                seats[guest.job_id] = guest.gpus
                continue
            found = self._find(guest.size)
            if found:
                seats[guest.job_id] = found
            is_whole = is_whole and bool(found)
        return is_whole

    def spread(self, guests: Iterable[Guest], seats: dict[int, tuple[int, ...]]) -> None:
        """Seat these over several nodes: slow, and better than idle GPUs."""
        for guest in sorted(guests, key=lambda guest: (-guest.size, guest.job_id)):
            found = self._gather(guest.size)
            if found:
                seats[guest.job_id] = found

    def _of(self, gpu: int) -> list[int]:
        return self._free.get(self._host_of[gpu], [])

    def _find(self, size: int) -> tuple[int, ...]:
        """GPUs of the node that so many fill best; of several nodes when none is that large; else ()."""
        for count in range(size, self._widest + 1):
            nodes = self._by_free[count]
            while nodes and len(self._free[nodes[0]]) != count:
                heapq.heappop(nodes)
            if nodes:
                return self._take(nodes[0], size)
        return self._gather(size) if size > self._widest else ()

    def _gather(self, size: int) -> tuple[int, ...]:
        """GPUs of as few nodes as can be, () when there are not so many."""
        if sum(map(len, self._free.values())) < size:
            return ()
        found: list[int] = []
        for index in sorted(self._free, key=lambda index: (-len(self._free[index]), index)):
            found += self._take(index, min(size - len(found), len(self._free[index])))
        return tuple(sorted(found))

    def _take(self, index: int, count: int) -> tuple[int, ...]:
        taken = self._free[index][:count]
        self._free[index] = self._free[index][count:]
        self._note(index)
        return tuple(taken)

    def _note(self, index: int) -> None:
        heapq.heappush(self._by_free[len(self._free[index])], index)
