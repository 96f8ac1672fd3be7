"""Why a job has no place though nothing else ran: what can never be first, then what must be waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gandiva_slurm.engine.lifecycle.owners import SHOWN
from gandiva_slurm.engine.state.records import NodeRecord
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.placement.sites import Site


def no_place(sites: Iterable[Site], need: Need, nodes: Mapping[str, NodeRecord]) -> Reason | None:
    """Say why a job could not be placed on these nodes were they empty; None when it could."""
    partitions = set(need.partitions)
    home = [site for site in sites if not partitions or partitions & set(site.partitions)]
    right = [site for site in home if site.may_take(need)]
    never = _never(need, home, right)
    if never is not None:
        return never
    fitting = [site for site in right if site.is_large_enough(need)]
    open_ = [site for site in fitting if site.is_open]
    if _of_one_type(open_) < need.nodes:
        closed = [_state_of(nodes[site.name]) for site in fitting if not site.is_open]
        return because("NodesDown", *closed[:SHOWN], none_are=no_node(need, "is", "are"))
    reserved = [site.name for site in open_ if site.name in need.closed]
    if _of_one_type(site for site in open_ if site.name not in need.closed) < need.nodes:
        return because("Reserved", names=", ".join(reserved[:SHOWN]))
    return None


def _of_one_type(sites: Iterable[Site]) -> int:
    """The most of these nodes that have the same GPU type."""
    return max(Counter(site.gpu_type for site in sites).values(), default=0)


def no_node(need: Need, one: str, many: str) -> str:
    """Begin a sentence on the nodes that lack something."""
    if need.nodes == 1:
        return f"no node that could take it {one}"
    return f"fewer than {need.nodes} nodes of one type that could take it {many}"


def _never(need: Need, home: list[Site], right: list[Site]) -> Reason | None:
    if not home:
        return because("NoNodes", partition=",".join(need.partitions))
    if not right:
        known = ", ".join(sorted({site.gpu_type for site in home if site.gpu_type})) or "none"
        return because("NoSuchType", types=" or ".join(need.types), known=known)
    most_gpus = max(site.gpus for site in right)
    if need.gpus > most_gpus:
        return because("TooManyGpus", gpus=need.gpus, most=most_gpus)
    most_near = max(site.widest(need.cell) for site in right)
    if need.gpus > most_near:
        return because("TooWide", gpus=need.gpus, cell=need.cell, most=most_near)
    wide = [site for site in right if need.gpus <= site.widest(need.cell)]
    if all(site.memory_mib and need.memory_mib > site.memory_mib for site in wide):
        most = max(site.memory_mib for site in wide)
        return because("TooMuchMemory", memory_mib=need.memory_mib, most=most)
    if not any(site.is_large_enough(need) for site in wide):
        return because("TooManyCpus", cpus=need.cpus, most=max(site.cpus for site in wide))
    enough = _of_one_type(site for site in wide if site.is_large_enough(need))
    if enough < need.nodes:
        return because("TooFewNodes", nodes=need.nodes, most=enough, gpus=need.gpus)
    return None


def _state_of(record: NodeRecord) -> str:
    words = "+".join(sorted(record.node.state)) if record.node.state else "no state"
    daemon = "" if record.has_daemon else ", its gandivad does not answer"
    why = f" ({record.node.reason})" if record.node.reason else ""
    return f"{record.node.name}: {words}{why}{daemon}"
