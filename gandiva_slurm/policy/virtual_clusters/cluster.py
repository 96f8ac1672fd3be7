"""A cluster in cells: virtual clusters that cannot take each other's shapes away (HiveD, OSDI 2020).

`ask` says where a gang could go. BIND is taken by `allocate`. PREEMPT has set the gang's GPUs aside already:
`delete` the victims, then ask again. The same calls in the same order give the same answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gandiva_slurm.policy.virtual_clusters.bind import Binder, wanted_for
from gandiva_slurm.policy.virtual_clusters.cells import LEAF, OPPORTUNISTIC, PhysicalCell, VirtualCell
from gandiva_slurm.policy.virtual_clusters.fit import Closed, Suggested, Unfit, View, is_suggested
from gandiva_slurm.policy.virtual_clusters.gangs import (
    ALLOCATED,
    BEING_PREEMPTED,
    BIND,
    PREEMPT,
    PREEMPTING,
    WAIT,
    Answer,
    CellRequest,
    Deed,
    Gang,
    RequestError,
    deed_of,
)
from gandiva_slurm.policy.virtual_clusters.owners import VirtualCluster, build_ledgers, build_vcs
from gandiva_slurm.policy.virtual_clusters.restore import restore
from gandiva_slurm.policy.virtual_clusters.site import CellsSpec, build_chains

Placement = tuple[list[list[PhysicalCell]], list[list[VirtualCell]] | None]


class CellCluster:
    """All cells, and all gangs that have some."""

    def __init__(self, spec: CellsSpec, bad_nodes: Collection[str] = ()) -> None:
        """Build it. Every node counts as bad until it is known to be healthy.

        Raises ConfigError when what is written does not fit together.
        """
        self.chains = build_chains(spec)
        self.vcs = build_vcs(spec, self.chains)
        self.ledgers = build_ledgers(self.chains, self.vcs)
        self.gangs: dict[str, Gang] = {}
        self.bad_nodes: set[str] = set()
        self._open = {name: View(chain.cells, False) for name, chain in self.chains.items()}
        self._gpus: dict[str, list[PhysicalCell]] = {}
        for chain in self.chains.values():
            for gpu in chain.cells[LEAF]:
                self._gpus.setdefault(gpu.nodes[0], []).append(gpu)
        for node in self._gpus:
            self.set_bad(node)
        for node in self._gpus:
            if node not in bad_nodes:
                self.set_healthy(node)

    # Nodes ----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Collection[str]:
        """Names of all nodes."""
        return self._gpus.keys()

    def set_bad(self, node: str) -> None:
        """Use this node no more for anything new; what runs there is left alone."""
        if node in self._gpus and node not in self.bad_nodes:
            self.bad_nodes.add(node)
            for gpu in self._gpus[node]:
                self.ledgers[gpu.chain].fail(gpu)

    def set_healthy(self, node: str) -> None:
        """Use this node again."""
        if node in self.bad_nodes:
            self.bad_nodes.remove(node)
            for gpu in self._gpus[node]:
                self.ledgers[gpu.chain].heal(gpu)

    def find_gpu(self, chain: str, node: str, index: int) -> PhysicalCell | None:
        """Return a GPU by its place, in this chain if it is there, else in any."""
        here = [gpu for gpu in self._gpus.get(node, ()) if gpu.index == index]
        return next((gpu for gpu in here if gpu.chain == chain), here[0] if here else None)

    # Asking ---------------------------------------------------------------------------------------------

    def ask(
        self,
        request: CellRequest,
        suggested: Suggested = None,
        may_preempt: bool = True,
        closed: Closed = frozenset(),
    ) -> Answer:
        """Say where a gang can run now; `suggested`: the only nodes it may use; `closed`: GPUs it may not.

        With `may_preempt`, GPUs that others must leave first are set aside for it.
        Raises RequestError for what no state of this cluster could grant.
        """
        self._check(request)
        gang = self.gangs.get(request.gang)
        if gang is not None:
            is_stale = gang.state == PREEMPTING and may_preempt and not self._is_fine(gang, suggested)
            if not is_stale:
                return self._ask_again(gang)
            self.cancel(gang.name)
        try:
            places, owned = self._place(request, suggested, closed)
        except Unfit as why:
            return Answer(WAIT, reason=f"{why} (VC {request.vc})" if request.is_guaranteed else str(why))
        gpus = [gpu for place in places for gpu in place]
        victims = _names(gpu.gang for gpu in gpus)
        deed = deed_of(places, owned, self.chains[gpus[0].chain].kinds)
        if may_preempt:
            self._cancel_heirs(gpus)
            if victims and owned is not None:
                self._promise(Gang(request, PREEMPTING, [[*p] for p in places], [[*o] for o in owned], deed))
        return Answer(PREEMPT if victims else BIND, deed, victims)

    def _check(self, request: CellRequest) -> None:
        request.check()
        vc = self.vcs.get(request.vc)
        if vc is None:
            raise RequestError(f"gang {request.gang}: there is no VC {request.vc}")
        if request.pin and request.pin not in vc.pins:
            raise RequestError(f"gang {request.gang}: VC {vc.name} has no pinned cell {request.pin}")

    def _is_fine(self, gang: Gang, suggested: Suggested) -> bool:
        return all(gpu.is_healthy and is_suggested(gpu, suggested) for gpu in gang.gpus())

    def _ask_again(self, gang: Gang) -> Answer:
        if gang.state == BEING_PREEMPTED:
            return Answer(WAIT, reason="it is being put out")
        victims = _names(gpu.gang for gpu in gang.gpus() if gpu.gang is not gang)
        return Answer(PREEMPT if victims else BIND, gang.deed, victims)

    # Placing --------------------------------------------------------------------------------------------

    def _place(self, request: CellRequest, suggested: Suggested, closed: Closed) -> Placement:
        vc = self.vcs[request.vc]
        if request.pin:
            cell = vc.pins[request.pin][1]
            return self._place_own(request, vc.pin_views[request.pin], cell.chain, suggested, closed)
        why = Unfit("no chain of cells has such GPUs")
        for chain in self._chains_for(request, vc):
            try:
                if request.is_guaranteed:
                    return self._place_own(request, vc.views[chain], chain, suggested, closed)
                places = self._open[chain].fit(request.sizes, OPPORTUNISTIC, suggested)
                return [[*place] for place in places], None
            except Unfit as error:
                why = error
        raise why

    def _chains_for(self, request: CellRequest, vc: VirtualCluster) -> list[str]:
        wanted = request.gpu_type
        names = [name for name, chain in self.chains.items() if wanted in ("", chain.gpu_type)]
        if request.is_guaranteed:
            names = [name for name in names if name in vc.roots]
        if wanted and not names:
            raise RequestError(f"gang {request.gang}: VC {vc.name} has no {wanted} GPUs")
        return names

    def _place_own(
        self, request: CellRequest, view: View[VirtualCell], chain: str, suggested: Suggested, closed: Closed
    ) -> Placement:
        """Place a gang among its VC's cells, then find what could stand behind them."""

        def may_use(cell: PhysicalCell) -> bool:
            if len(cell.nodes) == 1 and not cell.is_healthy:
                return False
            if cell.level == LEAF and (cell.nodes[0], cell.index) in closed:
                return False
            return suggested is None or any(node in suggested for node in cell.nodes)

        owned = view.fit(request.sizes, request.priority, suggested, closed, request.is_apart)
        demoted = self._demote_in_the_way(owned, request.gang)
        ledger = self.ledgers[chain]
        wanted = wanted_for(gpu for own in owned for gpu in own)
        found = Binder(ledger.stock.copy(), ledger.all_owed(), ledger.chain.widths, may_use).bind(wanted)
        if found is None or any((gpu.nodes[0], gpu.index) in closed for gpu in found.values()):
            for gang, virtual in demoted.items():
                self._promote(gang, virtual)
            raise Unfit("every cell it could be bound to needs a bad or non-suggested node, or a closed GPU")
        return [[found[gpu] for gpu in own] for own in owned], [[*own] for own in owned]

    # Changing -------------------------------------------------------------------------------------------

    def allocate(self, request: CellRequest, deed: Deed) -> Gang:
        """Let a gang use what it was answered."""
        gang = self.gangs.get(request.gang)
        if gang is None:
            return self.restore(request, deed)
        if gang.state == PREEMPTING:
            gang.state = ALLOCATED
            for gpu in gang.gpus():
                gpu.gang, gpu.heir = gang, None
        return gang

    def restore(self, request: CellRequest, deed: Deed) -> Gang:
        """Build an allocated gang from its deed: after a restart, or in a cluster that was changed since.

        GPUs that are gone are left out. A gang that its VC no longer has cells for, or whose cells would
        break a promise to another VC, stays where it is and is demoted.
        """
        return restore(self, request, deed)

    def reconfigured(self, spec: CellsSpec) -> CellCluster:
        """Return the cluster as `spec` has it, with the gangs that run, in the order in which they came.

        Raises ConfigError; this cluster stays as it is.
        """
        changed = CellCluster(spec, self.bad_nodes)
        for gang in self.gangs.values():
            if gang.state != PREEMPTING and gang.deed is not None:
                changed.restore(gang.request, gang.deed)
        return changed

    def delete(self, name: str) -> None:
        """Forget a gang that has ended; GPUs that are promised to another go to it."""
        gang = self.gangs.pop(name)
        if gang.state == PREEMPTING:
            self.gangs[name] = gang
            self.cancel(name)
            return
        for gpu in gang.gpus():
            gpu.gang = None
            if gpu.heir is None:
                self._let_go(gpu)

    def cancel(self, name: str) -> None:
        """Drop a gang that waits for others to leave; they keep their GPUs."""
        gang = self.gangs.pop(name)
        for gpu in gang.gpus():
            self._let_go(gpu)
            gpu.heir = None
            victim = gpu.gang
            if victim is not None:
                own = next(own for mine, own in victim.pairs() if mine is gpu)
                self._hold(gpu, own, victim.request.priority)
        for victim in {gpu.gang for gpu in gang.gpus() if gpu.gang is not None}:
            if not any(gpu.heir for gpu in victim.gpus()):
                victim.state = ALLOCATED

    def _promise(self, gang: Gang) -> None:
        for gpu, own in gang.pairs():
            if gpu.gang is not None:
                self._let_go(gpu)
                gpu.gang.state = BEING_PREEMPTED
            self._hold(gpu, own, gang.request.priority)
            gpu.heir = gang
        self.gangs[gang.name] = gang

    def _cancel_heirs(self, gpus: list[PhysicalCell]) -> None:
        for heir in _names(gpu.heir for gpu in gpus):
            self.cancel(heir)

    def _hold(self, gpu: PhysicalCell, own: VirtualCell | None, priority: int) -> bool:
        return self.ledgers[gpu.chain].hold(gpu, own, OPPORTUNISTIC if own is None else priority)

    def _let_go(self, gpu: PhysicalCell) -> None:
        self.ledgers[gpu.chain].let_go(gpu)

    # Demotion -------------------------------------------------------------------------------------------

    def demote(self, gang: Gang, by: str) -> list[list[VirtualCell | None]] | None:
        """Let a gang run on where it is, by chance from now on; return the VC's GPUs that it stood for."""
        former = gang.virtual
        for gpu, own in gang.pairs():
            if own is not None:
                self._let_go(gpu)
                self._hold(gpu, None, OPPORTUNISTIC)
        gang.virtual, gang.demoted_by = None, by
        return former

    def _promote(self, gang: Gang, virtual: list[list[VirtualCell | None]] | None) -> None:
        gang.virtual, gang.demoted_by = virtual, ""
        for gpu, own in gang.pairs():
            self._let_go(gpu)
            self._hold(gpu, own, gang.request.priority)

    def _demote_in_the_way(
        self, owned: list[tuple[VirtualCell, ...]], by: str
    ) -> dict[Gang, list[list[VirtualCell | None]] | None]:
        demoted = {}
        for own in (gpu for place in owned for gpu in place):
            holder = own.physical.gang if own.physical else None
            is_plain = holder is not None and own.physical is not None and own.physical.heir is None
            if holder is not None and is_plain and holder.request.can_demote:
                demoted[holder] = self.demote(holder, by)
        return demoted


def _names(gangs: Iterator[Gang | None]) -> tuple[str, ...]:
    """Each gang's name once, in order."""
    return tuple(dict.fromkeys(gang.name for gang in gangs if gang is not None))
