"""From GPU types to GPUs: a gang on one node, jobs where they were, small ones out of the way of gangs.

A job keeps its GPUs when it can. Where those who stay leave no node for a gang, all who may move on GPUs of
that type are seated anew, the largest first, each on the node it fills best: gangs of powers of two then
always fit, and others are spread over nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import CELLS, NODE, Cluster

Seats = dict[int, tuple[int, ...]]


class Guest(NamedTuple):
    """A job that is to have `size` GPUs of a type. `gpus`: those it has or had, () when none."""

    job_id: int
    size: int
    gpu_type: str
    gpus: tuple[int, ...] = ()
    is_running: bool = False
    #: False: those GPUs or none
    can_move: bool = True
    #: the cell that its GPUs must share (port.CELLS); "" any
    cell: str = ""
    #: GPUs to which it may not come (`eligibility`)
    barred: frozenset[int] = frozenset()
    #: of those that can have these GPUs only the lowest has them
    rank: int = 0
    #: False: on one node, where it fits on one
    can_spread: bool = True
    #: nodes on which it must be, with as many GPUs on each; 0: any number
    nodes: int = 0

    @property
    def may_spread(self) -> bool:
        """True when it may be in pieces, on any nodes."""
        return self.can_spread and not self.nodes and self.cell not in CELLS

    @property
    def is_bound(self) -> bool:
        """True when it can have no other GPUs."""
        return bool(self.gpus) and not self.can_move


def seat_all(
    cluster: Cluster, down: frozenset[int], guests: Sequence[Guest], avoid: frozenset[int] = frozenset()
) -> Seats:
    """Return the GPUs of every guest that found a seat, ascending; GPUs to avoid only where it must be."""
    if avoid:
        seats = seat_all(cluster, down | avoid, guests)
        if len(seats) == len(guests):
            return seats
    free, seats = FreeGpus(cluster, down), Seats()
    for gpu_type in cluster.counts:
        here = [guest for guest in guests if guest.gpu_type == gpu_type]
        if here:
            seats.update(_seat_type(cluster, free, gpu_type, here))
    return seats


def _seat_type(cluster: Cluster, free: FreeGpus, gpu_type: str, guests: Sequence[Guest]) -> Seats:
    stays = [guest for guest in guests if guest.gpus and cluster.type_of[guest.gpus[0]] == gpu_type]
    stays.sort(key=_stay_order)
    seats = {guest.job_id: guest.gpus for guest in stays if _keep(free, guest)}
    others = [guest for guest in guests if guest.job_id not in seats and not guest.is_bound]
    if _seat(free, gpu_type, others, seats):
        return seats
    movable = [guest for guest in guests if not guest.is_bound]
    for guest in movable:
        free.give(seats.pop(guest.job_id, ()))
    old = {guest.job_id for guest in stays}
    if _seat(free, gpu_type, movable, seats, old):
        return seats
    if any(guest.job_id not in seats and not guest.may_spread for guest in movable):
        # One of them would be left out each time: its turn counts for more than how well GPUs are used, and
        # for more than that of one which cannot leave these GPUs and comes after it.
        for guest in guests:
            free.give(seats.pop(guest.job_id, ()))
        for guest in sorted(guests, key=lambda guest: (guest.rank, not guest.is_bound)):
            if not guest.is_bound:
                _seat(free, gpu_type, [guest], seats, old)
            elif _keep(free, guest):
                seats[guest.job_id] = guest.gpus
    _spread(free, gpu_type, [guest for guest in movable if guest.job_id not in seats], seats)
    return seats


def _keep(free: FreeGpus, guest: Guest) -> bool:
    """Give a guest the GPUs it had; False when they are not all free."""
    if len(guest.gpus) != guest.size or not free.has(guest.gpus):
        return False
    free.take(guest.gpus)
    return True


def _seat(
    free: FreeGpus, gpu_type: str, guests: Iterable[Guest], seats: Seats, stays: Collection[int] = ()
) -> bool:
    """Seat these on one node each, the largest first, `stays` where they were if they can; False: not all.

    A gang that no node could hold gets as few as can be.
    """
    is_whole = True
    for guest in sorted(guests, key=_by_choice):
        if guest.job_id in stays and _keep(free, guest):
            seats[guest.job_id] = guest.gpus
            continue
        shut = free.shut(guest.barred)
        is_wide = guest.size > free.widest(gpu_type)
        if guest.nodes or guest.cell in CELLS:
            near = _gather(free, guest, gpu_type)
            is_whole &= near is not None
            seats.update({guest.job_id: near} if near else {})
        elif free.left_of(gpu_type) >= guest.size if is_wide else free.has_together(guest.size, gpu_type):
            seats[guest.job_id] = free.gather(guest.size, gpu_type)
        else:
            is_whole = False
        free.give(shut)
    return is_whole


def _gather(free: FreeGpus, guest: Guest, gpu_type: str) -> tuple[int, ...] | None:
    """Take GPUs that share the guest's cell, or lie evenly on its nodes; None where there are none."""
    if guest.nodes > 1:
        return free.gather_evenly(guest.size, gpu_type, guest.nodes)
    return free.gather_in(guest.size, gpu_type, guest.cell if guest.cell in CELLS else NODE)


def _spread(free: FreeGpus, gpu_type: str, guests: Iterable[Guest], seats: Seats) -> None:
    """Seat these over several nodes: slow, and better than idle GPUs."""
    for guest in sorted(guests, key=_by_choice):
        shut = free.shut(guest.barred)
        if guest.may_spread and free.left_of(gpu_type) >= guest.size:
            seats[guest.job_id] = free.gather(guest.size, gpu_type)
        free.give(shut)


def _stay_order(guest: Guest) -> tuple[bool, int, bool, int, int]:
    rank = 0 if guest.can_move else guest.rank
    return (guest.can_move, rank, not guest.is_running, -guest.size, guest.job_id)


def _by_choice(guest: Guest) -> tuple[int, int, int]:
    """Those with least choice first, then the largest."""
    return (-len(guest.barred), -guest.size, guest.job_id)
