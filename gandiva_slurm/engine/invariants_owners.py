"""What must always hold of virtual clusters, as functions that return violations."""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.owners import lenders, owners_of, told_vc
from gandiva_slurm.engine.placing import board_of, need_of
from gandiva_slurm.engine.state import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.placement import Need, Site


def owners_come_first(engine: Engine) -> list[str]:
    """Who is on others' GPUs is opportunistic there; who has idle ones at home does not wait for a slot."""
    state, settings = engine.state, engine.settings
    if engine.decider is not None:
        return []
    owners = owners_of(state, settings)
    records = sorted(state.jobs.values(), key=lambda record: record.order)
    found = [
        f"job {record.key} of {told_vc(record.vc)} is on {record.places}, borrowing: {record.is_borrowing}"
        for record in records
        if record.is_borrowing != (record.is_entitled and bool(lenders(owners, record.vc, record.places)))
    ]
    waiting = [record for record in records if _waits_for_a_slot(record)]
    if not owners or not waiting or (state.bounds and state.bounds.reservations):
        return found
    placed = [record for record in records if record.state in states.PLACED]
    sites = board_of(Cycle(state, settings, 0, owners=owners), placed, []).sites.values()
    for record in waiting:
        need = need_of(record)
        able = [site for site in sites if site.is_open and site.may_take(need)]
        found += [
            f"job {record.key} waits for a slot; of {told_vc(need.vc)} GPUs {gpus} of {site.name} are idle"
            for site in able
            if site.is_large_enough(need) and site.has_memory(need)
            if len(gpus := [*_idle(site, need)]) >= need.gpus
        ]
    return found


def _waits_for_a_slot(record: JobRecord) -> bool:
    is_single = record.options.nodes == 1
    return record.state == states.HELD and record.code == "NoFreeSlots" and record.is_entitled and is_single


def _idle(site: Site, need: Need) -> Iterator[int]:
    """The GPUs of a job's own virtual cluster with a slot, on which none of its guaranteed jobs lives."""
    for gpu in site.gpus_for(need.group):
        here = [stay for stay in site.stays.values() if not stay.gpus or gpu in stay.gpus]
        if len(here) < site.slots_per_gpu and all(stay.group != need.group for stay in here):
            yield gpu
