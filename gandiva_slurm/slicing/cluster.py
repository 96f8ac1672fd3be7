"""All domains of a cluster, followed through every change of the plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.backoff import Lucks
from gandiva_slurm.slicing.central import CentralSettings, Domain
from gandiva_slurm.slicing.domains import Planned, find_domains
from gandiva_slurm.slicing.local import LocalStride


class Central:
    """All domains, as the plan makes them."""

    def __init__(self, settings: CentralSettings) -> None:
        self.settings = settings
        self.domains: list[Domain] = []

    def follow(self, nodes: Mapping[str, int], jobs: Mapping[JobKey, Planned]) -> None:
        """Take over the plan. A domain that grows, shrinks or splits keeps its passes, of several the first
        one's: who comes from elsewhere joins at the lowest pass, as a newcomer does.
        """
        old, unclaimed, domains = self.domains, set(map(id, self.domains)), []
        lucks = Lucks()
        for domain in old:
            lucks.take(domain.lucks)
        seen = {node: at for domain in old for node, at in domain.seen.items()}
        for members in find_domains(jobs.values()):
            heir = max(old, key=lambda domain: len(members & domain.nodes.keys()), default=None)
            domain = Domain(self.settings)
            if heir is not None and members & heir.nodes.keys():
                domain = heir if id(heir) in unclaimed else _copy(heir)
                unclaimed.discard(id(heir))
            domains.append(domain)
            domain.lucks.take(lucks)
            domain.seen = {node: seen[node] for node in members if node in seen}
            domain.follow({node: nodes.get(node, 0) for node in members}, jobs)
        self.domains = domains


def _copy(domain: Domain) -> Domain:
    return Domain(domain.settings, LocalStride.from_json(domain.stride.to_json()))
