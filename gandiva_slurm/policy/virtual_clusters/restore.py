"""Gangs back from their deeds, in a cluster that may have been changed since (HiveD, OSDI 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gandiva_slurm.policy.virtual_clusters.cells import (
    FREE,
    HIGHEST,
    LEAF,
    OPPORTUNISTIC,
    PhysicalCell,
    VirtualCell,
)
from gandiva_slurm.policy.virtual_clusters.gangs import ALLOCATED, CellRequest, Deed, Gang
from gandiva_slurm.policy.virtual_clusters.ledger import Roots

if TYPE_CHECKING:
    from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster


def restore(cluster: CellCluster, request: CellRequest, deed: Deed) -> Gang:
    """See `CellCluster.restore`."""
    is_owner = any(member.root_kinds for member in deed.members)
    owned: list[list[VirtualCell | None]] = []
    gang = Gang(request, ALLOCATED, virtual=owned if is_owner else None, deed=deed)
    must_demote = False
    for member in deed.members:
        gpus: list[PhysicalCell | None] = []
        owns: list[VirtualCell | None] = []
        gang.physical.append(gpus)
        owned.append(owns)
        for place, index in enumerate(member.gpus):
            gpu = cluster.find_gpu(deed.chain, member.node, index)
            own: VirtualCell | None = None
            if gpu is not None and is_owner and not must_demote:
                own = _own_gpu(cluster, request, gpu, member.root_kinds[place])
                must_demote = own is None
            gpus.append(gpu)
            owns.append(own)
            if gpu is not None:
                must_demote |= not _settle(cluster, gang, gpu, own)
    cluster.gangs[gang.name] = gang
    if must_demote:
        cluster.demote(gang, by=gang.name)
    return gang


def _settle(cluster: CellCluster, gang: Gang, gpu: PhysicalCell, own: VirtualCell | None) -> bool:
    """Put the gang on a GPU; False when that breaks a promise to another VC."""
    if gpu.heir is not None:
        cluster.cancel(gpu.heir.name)
    if own is not None and gpu.is_loose and own.root.priority > FREE:
        # The VC has fewer cells than before: who is bound to this one by now must go by chance.
        for other in own.root.leaves():
            holder = other.physical.gang if other.physical else None
            if holder is not None and holder is not gang:
                cluster.demote(holder, by=gang.name)
    priority = OPPORTUNISTIC if own is None else gang.request.priority
    is_safe = cluster.ledgers[gpu.chain].hold(gpu, own, priority)
    gpu.gang = gang
    return is_safe


def _own_gpu(
    cluster: CellCluster, request: CellRequest, gpu: PhysicalCell, root_kind: str
) -> VirtualCell | None:
    """Return the GPU of the VC that this one can stand for, None when it has none left."""
    assert gpu.level == LEAF
    vc = cluster.vcs.get(request.vc)
    level = cluster.chains[gpu.chain].level_of(root_kind)
    roots = vc.roots_for(gpu.chain, request.pin) if vc else None
    if not level or roots is None or level >= len(roots):
        return None
    return _own_cell(gpu, roots, level, request.priority)


def _own_cell(cell: PhysicalCell, roots: Roots, level: int, priority: int) -> VirtualCell | None:
    if cell.virtual is not None:
        return cell.virtual
    if cell.level == level:
        return _least_used(roots[level], priority)
    if cell.parent is None:
        return None
    above = _own_cell(cell.parent, roots, level, priority)
    return _least_used(above.children, priority) if above else None


def _least_used(cells: list[VirtualCell], priority: int) -> VirtualCell | None:
    """First free and unbound cell, else the one with the lowest priority below this one."""
    lowest, chosen = HIGHEST, None
    for cell in cells:
        if cell.priority == FREE:
            if cell.physical is None:
                return cell
        elif cell.priority < min(priority, lowest):
            lowest, chosen = cell.priority, cell
    return chosen
