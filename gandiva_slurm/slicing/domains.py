"""Which nodes must be decided for together: those that spans join, directly or through others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import PartStand
from gandiva_slurm.slicing.groups import group_of

Places = tuple[tuple[str, tuple[int, ...]], ...]


class PlannedPart(Protocol):
    """A job in a node's plan, as engine and wire both have it; `span` is empty for a local one."""

    @property
    def key(self) -> JobKey: ...
    @property
    def user(self) -> str: ...
    @property
    def gpus(self) -> tuple[int, ...]: ...
    @property
    def tickets(self) -> int: ...
    @property
    def submitted_ns(self) -> int: ...
    @property
    def span(self) -> Places: ...
    @property
    def is_opportunistic(self) -> bool: ...
    @property
    def vc(self) -> str: ...
    @property
    def is_leaving(self) -> bool: ...
    @property
    def own_save_s(self) -> int: ...
    @property
    def is_on(self) -> bool | None: ...


class Planned(NamedTuple):
    """A job of the plan, whole: its tickets are those of all its parts."""

    key: JobKey
    user: str
    tickets: int
    submitted_ns: int
    places: Places
    is_opportunistic: bool = False
    vc: str = ""
    is_leaving: bool = False
    #: a policy decides: whether it is to hold its GPUs; None: the stride of its domain decides
    is_on: bool | None = None
    #: it leaves by a checkpoint of its own, for which it keeps its turn
    keeps_turn: bool = False

    @property
    def group(self) -> str:
        """With whom it takes turns, as `local.Gang` has it."""
        return group_of(self.vc, self.is_opportunistic)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where it has a part."""
        return tuple(node for node, _ in self.places)

    @property
    def is_span(self) -> bool:
        """True when it lives on several nodes."""
        return len(self.places) > 1


def whole_jobs(plans: Mapping[str, Iterable[PlannedPart]]) -> dict[JobKey, Planned]:
    """Put the parts in the nodes' plans together."""
    jobs: dict[JobKey, Planned] = {}
    for node, parts in plans.items():
        for part in parts:
            known = jobs.get(part.key)
            tickets = part.tickets + (known.tickets if known else 0)
            places = part.span or ((node, part.gpus),)
            order, is_spare = part.submitted_ns, part.is_opportunistic
            ways = (is_spare, part.vc, part.is_leaving, part.is_on, part.is_leaving and part.own_save_s > 0)
            jobs[part.key] = Planned(part.key, part.user, tickets, order, places, *ways)
    return jobs


def find_domains(jobs: Iterable[Planned]) -> list[frozenset[str]]:
    """Return the sets of nodes that spans join, in the order of their first names."""
    domains: list[frozenset[str]] = []
    for job in jobs:
        if job.is_span:
            touched = [domain for domain in domains if not domain.isdisjoint(job.nodes)]
            domains = [domain for domain in domains if domain.isdisjoint(job.nodes)]
            domains.append(frozenset(job.nodes).union(*touched))
    return sorted(domains, key=min)


def fits(gpus: Sequence[int], count: int) -> bool:
    """True when these are distinct GPUs of a node that has `count`."""
    return bool(gpus) and len(set(gpus)) == len(gpus) and set(gpus) <= set(range(count))


def is_solo(parts: Iterable[PartStand]) -> bool:
    """True when no rank of these waits for another: each may stop where it is."""
    return all(part.world <= 1 for part in parts)


def has_all_ranks(parts: Sequence[PartStand]) -> bool:
    """True when every rank of a span is there and has passed enough boundaries."""
    if not parts or not all(part.is_parkable for part in parts):
        return False
    if is_solo(parts):
        return True
    world = max(part.world for part in parts)
    return sorted(rank for part in parts for rank in part.ranks) == list(range(world))
