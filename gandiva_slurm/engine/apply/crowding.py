"""Why a job waits that has no GPUs in the plan: no slot or memory beside those that stay, or its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gandiva_slurm.engine.apply.pending_reason import no_node
from gandiva_slurm.engine.apply.picture import Picture
from gandiva_slurm.engine.lifecycle.owners import SHOWN
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.port import Host, JobView


def no_room(picture: Picture, eligibility: Eligibility, job: JobView, need: Need) -> Reason | None:
    """Say why a job could not be put beside those that stay where they are; None when it could."""
    cluster, barred = picture.cluster, eligibility.barred(job)
    hosts = [
        (index, host)
        for index, host in enumerate(cluster.hosts)
        if (job.hosts is None or index in job.hosts) and job.accepts(host.gpu_type)
    ]
    free = {index: sum(gpu not in barred for gpu in host.gpus) for index, host in hosts}
    if _most_alike(host for index, host in hosts if free[index] >= need.gpus) >= need.nodes:
        return None
    left = {index: eligibility.left_mib(index) for index, _ in hosts}
    full = [index for index, mib in left.items() if mib is not None and mib < need.memory_mib]
    if _most_alike(host for index, host in hosts if index not in full) < need.nodes:
        taken = [(picture.names[index], cluster.hosts[index].memory_mib, left[index] or 0) for index in full]
        words = [f"{name}: {has - mib} of {has} MiB taken" for name, has, mib in taken[:SHOWN]]
        facts = {"memory_mib": need.memory_mib, "none_have": no_node(need, "has", "have")}
        return because("NoFreeMemory", *words, **facts)
    words = [
        f"{picture.names[index]}: a slot that it may have on {free[index]} of {len(host.gpus)} GPU(s)"
        for index, host in hosts
        if index not in full
    ]
    return because("NoFreeSlots", *words[:SHOWN], gpus=need.gpus, none_have=no_node(need, "has", "have"))


def _most_alike(hosts: Iterable[Host]) -> int:
    return max(Counter(host.gpu_type for host in hosts).values(), default=0)
