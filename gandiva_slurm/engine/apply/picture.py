"""What the engine knows, as policies see it: the view of `policy.port`, and GPUs by their numbers in it.

A job that moves is shown where it is going, and bound to there; one that was told to leave without a target
lives nowhere. A job for which something other than room is missing is not shown, but
one that was requeued by us a moment ago is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gandiva_slurm.engine.lifecycle.moving import is_untouched, why_bound, why_fixed
from gandiva_slurm.engine.lifecycle.placing import closed_nodes, need_of, site_of
from gandiva_slurm.engine.state.cells import Cells, parts_of
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.held import held_ns
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord, NodeRecord
from gandiva_slurm.engine.state.sizes import is_elastic, most_nodes
from gandiva_slurm.model import job as states
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.placement.sites import Site
from gandiva_slurm.policy.port import CELLS, GUARANTEED, NODE, OPPORTUNISTIC, Cluster, Host, JobView, View

#: Nodes, each with GPUs there.
Places = Mapping[str, tuple[int, ...]]
#: A node: name, GPU type, GPUs, memory, and where cells are told GPUs of a switch and a socket.
Key = tuple[str, str, int, int] | tuple[str, str, int, int, int, int]


class Picture:
    """The nodes of a cluster, as long as they are the same ones."""

    def __init__(self, nodes: Mapping[str, NodeRecord], cells: Cells) -> None:
        """Number all GPUs, in the nodes' order."""
        self.key = key_of(nodes, cells)
        self.names = tuple(name for name, *_ in self.key)
        self.cluster = Cluster(
            [(kind, gpus) for _, kind, gpus, *_ in self.key],
            [parts_of(cells, kind, gpus) for _, kind, gpus, *_ in self.key],
            [memory for _, _, _, memory, *_ in self.key],
        )
        self._known: dict[int, _Known] = {}
        self._eligible: _Eligible | None = None
        #: by name: the node's index, its first GPU's number, and how many it has
        self.index = {name: number for number, name in enumerate(self.names)}
        self._first = dict(zip(self.names, _firsts(self.cluster), strict=True))
        self._count = {name: gpus for name, _, gpus, *_ in self.key}

    def numbers(self, places: Places) -> tuple[int, ...]:
        """Return GPUs of nodes by their numbers in the cluster; those of unknown nodes are left out."""
        first = self._first
        found = [first[name] + gpu for name, gpus in places.items() if name in first for gpu in gpus]
        found.sort()
        return tuple(found)

    def places(self, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """Return GPUs of the cluster as those of their nodes, these by name."""
        found: dict[str, tuple[int, ...]] = {}
        for number in sorted(numbers):
            name = self.names[self.cluster.host_of[number]]
            found[name] = (*found.get(name, ()), number - self._first[name])
        return found

    def view(self, at: Cycle, ready: Iterable[JobRecord], may_pack: bool) -> View:
        """Return the view of this moment; `ready`: jobs that wait for room alone."""
        state = at.state
        placed = (record for record in state.jobs.values() if record.is_placed and self._is_known(record))
        records = sorted((*placed, *ready), key=lambda record: record.order)
        eligible = self._eligible_now(at)
        jobs = {record.job.job_id: self._job(at, record, eligible) for record in records}
        for job_id, job in jobs.items():
            job.can_pack = may_pack and _note_memory(at, state.jobs[job_id], job)
        self._known = {job_id: self._known[job_id] for job_id in jobs}
        down = [
            gpu
            for name, host in zip(self.names, self.cluster.hosts, strict=True)
            for gpu in (host.gpus if state.nodes[name].is_down else ())
        ]
        slots = at.settings.slots_per_gpu
        tree = state.associations
        cards = tuple(state.nodes[name].card_bytes for name in self.names)
        vcs = at.settings.virtual_clusters
        return View(at.now_ns, self.cluster, jobs, state.rates, frozenset(down), slots, tree, cards, vcs)

    def _eligible_now(self, at: Cycle) -> _Eligible:
        """Return which nodes may be used now, with all that was found out since they changed last."""
        sites = [site_of(at.state.nodes[name], at.settings.cells) for name in self.names]
        if self._eligible is None or self._eligible.sites != sites:
            self._eligible = _Eligible(sites, self)
        self._eligible.at = at
        return self._eligible

    def _is_known(self, record: JobRecord) -> bool:
        """True when its GPUs are known, and are GPUs of nodes that are there."""
        places, count = record.places.items(), self._count
        return record.is_bound and all(max(gpus) < count.get(name, 0) for name, gpus in places)

    def _job(self, at: Cycle, record: JobRecord, eligible: _Eligible) -> JobView:
        job_id, known = record.job.job_id, self._known.get(record.job.job_id)
        if known is None or known.job is not record.job or is_elastic(record):
            job = _as_submitted(record, self.cluster)
            known = self._known[job_id] = _Known(record.job, need_of(record), job)
        job = known.view
        job.vc, job.priority = record.vc, record.priority
        job.job_class = OPPORTUNISTIC if record.is_opportunistic else GUARANTEED
        job.hosts = eligible.hosts(known.need, record)
        job.gpus, job.can_migrate = self._whereabouts(at, record)
        job.is_untouched = job.can_migrate and record.is_placed and is_untouched(at.state, record)
        job.cell = _cell(known.need)
        if not self.cluster.share(job.gpus, job.cell):  # it was there before gandiva.yaml told its cells
            job.cell = NODE
        if is_elastic(record) and job.gpus and not job.can_migrate:  # it takes its turns with what it has
            job.size = job.min_size = job.max_size = len(job.gpus)
            if not self.cluster.are_near(job.gpus):
                job.nodes, job.cell = len(self.cluster.hosts_of(job.gpus)), ""
        job.is_running = job_id in at.state.on and record.state in states.SLICED
        job.restart_ns = record.travels.cost_ns
        job.held_ns = held_ns(at, record)
        job.ran_ns = job.held_ns // job.size
        if job.length_ns:
            job.left_ns = max(0, job.length_ns - job.ran_ns)
            job.progress = min(1.0, job.ran_ns / job.length_ns)
        return job

    def _whereabouts(self, at: Cycle, record: JobRecord) -> tuple[tuple[int, ...], bool]:
        """Return the GPUs where a job lives or is going to live, and whether it may have others."""
        if record.target:
            return self.numbers(record.target), False
        if record.state == states.STARTING:
            return self.numbers(record.places), False
        if record.state in states.SLICED:
            return self.numbers(record.places), may_leave(at, record)
        return (), at.settings.moves and not why_fixed(record)


def _note_memory(at: Cycle, record: JobRecord, job: JobView) -> bool:
    """Tell what a job takes of its GPUs; True when it may be packed, as far as that goes."""
    told = [at.state.sightings.get((node, record.key)) for node in record.places]
    job.held_bytes = max((each.measured.held_bytes for each in told if each is not None), default=0)
    job.peak_bytes = record.travels.peak_bytes
    return record.options.pack != "never" and job.peak_bytes > 0


def may_leave(at: Cycle, record: JobRecord) -> bool:
    """True for a resident job that can be saved now, to go on elsewhere or later."""
    is_idle = record.idle.parked_ns > 0 and not at.settings.idle_requeue
    may_move = at.settings.moves and record.state in states.SLICED and not _is_kept(at, record)
    return may_move and not is_idle and not why_bound(at, record)


def _is_kept(at: Cycle, record: JobRecord) -> bool:
    """True while the site has a job stay where it is, after a start or for the moves it has made."""
    settings, travels = at.settings, record.travels
    since_ns = max(record.job.start_s * SECOND_NS - at.state.skew_ns, *travels.moved_ns[-1:], 0)
    if settings.min_run_ns and at.now_ns - since_ns < settings.min_run_ns:
        return True
    return bool(settings.moves_per_hour) and len(travels.lately(at.now_ns)) >= settings.moves_per_hour


def node_order(name: str) -> list[tuple[int, str]]:
    """Order nodes as Slurm does: the numbers in their names count as numbers, n2 before n10."""
    words = re.split(r"(\d+)", name)
    return [(int(word), word) if word.isdecimal() else (0, word) for word in words]


def key_of(nodes: Mapping[str, NodeRecord], cells: Cells) -> tuple[Key, ...]:
    """Return all that a picture is made of."""
    return tuple(
        (
            name, nodes[name].node.gpu_type, nodes[name].gpus, nodes[name].node.memory_mib,
            *(parts_of(cells, nodes[name].node.gpu_type, nodes[name].gpus) if cells else ()),
        )
        for name in sorted(nodes, key=node_order)
    )  # fmt: skip


def _firsts(cluster: Cluster) -> Iterator[int]:
    """Yield the number of each node's first GPU; one without GPUs has none, and the number is never used."""
    for host in cluster.hosts:
        yield host.gpus[0] if host.gpus else 0


class _Known(NamedTuple):
    """What does not change of a job as long as Slurm shows it so."""

    job: SlurmJob
    need: Need
    view: JobView


def _as_submitted(record: JobRecord, cluster: Cluster) -> JobView:
    job, options, need = record.job, record.options, need_of(record)
    is_resized = is_elastic(record)
    sizes = options.sizes if is_resized else (need.size, need.size)
    if is_resized:  # what is more than its size is lent; where no node has as many it asks for fewer
        need = replace(need, nodes=1)
        kinds = {host.gpu_type for host in cluster.hosts if _accepts(need, host)}
        widest = max((cluster.widest(kind, _cell(need)) for kind in kinds), default=1)
        need = replace(need, gpus=max(sizes[0], min(options.gpus, widest)))
    if is_resized and record.travels.rigid_size:  # what it has saved can be loaded by as many ranks only
        size, nodes = record.travels.rigid_size, max(1, record.travels.rigid_nodes)
        need, sizes = replace(need, gpus=size // nodes, nodes=nodes), (size, size)
    return JobView(
        job.job_id, job.user, need.size, job.submit_s * SECOND_NS, record.model, options.tickets,
        options.priority, options.job_class, record.vc, _types(cluster, need), *sizes,
        # what a site knows of lengths
        length_ns=job.time_limit_s * SECOND_NS or None,
        account=job.account,
        cell=_cell(need),
        memory_mib=need.memory_mib,
        nodes=need.nodes if need.nodes > 1 else 0,
        first_run_ns=record.travels.first_run_ns or None,
        max_nodes=most_nodes(record) if is_resized else 1,
    )  # fmt: skip


def _cell(need: Need) -> str:
    """What its GPUs must share: a job of one node at least that."""
    if need.nodes > 1:
        return ""
    return need.cell if need.cell in CELLS else NODE


def _accepts(need: Need, host: Host) -> bool:
    return not need.types or host.gpu_type in need.types


def _types(cluster: Cluster, need: Need) -> tuple[str, ...]:
    """The GPU types that it accepts and that have nodes large enough for it; (): all."""
    able = Counter(host.gpu_type for host in cluster.hosts if len(host.gpus) >= need.gpus)
    found = [name for name in need.types or cluster.counts if able[name] >= need.nodes]
    found = [name for name in found if need.nodes > 1 or cluster.widest(name, _cell(need)) >= need.gpus]
    return need.types if not found or len(found) == len(cluster.counts) else tuple(found)


class _Eligible:
    """The nodes that jobs may use now, found once for all jobs that ask for the same."""

    def __init__(self, sites: Sequence[Site], picture: Picture) -> None:
        self.sites, self._picture = sites, picture
        self.at: Cycle | None = None
        self._known: dict[tuple[object, ...], frozenset[int]] = {}
        self._all = frozenset(range(len(picture.names)))

    def hosts(self, need: Need, record: JobRecord) -> frozenset[int] | None:
        """Return the indexes of these nodes, those where it lives or goes to among them; None: all."""
        assert self.at is not None
        closed = closed_nodes(self.at, record)
        key = (need.partitions, need.cpus, need.memory_mib, closed)
        if key not in self._known:
            self._known[key] = self._find(need, closed)
        found = self._known[key]
        if found == self._all:
            return None
        index = self._picture.index
        # What leaves without a target must not be sent back to where it was: that may be a drained node.
        homes = () if record.state == states.CHECKPOINTING else record.nodes
        return found.union(index[name] for name in (*homes, *record.target) if name in index)

    def _find(self, need: Need, closed: frozenset[str]) -> frozenset[int]:
        of_any_type = replace(need, types=(), gpus=1)
        return frozenset(
            index
            for index, site in enumerate(self.sites)
            if site.is_open
            and site.name not in closed
            and site.may_take(of_any_type)
            and site.is_large_enough(of_any_type)
        )
