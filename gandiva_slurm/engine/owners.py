"""Whose GPUs a job is on, where gandiva.yaml has virtual clusters (ADR 0035).

A job draws its GPUs from the virtual cluster it names, or from those that none owns. There it is what it was
submitted as; on any GPU of others it is opportunistic, so that their owner's jobs have theirs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.engine.state import EngineState, JobRecord
from gandiva_slurm.policy.deal import Bay, deal, shortages
from gandiva_slurm.policy.needs import Need
from gandiva_slurm.policy.placement import Purse
from gandiva_slurm.policy.shares import Leaf, leaf_tickets

#: Nodes named as evidence.
SHOWN = 4

#: Nodes, each with GPUs there, or with the owners of all its GPUs.
Places = Mapping[str, tuple[int, ...]]
Owners = Mapping[str, tuple[str, ...]]


def owners_of(state: EngineState, settings: EngineSettings) -> Owners:
    """Return the owner of every GPU; nothing where no virtual clusters are configured."""
    if not settings.virtual_clusters:
        return {}
    return deal(settings.virtual_clusters, _bays(state))


def promised_too_much(state: EngineState, settings: EngineSettings) -> list[str]:
    """Say which GPUs gandiva.yaml promises and no node has; those named last go without."""
    return shortages(settings.virtual_clusters, _bays(state)) if state.nodes else []


def note_owners(at: Cycle) -> None:
    """Note of every job which virtual cluster it is of, and whether it is on others' GPUs."""
    has_any = bool(at.settings.virtual_clusters)
    for record in at.state.jobs.values():
        if has_any or record.vc or record.is_borrowing:
            note_owner(at, record)


def note_owner(at: Cycle, record: JobRecord) -> None:
    """Note it of one, as it is placed."""
    record.vc = record.options.vc if at.settings.virtual_clusters else ""
    record.is_borrowing = record.is_entitled and bool(lenders(at.owners, record.vc, record.places))
    if not record.is_opportunistic:
        record.without_ns = 0


def lacks_vc(at: Cycle, record: JobRecord) -> bool:
    """True when nobody configured its virtual cluster: it is not started."""
    return bool(record.vc) and record.vc not in at.settings.virtual_clusters


def as_there(at: Cycle, need: Need, places: Places) -> Need:
    """What a job asks of these places, where it is opportunistic if they are others'."""
    is_lent = bool(lenders(at.owners, need.vc, places))
    return replace(need, is_opportunistic=need.is_opportunistic or is_lent)


def tickets_apart(at: Cycle, records: Iterable[JobRecord]) -> dict[Purse, int]:
    """Return the tickets of each virtual cluster, split among those who are guaranteed there, as in plans."""
    present: dict[str, set[Leaf]] = {}
    for record in records if at.owners else ():
        if not record.is_opportunistic:
            present.setdefault(record.vc, set()).add(record.leaf)
    parts = {vc: leaf_tickets(at.state.associations, leaves) for vc, leaves in present.items()}
    return {(leaf, vc): tickets for vc, mine in parts.items() for leaf, tickets in mine.items()}


def lenders(owners: Owners, vc: str, places: Places) -> tuple[str, ...]:
    """Return the others that own GPUs of these places, "" for those who name no virtual cluster."""
    found = {
        owner
        for node, gpus in places.items()
        for gpu, owner in enumerate(owners.get(node, ()))
        if gpu in gpus and owner != vc
    }
    return tuple(sorted(found))


def told(record: JobRecord, state: EngineState, settings: EngineSettings, is_led: bool) -> Iterator[str]:
    """Say of a job whose GPUs it is on, for `gandiva why`.

    Where a policy leads, it binds cells while they are in use: no GPU is always a virtual cluster's.
    """
    owners = {} if is_led else owners_of(state, settings)
    if not settings.virtual_clusters:
        if record.options.vc:
            yield f"--gandiva-vc={record.options.vc}: recorded; no virtual clusters are configured"
        return
    if is_led:
        owned = settings.virtual_clusters.get(record.vc, {})
        counts = ", ".join(f"{count} {gpu_type}" for gpu_type, count in owned.items())
        yield f"draws its GPUs from {told_vc(record.vc)}" + (f": {counts}" if counts else "")
        return
    yield f"draws its GPUs from {told_vc(record.vc)}: {_told_gpus(owners, record.vc)}"
    others = lenders(owners, record.vc, record.places)
    if others:
        names = " and ".join(map(told_vc, others))
        yield f"is on GPUs of {names}: opportunistic there, it makes way at once when their jobs want them"
    elif record.places:
        yield "is on GPUs of its own"


def told_vc(vc: str) -> str:
    """A virtual cluster in words."""
    return f"virtual cluster {vc}" if vc else "what no virtual cluster owns"


def _bays(state: EngineState) -> list[Bay]:
    nodes = state.nodes.items()
    return [Bay(name, record.node.gpu_type, record.gpus, record.is_down) for name, record in nodes]


def _told_gpus(owners: Owners, vc: str) -> str:
    own = {node: [gpu for gpu, owner in enumerate(names) if owner == vc] for node, names in owners.items()}
    count, nodes = sum(map(len, own.values())), [node for node, gpus in own.items() if gpus]
    more = ", ..." if len(nodes) > SHOWN else ""
    places = ", ".join(f"{node} GPU {','.join(map(str, own[node]))}" for node in nodes[:SHOWN])
    return f"{count} GPU(s), on {places}{more}" if nodes else "none is up"
