"""Virtual clusters: the jobs of each take turns on its own cells, and borrow what others leave idle (HiveD).

Where the site says what each virtual cluster (VC) owns, the cluster is dealt out so, in cells; else, as soon
as a job names one, equally to all VCs named so far. Jobs that name none are one VC more. What a VC's cells
could hold if it were alone they hold beside the others (`cells_cluster`, ADR 0020): whoever is there by
chance makes way at once.

Who runs is decided elsewhere, by passes; here the picked gangs of one VC are bound to GPUs. A gang stays on
its GPUs where a cell of its VC can be bound to them, also when it was there by chance until now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gandiva_slurm.policy.port import Cluster, JobView, View
from gandiva_slurm.policy.shares.rounds import Runs, Wanted
from gandiva_slurm.policy.virtual_clusters.cells import LEAF, PhysicalCell
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.deal import (
    by_chance,
    chain_of,
    deed_at,
    members_of,
    spec_for,
    spec_of,
)
from gandiva_slurm.policy.virtual_clusters.gangs import BIND, PREEMPT, CellRequest, Deed, Gang, MemberDeed
from gandiva_slurm.policy.virtual_clusters.site import CellsSpec


class Choice(NamedTuple):
    """A job that is to run, the GPU types on which it can, best first, and the GPUs that it may not have."""

    wanted: Wanted
    types: tuple[str, ...]
    barred: frozenset[int] = frozenset()


class VirtualClusters:
    """All VCs; off until there is one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        #: what the site says of them
        self._owned: dict[str, dict[str, int]] = {}
        self._cells: CellCluster | None = None
        self._gpus: Mapping[str, tuple[int, ...]] = {}
        self._kinds: dict[tuple[str, str], list[str]] = {}

    @property
    def names(self) -> Sequence[str]:
        """All VCs, in the order in which they are bound, "" for those who name none; empty: there is none."""
        return self._names

    @property
    def cells(self) -> CellCluster:
        """The cells; only when there are VCs."""
        assert self._cells is not None
        return self._cells

    def follow(self, view: View) -> None:
        """Take note of VCs, of nodes, and of jobs that are gone."""
        self._follow_names(view)
        if not self._names:
            return
        for host in view.cluster.hosts:
            is_down = not view.down.isdisjoint(host.gpus)
            (self.cells.set_bad if is_down else self.cells.set_healthy)(host.name)
        for name, gang in list(self.cells.gangs.items()):
            job = view.jobs.get(int(name))
            if job is None or job.vc != gang.request.vc or not view.down.isdisjoint(self._at(gang)):
                self.cells.delete(name)
        if self._owned and self.cells.bad_nodes:
            # What was lost is taken from what nobody owns: owners, bound before, have all that is left.
            self._leave("", set())

    def _follow_names(self, view: View) -> None:
        owned = {name: dict(types) for name, types in view.vcs.items()}
        named = {job.vc for job in view.jobs.values()}
        if owned:
            if owned != self._owned:
                self._deal(view.cluster, [*owned, ""], spec_of(view.cluster, owned))
        elif self._owned:
            self._names, self._cells = [], None
        elif (self._names or any(named)) and named - set(self._names):
            names = sorted(named.union(self._names))
            self._deal(view.cluster, names, spec_for(view.cluster, names))
        self._owned = owned

    def room(self, vc: str) -> dict[str, int]:
        """GPUs that a VC owns, by type."""
        room: dict[str, int] = {}
        for name, roots in self.cells.vcs[vc].roots.items():
            chain = self.cells.chains[name]
            own = sum(len(cells) * chain.sizes[level] for level, cells in enumerate(roots))
            room[chain.gpu_type] = room.get(chain.gpu_type, 0) + own
        return room

    def seat(self, cluster: Cluster, vc: str, wanted: Sequence[Choice], seated: Runs) -> Runs:
        """Bind these jobs of a VC, each on the first of its types that has cells, beside those seated before.

        Return the GPUs of all.
        """
        seats = dict(seated)
        self._leave(vc, {*seats, *(each.wanted.job.job_id for each in wanted)})
        asked = sum(each.wanted.size for each in wanted) + sum(map(len, seated.values()))

        def place(each: Choice) -> tuple[bool, int, tuple[int, int]]:
            job, size, _ = each.wanted
            return job.can_migrate, -size, job.order

        order = sorted(wanted, key=place)
        for is_anew in (False, True):
            late = [choice for choice in order if not self._stay(cluster, vc, choice, is_anew)]
            bound = [self._bind(cluster, vc, choice) for choice in late]
            if all(bound) or is_anew or asked > sum(self.room(vc).values()):
                break
            self._leave(vc, set(seated))
        for job in (each.wanted.job for each in order):
            gang = self.cells.gangs.get(str(job.job_id))
            if gang is not None and gang.virtual is not None:
                seats[job.job_id] = self._at(gang)
            elif gang is None and job.is_running:
                self._lend(cluster, job, job.gpus)
        return seats

    def lend(self, cluster: Cluster, jobs: Mapping[int, JobView], runs: Runs) -> None:
        """Note who runs by chance, so that VCs take their cells where fewest do."""
        for name in [name for name, gang in self.cells.gangs.items() if gang.virtual is None]:
            self.cells.delete(name)
        for job_id, gpus in runs.items():
            self._lend(cluster, jobs[job_id], gpus)

    def _lend(self, cluster: Cluster, job: JobView, gpus: tuple[int, ...]) -> None:
        if all(gpu.gang is None for gpu in self._cells_at(cluster, gpus)):
            self.cells.restore(by_chance(job, job.vc), deed_at(cluster, gpus))

    def _deal(self, cluster: Cluster, names: list[str], spec: CellsSpec) -> None:
        self._names = names
        self._cells = self._cells.reconfigured(spec) if self._cells else CellCluster(spec)
        self._gpus = {host.name: host.gpus for host in cluster.hosts}
        self._kinds = {}
        for name, vc in spec.vcs.items():
            for grant in vc.grants:
                self._kinds.setdefault((name, grant.chain), []).insert(0, grant.kind)

    def _leave(self, vc: str, stay: set[int]) -> None:
        """Take the cells of a VC from all gangs but these; who is there by chance is not touched."""
        for name, gang in list(self.cells.gangs.items()):
            if gang.request.vc == vc and gang.virtual is not None and int(name) not in stay:
                self.cells.delete(name)

    def _stay(self, cluster: Cluster, vc: str, choice: Choice, is_anew: bool) -> bool:
        """True when a job keeps its GPUs: it is bound there, or a cell of its VC can be."""
        (job, size, _), types, _ = choice
        gang = self.cells.gangs.get(str(job.job_id))
        if gang is not None:
            # One that cannot leave may live elsewhere than it was bound to: Slurm started it there.
            may_be_there = job.can_migrate or not job.gpus or self._at(gang) == job.gpus
            is_bound = gang.virtual is not None and may_be_there
            if (
                is_bound
                and self.cells.chains[_chain(gang)].gpu_type in types[:1]
                and len(self._at(gang)) == size
            ):
                return True
            self.cells.delete(gang.name)
        is_there = (
            len(job.gpus) == size and cluster.type_of[job.gpus[0]] in types[: 1 if job.can_migrate else None]
        )
        if not is_there or (is_anew and job.can_migrate):
            return False
        return self._bind_at(cluster, vc, job)

    def _bind_at(self, cluster: Cluster, vc: str, job: JobView) -> bool:
        """Bind a gang to the GPUs where it is, if no other is bound there and no promise is broken by it."""
        for gpu in self._cells_at(cluster, job.gpus):
            is_others = any(cell.virtual is not None and cell.virtual.vc != vc for cell in gpu.line())
            is_taken = gpu.gang is not None and gpu.gang.virtual is not None
            if is_others or is_taken or not gpu.is_healthy:
                return False
        for gpu in self._cells_at(cluster, job.gpus):
            if gpu.gang is not None:
                self.cells.delete(gpu.gang.name)
        deed = deed_at(cluster, job.gpus)
        for kind in self._kinds.get((vc, deed.chain), ()):
            if not all(self._is_open(gpu, kind, vc) for gpu in self._cells_at(cluster, job.gpus)):
                continue
            members = tuple(MemberDeed(m.node, m.gpus, (kind,) * len(m.gpus)) for m in deed.members)
            sizes = tuple(len(member.gpus) for member in members)
            request = CellRequest(str(job.job_id), vc, sizes, gpu_type=self.cells.chains[deed.chain].gpu_type)
            if self.cells.restore(request, Deed(deed.chain, members)).virtual is not None:
                return True
            self.cells.delete(request.gang)
        return False

    def _is_open(self, gpu: PhysicalCell, kind: str, vc: str) -> bool:
        """True when the cell of this kind above a GPU is this VC's, or can be."""
        level = self.cells.chains[gpu.chain].level_of(kind)
        root = next((cell for cell in gpu.line() if cell.level == level), None)
        return root is not None and (root.is_loose or (root.virtual is not None and root.virtual.vc == vc))

    def _bind(self, cluster: Cluster, vc: str, choice: Choice) -> bool:
        """Bind a gang wherever its VC's cells allow, putting out whoever is there by chance."""
        job = choice.wanted.job
        if job.gpus and not job.can_migrate:
            return False
        closed = _closed(cluster, choice.barred)
        for chain, request in _requests(cluster, vc, choice.wanted, choice.types):
            if chain not in self.cells.vcs[vc].roots:
                continue
            answer = self.cells.ask(request, closed=closed)
            while answer.kind == PREEMPT:
                for victim in answer.victims:
                    self.cells.delete(victim)
                answer = self.cells.ask(request, closed=closed)
            if answer.kind == BIND and answer.deed is not None:
                gang = self.cells.allocate(request, answer.deed)
                gpus = self._at(gang)
                if cluster.share(gpus, job.cell) and cluster.are_even(gpus, job.nodes):
                    return True
                self.cells.delete(gang.name)
        return False

    def _at(self, gang: Gang) -> tuple[int, ...]:
        assert gang.deed is not None
        members = gang.deed.members
        return tuple(sorted(self._gpus[member.node][index] for member in members for index in member.gpus))

    def _cells_at(self, cluster: Cluster, gpus: Sequence[int]) -> Iterator[PhysicalCell]:
        for gpu in gpus:
            host = cluster.hosts[cluster.host_of[gpu]]
            chain = chain_of(host.gpu_type, len(host.gpus))
            cell = self.cells.find_gpu(chain, host.name, host.gpus.index(gpu))
            assert cell is not None and cell.level == LEAF
            yield cell


def _chain(gang: Gang) -> str:
    assert gang.deed is not None
    return gang.deed.chain


def _closed(cluster: Cluster, gpus: frozenset[int]) -> frozenset[tuple[str, int]]:
    """Return GPUs by their nodes' names and their numbers there."""
    hosts = ((cluster.hosts[cluster.host_of[gpu]], gpu) for gpu in gpus)
    return frozenset((host.name, gpu - host.gpus[0]) for host, gpu in hosts)


def _requests(
    cluster: Cluster, vc: str, wanted: Wanted, types: Sequence[str]
) -> Iterator[tuple[str, CellRequest]]:
    name = str(wanted.job.job_id)
    for gpu_type in types:
        widths = {len(host.gpus) for host in cluster.hosts if host.gpu_type == gpu_type and host.gpus}
        for width in sorted(widths):
            members = _members(wanted, width)
            request = CellRequest(name, vc, members, gpu_type=gpu_type, is_apart=wanted.job.nodes > 1)
            yield chain_of(gpu_type, width), request


def _members(wanted: Wanted, width: int) -> tuple[int, ...]:
    """GPUs on each of its nodes, in nodes of so many."""
    nodes = wanted.job.nodes
    is_even = nodes and wanted.size % nodes == 0
    return (wanted.size // nodes,) * nodes if is_even else members_of(wanted.size, width)
