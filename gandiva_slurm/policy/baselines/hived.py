"""HiveD: virtual clusters made of cells (OSDI 2020).

Each virtual cluster (VC) owns equal cells; a newcomer reconfigures them. Guaranteed jobs draw on their VC's
cells, in order of arrival, and whoever does not fit holds up nobody. Opportunistic jobs use any free cell,
away from the others, and are parked when a VC needs its own. A guaranteed job that its VC's cells could not
hold even when empty runs as an opportunistic one. Nobody moves otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.policy.baselines.placing import Types
from gandiva_slurm.policy.baselines.quotas import vc_of
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import GUARANTEED, JobView, Plan, PolicySettings, View
from gandiva_slurm.policy.virtual_clusters.cells import IS_FREE, LOWEST, OPPORTUNISTIC
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.deal import (
    by_chance,
    chain_of,
    deed_at,
    gpus_of,
    members_of,
    spec_for,
)
from gandiva_slurm.policy.virtual_clusters.fit import best_fit
from gandiva_slurm.policy.virtual_clusters.gangs import BIND, PREEMPT, Answer, CellRequest


class Hived:
    """Gangs on cells; the cells' own memory is the policy's."""

    name = "hived"

    def __init__(self, settings: PolicySettings) -> None:
        self._oracle = settings.oracle
        self._vcs = sorted(settings.tickets)
        self._cells: CellCluster | None = None

    def decide(self, view: View) -> Plan:
        """Follow nodes and ends, then start whoever fits: the guaranteed jobs first."""
        turn = Turn(view, self._follow(view), Types(view, self._oracle))
        # Twice: the first round may have put out a guaranteed job that had lost its cells.
        for is_guaranteed in (True, True, False):
            for job in view.jobs.values():
                if not turn.has(job) and turn.is_guaranteed(job) == is_guaranteed:
                    turn.start(job)
        return Plan(turn.runs(), None, turn.notes)

    def _follow(self, view: View) -> CellCluster:
        newcomers = {vc_of(job) for job in view.jobs.values()} - set(self._vcs)
        cells = self._cells
        if cells is None or newcomers:
            self._vcs += sorted(newcomers)
            spec = spec_for(view.cluster, self._vcs)
            cells = cells.reconfigured(spec) if cells else CellCluster(spec)
        self._cells = cells
        for host in view.cluster.hosts:
            change = cells.set_healthy if view.down.isdisjoint(host.gpus) else cells.set_bad
            change(host.name)
        for name, gang in list(cells.gangs.items()):
            job = view.jobs.get(int(name))
            is_hit = not view.down.isdisjoint(gpus_of(view.cluster, gang.deed)) if gang.deed else False
            if job is None or (is_hit and (job.can_migrate or not job.gpus)):
                cells.delete(name)
        for job in view.jobs.values():
            if job.is_running and str(job.job_id) not in cells.gangs and view.down.isdisjoint(job.gpus):
                cells.restore(by_chance(job, vc_of(job)), deed_at(view.cluster, job.gpus))
        return cells


class Turn:
    """One decision."""

    def __init__(self, view: View, cells: CellCluster, types: Types) -> None:
        self._view, self._cells, self._types = view, cells, types
        self.notes: dict[int, str] = {}
        #: requests that have waited in this turn already: by VC, size, types and class
        self._stuck: set[tuple[str, int, tuple[str, ...], int]] = set()
        #: by kind of node: the GPUs of each
        self._sizes: dict[str, list[int]] = {}
        for host in view.cluster.hosts:
            self._sizes.setdefault(chain_of(host.gpu_type, len(host.gpus)), []).append(len(host.gpus))
        self._fits: dict[tuple[str, int, tuple[str, ...]], bool] = {}

    def has(self, job: JobView) -> bool:
        """True when it has its GPUs."""
        return str(job.job_id) in self._cells.gangs

    def runs(self) -> dict[int, tuple[int, ...]]:
        """All that run; a gang that may not move waits on its GPUs while one of them is down."""
        cluster = self._view.cluster
        places = {
            int(name): gpus_of(cluster, gang.deed) for name, gang in self._cells.gangs.items() if gang.deed
        }
        return {job_id: gpus for job_id, gpus in places.items() if self._view.down.isdisjoint(gpus)}

    def is_guaranteed(self, job: JobView) -> bool:
        """True when it draws on its VC's cells, which could hold it."""
        if job.job_class != GUARANTEED:
            return False
        key = (vc_of(job), job.size, self._types.of(job))
        if key not in self._fits:
            views = self._cells.vcs[key[0]].views
            self._fits[key] = any(
                best_fit(request.sizes, [node.size for node in views[chain].nodes]) is not None
                for chain, request in self._requests(job, LOWEST)
                if chain in views
            )
        return self._fits[key]

    def start(self, job: JobView) -> None:
        """Give a job GPUs if there are any for it, putting out opportunistic ones for a guaranteed one."""
        priority = LOWEST if self.is_guaranteed(job) else OPPORTUNISTIC
        key = (vc_of(job), job.size, self._types.of(job), priority)
        is_parked = bool(job.gpus)
        if is_parked and (priority == OPPORTUNISTIC or not job.can_migrate) and self._start_again(job):
            return
        if key in self._stuck or (is_parked and not job.can_migrate):
            return
        for chain, request in self._requests(job, priority):
            if priority == LOWEST and chain not in self._cells.vcs[request.vc].views:
                continue
            answer = self._ask(request)
            if answer.kind == BIND and answer.deed is not None:
                self._cells.allocate(request, answer.deed)
                return
            self.notes.setdefault(job.job_id, answer.reason)
        if not self._gather(job):
            self._stuck.add(key)

    def _gather(self, job: JobView) -> bool:
        """Give a gang that no kind of node could hold any free GPUs of one type."""
        requests = self._requests(job, OPPORTUNISTIC)
        if any(best_fit(request.sizes, self._sizes[chain]) is not None for chain, request in requests):
            return False
        cluster = self._view.cluster
        deeds = (gang.deed for gang in self._cells.gangs.values() if gang.deed)
        free = FreeGpus(cluster, self._view.down.union(*(gpus_of(cluster, deed) for deed in deeds)))
        place = free.place(job, self._types.of(job))
        if place is not None:
            self._cells.restore(by_chance(job, vc_of(job)), deed_at(cluster, place))
        return place is not None

    def _ask(self, request: CellRequest) -> Answer:
        answer = self._cells.ask(request)
        while answer.kind == PREEMPT:
            for victim in answer.victims:
                self._cells.delete(victim)
                self.notes[int(victim)] = f"parked: VC {request.vc} needs its cells"
            answer = self._cells.ask(request)
        return answer

    def _start_again(self, job: JobView) -> bool:
        """Go on by chance on the GPUs where it is parked, if they are all free."""
        deed = deed_at(self._view.cluster, job.gpus)
        for member in deed.members:
            for index in member.gpus:
                gpu = self._cells.find_gpu(deed.chain, member.node, index)
                if gpu is None or gpu.state != IS_FREE or not gpu.is_healthy:
                    self.notes.setdefault(job.job_id, "parked: its GPUs are in use")
                    return False
        self._cells.restore(by_chance(job, vc_of(job)), deed)
        return True

    def _requests(self, job: JobView, priority: int) -> Iterator[tuple[str, CellRequest]]:
        for gpu_type in self._types.of(job):
            hosts = (host for host in self._view.cluster.hosts if host.gpu_type == gpu_type)
            for size in sorted({len(host.gpus) for host in hosts}):
                chain = chain_of(gpu_type, size)
                members = members_of(job.size, size)
                yield chain, CellRequest(str(job.job_id), vc_of(job), members, priority, gpu_type)


def make(settings: PolicySettings) -> Hived:
    """Make the policy."""
    return Hived(settings)
