"""A plain cluster as cells: each node halved down to its GPUs, and equal shares of cells for all VCs.

And the way between a gang's cells and the numbers of its GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from gandiva_slurm.policy.cells import OPPORTUNISTIC
from gandiva_slurm.policy.cells_gangs import CellRequest, Deed, MemberDeed
from gandiva_slurm.policy.cells_map import CellGrant, CellKind, CellSpec, CellsSpec, VcSpec
from gandiva_slurm.policy.port import Cluster, JobView


def spec_for(cluster: Cluster, vcs: Iterable[str]) -> CellsSpec:
    """Describe the cluster; each VC owns as many whole nodes of a kind as the others, then smaller cells."""
    names = list(vcs)
    kinds: dict[str, CellKind] = {}
    cells = []
    sizes: dict[str, tuple[str, int]] = {}
    for host in cluster.hosts:
        chain = chain_of(host.gpu_type, len(host.gpus))
        sizes[chain] = (host.gpu_type, len(host.gpus))
        kinds.update(_kinds(host.gpu_type, len(host.gpus)))
        cells.append(CellSpec(chain, host.name))
    hosts = Counter(cell.kind for cell in cells)
    grants = []
    for chain, (gpu_type, size) in sizes.items():
        share = hosts[chain] * size // len(names) if names else 0
        grants += _grants(chain, gpu_type, size, share)
    return CellsSpec(kinds, cells, {name: VcSpec(tuple(grants)) for name in names})


def chain_of(gpu_type: str, size: int) -> str:
    """Name of the nodes with so many GPUs of a type."""
    return f"{gpu_type} node of {size}"


def members_of(size: int, host_size: int) -> tuple[int, ...]:
    """Split a gang into whole nodes and a rest."""
    whole, rest = divmod(size, host_size)
    return (host_size,) * whole + ((rest,) if rest else ())


def by_chance(job: JobView, vc: str) -> CellRequest:
    """Ask for a job as an opportunistic one; its members do not matter where its place is given."""
    return CellRequest(str(job.job_id), vc, (job.size,), OPPORTUNISTIC)


def gpus_of(cluster: Cluster, deed: Deed) -> tuple[int, ...]:
    """Numbers of a deed's GPUs in the cluster."""
    hosts = {host.name: host.gpus for host in cluster.hosts}
    return tuple(sorted(hosts[member.node][index] for member in deed.members for index in member.gpus))


def deed_at(cluster: Cluster, gpus: tuple[int, ...]) -> Deed:
    """Write down a place by chance."""
    members = []
    for index in sorted(cluster.hosts_of(gpus)):
        host = cluster.hosts[index]
        members.append(MemberDeed(host.name, tuple(n for n, gpu in enumerate(host.gpus) if gpu in gpus)))
    first = cluster.hosts[cluster.host_of[gpus[0]]]
    return Deed(chain_of(first.gpu_type, len(first.gpus)), tuple(members))


def halves(size: int) -> list[int]:
    """Sizes of the cells of a node below the node itself, from the GPU up."""
    sizes = [1]
    while sizes[-1] * 2 < size and size % (sizes[-1] * 2) == 0:
        sizes.append(sizes[-1] * 2)
    return sizes


def _name(gpu_type: str, size: int) -> str:
    return gpu_type if size == 1 else f"{size} {gpu_type}"


def _kinds(gpu_type: str, size: int) -> dict[str, CellKind]:
    sizes = halves(size)
    kinds = {_name(gpu_type, high): CellKind(_name(gpu_type, low), 2) for low, high in pairwise(sizes)}
    kinds[chain_of(gpu_type, size)] = CellKind(_name(gpu_type, sizes[-1]), size // sizes[-1], is_node=True)
    return kinds


def _grants(chain: str, gpu_type: str, size: int, gpus: int) -> list[CellGrant]:
    whole, rest = divmod(gpus, size)
    grants = [CellGrant(chain, chain, whole)] if whole else []
    for cell in reversed(halves(size)):
        count, rest = divmod(rest, cell)
        if count:
            grants.append(CellGrant(chain, _name(gpu_type, cell), count))
    return grants
