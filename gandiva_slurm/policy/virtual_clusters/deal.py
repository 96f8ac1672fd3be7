"""A plain cluster as cells: each node halved down to its GPUs, and equal shares of cells for all VCs.

And the way between a gang's cells and the numbers of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from gandiva_slurm.policy.port import Cluster, Host, JobView
from gandiva_slurm.policy.virtual_clusters.cells import OPPORTUNISTIC
from gandiva_slurm.policy.virtual_clusters.gangs import CellRequest, Deed, MemberDeed
from gandiva_slurm.policy.virtual_clusters.site import CellGrant, CellKind, CellSpec, CellsSpec, VcSpec

#: The type of GPUs for which Slurm names none (gres/gpu:4).
UNTYPED = "gpu"

#: By virtual cluster: GPUs of each type; and of each chain, which is nodes of one type and size.
Wanted = Mapping[str, Mapping[str, int]]
_Parts = Mapping[str, Mapping[str, int]]


def spec_for(cluster: Cluster, vcs: Iterable[str]) -> CellsSpec:
    """Describe the cluster; each VC owns as many whole nodes of a kind as the others, then smaller cells."""
    names, chains = list(vcs), _chains(cluster)
    return _spec(cluster, {name: {c: gpus // len(names) for c, gpus in chains.items()} for name in names})


def spec_of(cluster: Cluster, owned: Wanted) -> CellsSpec:
    """Describe the cluster; each VC owns the GPUs of each type that `owned` names, "" those left.

    Where more are promised than there are, those named last get what is left. A VC has whole nodes as far as
    its number goes, of the largest first, and the rest in one node where there is one for it.
    """
    left, parts = _chains(cluster), dict[str, dict[str, int]]()
    sizes: dict[str, dict[str, int]] = {}
    for host in _with_gpus(cluster):
        chain = chain_of(host.gpu_type, len(host.gpus))
        sizes.setdefault(host.gpu_type or UNTYPED, {})[chain] = len(host.gpus)
    for name, wanted in owned.items():
        parts[name] = dict.fromkeys(left, 0)
        for gpu_type, count in wanted.items():
            for chain, gpus in _cut(count, sizes.get(gpu_type, {}), left).items():
                parts[name][chain] += gpus
                left[chain] -= gpus
    return _spec(cluster, {"": left, **parts})


def _cut(count: int, sizes: Mapping[str, int], left: Mapping[str, int]) -> dict[str, int]:
    """Divide GPUs of a type among its chains: whole nodes, then the rest in the smallest node that holds it.

    `sizes` and `left`: GPUs of a node, and those that nobody owns yet, by chain.
    """
    found = dict.fromkeys(sizes, 0)
    for chain in sorted(sizes, key=lambda chain: -sizes[chain]):
        found[chain] = min(count, left[chain]) // sizes[chain] * sizes[chain]
        count -= found[chain]
    for chain in sorted(sizes, key=lambda chain: (sizes[chain] < count, sizes[chain])):
        rest = min(count, left[chain] - found[chain])
        found[chain] += rest
        count -= rest
    return found


def _with_gpus(cluster: Cluster) -> Iterator[Host]:
    return (host for host in cluster.hosts if host.gpus)


def _chains(cluster: Cluster) -> dict[str, int]:
    """GPUs of each chain."""
    found: dict[str, int] = {}
    for host in _with_gpus(cluster):
        chain = chain_of(host.gpu_type, len(host.gpus))
        found[chain] = found.get(chain, 0) + len(host.gpus)
    return found


def _spec(cluster: Cluster, parts: _Parts) -> CellsSpec:
    kinds: dict[str, CellKind] = {}
    cells = []
    hosts: dict[str, Host] = {}
    for host in _with_gpus(cluster):
        chain = chain_of(host.gpu_type, len(host.gpus))
        hosts[chain] = host
        kinds.update(_kinds(host.gpu_type, len(host.gpus)))
        cells.append(CellSpec(chain, host.name))
    vcs = {}
    for name, mine in parts.items():
        grants = [_grants(chain, host.gpu_type, len(host.gpus), mine[chain]) for chain, host in hosts.items()]
        vcs[name] = VcSpec(tuple(grant for own in grants for grant in own))
    return CellsSpec(kinds, cells, vcs)


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
