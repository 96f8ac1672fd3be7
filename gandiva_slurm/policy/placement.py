"""Where a job goes: the GPUs of least ticket load (Gandiva_fair: balance of ticket load).

A job's tickets lie evenly on its GPUs. Among the nodes it may use, a job takes the GPUs whose most loaded one
is least loaded, then the least load in all, then the node of least load per GPU, then the first by name.
A job of several nodes takes the best so many of one GPU type by that order, of the type whose nodes come out
best together.
Nothing moves afterwards here, so the order in which jobs are placed matters: see `in_turn`.

A GPU has a fixed number of slots (residents), and the last free one goes only to a user who is not on that
GPU yet: otherwise whoever submits a hundred jobs first would keep everybody else out until one of them ends.

Opportunistic jobs come last, get no last slot, and are next to no load: they decide where all else is equal.
Where GPUs have owners (virtual clusters), a guaranteed job has those of its own, an opportunistic one any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from gandiva_slurm.policy.groups import SPARE
from gandiva_slurm.policy.needs import Need as Need
from gandiva_slurm.policy.needs import Stay as Stay
from gandiva_slurm.policy.shares import Leaf

#: Loads are integers in 1/LOAD_SCALE of a ticket's part, so that a gang of up to 16 GPUs divides evenly.
LOAD_SCALE = 720_720
#: So many times the load of an opportunistic job makes that of a guaranteed one.
GUARANTEED_WEIGHS = 10**6


@dataclass
class Site:
    """A node as placement sees it; `is_open` is False where nothing new may go (down, no daemon)."""

    name: str
    gpu_type: str
    gpus: int
    slots_per_gpu: int
    cpus: int = 0
    memory_mib: int = 0
    partitions: tuple[str, ...] = ()
    is_open: bool = True
    #: by job id, or by `kept_key`
    stays: dict[int, Stay] = field(default_factory=dict)
    #: of each GPU the virtual cluster that owns it ("": those who name none); empty: there are none
    owners: tuple[str, ...] = ()

    def may_take(self, need: Need) -> bool:
        """True when partition and type are right, however full or small it is."""
        right_partition = (
            not self.partitions or not need.partitions or set(need.partitions) & set(self.partitions)
        )
        return bool(right_partition) and self.gpus > 0 and (not need.types or self.gpu_type in need.types)

    def is_large_enough(self, need: Need) -> bool:
        """True when the job would fit were the node empty; what Slurm does not tell (0) bounds nothing."""
        return (
            need.gpus <= self.gpus
            and (not self.cpus or need.cpus <= self.cpus)
            and (not self.memory_mib or need.memory_mib <= self.memory_mib)
        )

    def has_memory(self, need: Need) -> bool:
        """True when its memory is enough beside the residents': a parked job keeps its own."""
        return not self.memory_mib or self.memory_taken() + need.memory_mib <= self.memory_mib

    def memory_taken(self) -> int:
        """Memory of the residents."""
        return sum(stay.memory_mib for stay in self.stays.values())

    def gpus_for(self, group: str) -> Sequence[int]:
        """The GPUs that jobs of a group may have, full or not: guaranteed ones those of their own owner."""
        if group == SPARE or not self.owners:
            return range(self.gpus)
        return [gpu for gpu, owner in enumerate(self.owners) if owner == group]

    def free_gpus(self, leaf: Leaf, group: str = "", is_kept: bool = False) -> list[int]:
        """The GPUs with a slot for a job of this user and group; one that is kept for it may be the last."""
        keeps_last = group == SPARE and (self.slots_per_gpu > 1 or bool(self.owners))
        residents = [0] * self.gpus
        his = [0] * self.gpus
        unknown = 0
        for stay in self.stays.values():
            unknown += not stay.gpus
            for gpu in stay.gpus:
                residents[gpu] += 1
                his[gpu] += stay.leaf.user == leaf.user and stay.group != SPARE
        limit, mine = self.slots_per_gpu - unknown, self.gpus_for(group)
        bars_last = [not is_kept and (keeps_last or count > 0) for count in his]
        return [gpu for gpu in mine if residents[gpu] < limit - bars_last[gpu]]


#: A user in an account, and the group in which he spends his tickets.
Purse = tuple[Leaf, str]


def kept_key(job_id: int) -> int:
    """The key, among a site's stays, of what is kept for a job that is elsewhere, or waits."""
    return -job_id


class NodeGpus(NamedTuple):
    """A node and the GPUs on it."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a job goes: each of its nodes with the GPUs there, in the nodes' order."""

    parts: tuple[NodeGpus, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes."""
        return tuple(part.node for part in self.parts)


class Candidate(NamedTuple):
    """The best a node has for a job, and how it compares: the least is the best."""

    worst: int
    load: int
    beside: Fraction
    name: str
    gpus: tuple[int, ...]


class Board:
    """All nodes with their residents, and the load their tickets make."""

    def __init__(
        self, sites: Iterable[Site], tickets: Mapping[Leaf, int], apart: Mapping[Purse, int] | None = None
    ) -> None:
        """`apart`: the tickets of a group, where they are others than `tickets`."""
        self.sites = {site.name: site for site in sorted(sites, key=lambda site: site.name)}
        self._tickets, self._apart = tickets, apart or {}
        #: by group: they take turns, and share tickets, among themselves
        self._weights: Counter[Purse] = Counter()
        self._gpus: Counter[tuple[str, str]] = Counter()
        #: stays of each job
        self._counted: Counter[tuple[int, str]] = Counter()
        for site in self.sites.values():
            for stay in site.stays.values():
                self._count(stay)

    def put(self, need: Need, place: Place) -> None:
        """Record a placement."""
        for part in place.parts:
            self.lay(part.node, need.job_id, need.stay(part.gpus))

    def lay(self, node: str, key: int, stay: Stay) -> None:
        """Record a stay on a node, under a key that is free there."""
        self.sites[node].stays[key] = stay
        self._count(stay)

    def lift(self, node: str, key: int) -> Stay:
        """Take a stay off a node; the job's weight goes with the last one."""
        stay = self.sites[node].stays.pop(key)
        self._counted[stay.job_id, stay.group] -= 1
        if not self._counted[stay.job_id, stay.group]:
            self._weights[stay.leaf, stay.group] -= stay.weight
        self._gpus[stay.leaf.user, stay.group] -= max(1, len(stay.gpus))
        return stay

    def has_room(self, need: Need, place: Place, is_kept: bool = False) -> bool:
        """True when just this place can take the job now; `is_kept`: it was kept for it until now."""
        return all(
            site is not None
            and self._is_possible(need, site)
            and set(gpus) <= set(site.free_gpus(need.leaf, need.group, is_kept))
            for site, gpus in ((self.sites.get(node), gpus) for node, gpus in place.parts)
        )

    def loads(self, site: Site, newcomer: Need | None = None) -> list[int]:
        """The ticket load of each GPU, as it is when the newcomer has its part of its user's tickets."""
        loads = [0] * site.gpus
        for stay in site.stays.values():
            if stay.gpus and not stay.is_leaving:
                load = self._load(stay, stay.size or len(stay.gpus), newcomer)
                for gpu in stay.gpus:
                    loads[gpu] += load
        return loads

    def best(self, need: Need, sites: Iterable[Site]) -> Place | None:
        """Return the place of least load for this job among these nodes; None when none has the room now."""
        by_type: dict[str, list[Candidate]] = {}
        for site in sites:
            found = self._candidate(need, site)
            if found is None:
                continue
            if need.nodes == 1 and not site.stays:  # the first of the empty ones is the best there is
                return _place([found])
            by_type.setdefault(site.gpu_type, []).append(found)
        whole = [sorted(found)[: need.nodes] for found in by_type.values() if len(found) >= need.nodes]
        return _place(min(whole, key=_rank)) if whole else None

    def _candidate(self, need: Need, site: Site) -> Candidate | None:
        """The GPUs of least load a node has for (a part of) this job; None when it has no room."""
        if not self._is_possible(need, site):
            return None
        free = site.free_gpus(need.leaf, need.group)
        if len(free) < need.gpus:
            return None
        if not site.stays:
            return Candidate(0, 0, Fraction(0), site.name, tuple(free[: need.gpus]))
        loads = self.loads(site, need)
        gpus = sorted(sorted(free, key=lambda gpu: (loads[gpu], gpu))[: need.gpus])
        held = [loads[gpu] for gpu in gpus]
        return Candidate(max(held), sum(held), Fraction(sum(loads), site.gpus), site.name, tuple(gpus))

    @staticmethod
    def _is_possible(need: Need, site: Site) -> bool:
        is_open = site.is_open and site.name not in need.closed
        return is_open and site.is_large_enough(need) and site.has_memory(need)

    def load_of(self, need: Need) -> int:
        """The load that a job on the board brings to each of its GPUs."""
        return self._load(need, need.size, None)

    def bind(self, need: Need, site: Site) -> tuple[int, ...]:
        """Give a job that runs here already the least loaded GPUs; () where it asks too many.

        Full ones, by all that live there and not by what is kept, only where there are no others.
        """
        if need.gpus > site.gpus:
            return ()
        loads, living = self.loads(site), [0] * site.gpus
        for gpu in (gpu for key, stay in site.stays.items() if key > 0 for gpu in stay.gpus):
            living[gpu] += 1
        is_full = [count >= site.slots_per_gpu for count in living]
        order = sorted(range(site.gpus), key=lambda gpu: (is_full[gpu], loads[gpu], gpu))
        gpus = tuple(sorted(order[: need.gpus]))
        site.stays[need.job_id] = need.stay(gpus)
        return gpus

    def gpus_of(self, user: str, group: str = "") -> int:
        """GPUs this user's residents of a group have, each counted for each job."""
        return self._gpus[user, group]

    def tickets_of(self, leaf: Leaf, group: str = "") -> int:
        """Parts of a ticket that a leaf has in a group."""
        return max(1, self._apart.get((leaf, group)) or self._tickets.get(leaf, 1))

    def _count(self, stay: Stay) -> None:
        self._counted[stay.job_id, stay.group] += 1
        if self._counted[stay.job_id, stay.group] == 1:  # its weight is the job's, on however many nodes
            self._weights[stay.leaf, stay.group] += stay.weight
        self._gpus[stay.leaf.user, stay.group] += max(1, len(stay.gpus))

    def _load(self, job: Need | Stay, size: int, newcomer: Need | None) -> int:
        purse = (job.leaf, job.group)
        whole = self._weights[purse]
        if newcomer is not None and (newcomer.leaf, newcomer.group) == purse:
            whole += newcomer.weight
        load = self.tickets_of(*purse) * LOAD_SCALE * job.weight // (whole * size)
        return max(1, load // GUARANTEED_WEIGHS) if job.group == SPARE else load


def _place(found: Sequence[Candidate]) -> Place:
    parts = sorted((NodeGpus(each.name, each.gpus) for each in found), key=lambda part: node_order(part.node))
    return Place(tuple(parts))


def node_order(name: str) -> list[tuple[int, str]]:
    """Order nodes as Slurm does: the numbers in their names count as numbers, n2 before n10."""
    words = re.split(r"(\d+)", name)
    return [(int(word), word) if word.isdecimal() else (0, word) for word in words]


def _rank(found: Sequence[Candidate]) -> tuple[int, int, Fraction, tuple[str, ...]]:
    """How a whole place compares: as a node's does, with all its nodes as one."""
    worst, load = max(each.worst for each in found), sum(each.load for each in found)
    beside = sum((each.beside for each in found), Fraction(0))
    return worst, load, beside, tuple(each.name for each in found)


def in_turn(board: Board, needs: Sequence[Need]) -> Iterator[tuple[Need, Place | None]]:
    """Place one job after the other, recording it on the board; yield each with its place, None: no room.

    In turn, the user with the fewest GPUs for his tickets places one job: among his, higher
    --gandiva-priority first, then larger gangs (a large one finds no even place once small ones lie about),
    then older ones. On a tie between users the larger gang, then the older job, goes first. Opportunistic
    jobs are placed when all others are. Those of a virtual cluster have its GPUs alone. A job of the shape
    of one that had no room is left out: a board only fills up.
    """
    waiting: dict[tuple[str, str], list[Need]] = {}
    for need in sorted(needs, key=lambda need: (-need.priority, -need.size, need.order), reverse=True):
        waiting.setdefault((need.group, need.leaf.user), []).append(need)
    full: set[tuple[object, ...]] = set()
    while waiting:
        owner = min(waiting, key=lambda owner: _turn(board, waiting[owner][-1]))
        need = waiting[owner].pop()
        if not waiting[owner]:
            del waiting[owner]
        if need.shape in full:
            continue
        place = board.best(need, [site for site in board.sites.values() if site.may_take(need)])
        if place is None:
            full.add(need.shape)
        else:
            board.put(need, place)
        yield need, place


def _turn(board: Board, need: Need) -> tuple[bool, Fraction, int, tuple[int, ...]]:
    held = Fraction(board.gpus_of(need.leaf.user, need.group), board.tickets_of(need.leaf, need.group))
    return (need.is_opportunistic, held, -need.size, need.order)
