"""Rules of `gandiva check` on the Gandiva partitions and their nodes, as slurmctld has them now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gandiva_slurm.config import Config
from gandiva_slurm.model.snapshot import SlurmNode
from gandiva_slurm.policy.virtual_clusters.shortages import shortages
from gandiva_slurm.slurm.check_site import SLURM_CONF, Site
from gandiva_slurm.slurm.finding import Finding, error, warning
from gandiva_slurm.slurm.limits import duration_s

#: slurmctld forgets a finished job after MinJobAge: before that a cycle must have seen how it ended.
MIN_JOB_AGE_S = 30
#: What Slurm shows where a partition sets no weights.
_UNSET = frozenset({"", "(null)", "NONE"})


def check(site: Site, nodes: Sequence[SlurmNode], config: Config) -> Iterator[Finding]:
    """Yield every fault."""
    for name in config.partitions:
        if name in site.partitions:
            yield from _partition(name, site.partitions[name], config)
    yield from _nodes(nodes, config)
    yield from _virtual_clusters(nodes, config)
    yield from _times(site)


def _partition(name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    where = f"{SLURM_CONF}: PartitionName={name}"
    sharing = re.fullmatch(r"FORCE(?::(\d+))?", settings.get("OverSubscribe", ""))
    jobs = int(sharing[1] or 4) if sharing else None
    if jobs is not None and jobs < config.slots_per_gpu:
        what = f"OverSubscribe=FORCE:{jobs}: so few jobs share a CPU, but {config.slots_per_gpu} share a GPU"
        yield error(where, what, f"set OverSubscribe=FORCE:{2 * config.slots_per_gpu}")
    if settings.get("ExclusiveUser", "NO") == "YES":
        what = "ExclusiveUser=YES: a node is one user's at a time, so users cannot share its GPUs"
        yield error(where, what, "set ExclusiveUser=NO")
    if _is_endless(settings.get("DefaultTime", "")) and _is_endless(settings.get("MaxTime", "")):
        what = (
            "no DefaultTime and no MaxTime: a job without --time never ends before a reservation, so it waits"
        )
        yield warning(where, what, "set DefaultTime, as in DefaultTime=1-00:00:00")
    if "SUSPEND" in settings.get("PreemptMode", ""):
        what = "PreemptMode=SUSPEND: Slurm suspends jobs whose GPUs Gandiva then gives to nobody"
        yield warning(where, what, "set PreemptMode=REQUEUE or OFF")
    if settings.get("TRESBillingWeights", "") in _UNSET:
        what = (
            "no TRESBillingWeights: fair-share charges each resident job in full, a sliced GPU several times"
        )
        weights = f"CPU=0,Mem=0,GRES/gpu={1 / config.slots_per_gpu:g}"
        yield warning(where, what, f'set TRESBillingWeights="{weights}" (docs/slurm.md)')


def _nodes(nodes: Sequence[SlurmNode], config: Config) -> Iterator[Finding]:
    known = {node.name for node in nodes}
    for name in sorted(set(config.node.addresses) - known) if nodes else ():
        what = f"{name} is in no Gandiva partition of Slurm's"
        yield warning(f"gandiva.yaml: node.addresses.{name}", what, "take it out, or mend its name")
    for node in nodes:
        where = f"node {node.name}"
        if node.state & {"INVAL", "INVALID_REG"}:
            what = f"Slurm does not take it: {node.reason or 'its configuration differs from slurm.conf'}"
            cure = (
                "as many slots in its gres.conf (links there) as Gres= in slurm.conf; then restart its slurmd"
            )
            yield error(where, what, cure)
        elif node.state & {"DOWN", "DRAIN", "NOT_RESPONDING"}:
            words = "+".join(sorted(node.state))
            what = f"{words}{': ' + node.reason if node.reason else ''}"
            yield warning(where, what, f"mend it, then scontrol update NodeName={node.name} State=RESUME")


def _virtual_clusters(nodes: Sequence[SlurmNode], config: Config) -> Iterator[Finding]:
    """What is promised to virtual clusters must be there; a node that is down counts."""
    there = [(node.gpu_type, node.slots // config.slots_per_gpu) for node in nodes]
    for what in shortages(config.virtual_clusters, there) if nodes else ():
        cure = "promise what the nodes of the Gandiva partitions have"
        yield error("gandiva.yaml: virtual_clusters", what, cure)


def _times(site: Site) -> Iterator[Finding]:
    age_s = _seconds(site.config.get("MinJobAge", ""))
    if age_s is not None and 0 < age_s < MIN_JOB_AGE_S:
        what = f"{age_s}: slurmctld may forget a job before Gandiva sees how it ended"
        yield warning(f"{SLURM_CONF}: MinJobAge", what, f"set it to {MIN_JOB_AGE_S} or more (300 is usual)")
    if _seconds(site.config.get("SlurmdTimeout", "")) == 0:
        what = "0: a node that dies is never set down, so its jobs are not placed again"
        yield warning(f"{SLURM_CONF}: SlurmdTimeout", what, "set it, as in SlurmdTimeout=300")


def _is_endless(text: str) -> bool:
    return duration_s(text) is None


def _seconds(text: str) -> int | None:
    match = re.match(r"(\d+)", text)
    return int(match[1]) if match else None
