"""Packs that a policy plans: what is said of them, and what is learnt when one lacks GPU memory.

The policy decides which jobs share a GPU, by what was measured (`state.rates`). Where two ran out of memory
together, or one of them failed, jobs of their models are not packed on GPUs of that type any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gandiva_slurm.engine.lifecycle.placing import tell
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.fitting import Home, Seat, memory, seats
from gandiva_slurm.engine.state.packs import Pack
from gandiva_slurm.engine.state.settings import SECOND_NS
from gandiva_slurm.model import job as states
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.reason import because
from gandiva_slurm.policy.packing.pairs import LEAST_KEPT, normal_rates, pays

#: Slurm's words for a job that may have ended for want of GPU memory.
BROKE = frozenset({"FAILED", "OUT_OF_MEMORY"})


def watch_packs(at: Cycle) -> None:
    """Look whether one of a pack has lacked GPU memory since it was packed, or ended for want of it."""
    for pack in at.state.packs:
        home = at.state.nodes.get(pack.node)
        records = [at.state.jobs.get(job_id) for job_id in pack.jobs]
        broke = any(r is not None and r.state == states.ENDED and r.job.state in BROKE for r in records)
        one, two = (record.model if record is not None else "" for record in records)
        if (broke or _ooms(at, pack) > pack.ooms) and home is not None and one and two:
            at.state.rates.forbid(one, two, home.node.gpu_type)


def note_packs(at: Cycle) -> None:
    """Take the packs of the plan that is carried out into the books, for `why` and `gandiva nodes`."""
    on: dict[Home, list[int]] = {}
    for job_id in sorted(at.state.on, key=lambda job_id: at.state.jobs[job_id].order):
        places = at.state.jobs[job_id].places
        if len(places) == 1:
            ((node, gpus),) = places.items()
            for gpu in gpus if len(gpus) == 1 else ():
                on.setdefault(Home(node, gpu), []).append(job_id)
    old = {(Home(pack.node, pack.gpu), *pack.jobs): pack for pack in at.state.packs}
    at.state.packs, here = [], None
    for home, jobs in sorted(on.items()):
        if len(jobs) != 2:
            continue
        one, two = jobs
        pack, both = old.get((home, one, two)), _both(at, home, one, two)
        if pack is None or pack.is_trial != (both is None):
            here = here or seats(at)
            pack = _pack(at, pack, Pack(*home, one, two, at.now_ns), both, here.get(home, []))
        at.state.packs.append(pack)
    _tell_undone(at, old.values(), on)


def _tell_undone(at: Cycle, old: Iterable[Pack], on: Mapping[Home, Sequence[int]]) -> None:
    """Say of packs that are over, and were found slower, why their jobs take turns again."""
    floor = at.settings.pack_floor
    for pack in old:
        home = Home(pack.node, pack.gpu)
        records = [at.state.jobs.get(job_id) for job_id in pack.jobs]
        lives = all(record is not None and record.places == {home.node: (home.gpu,)} for record in records)
        both = _both(at, home, *pack.jobs) if lives and {*pack.jobs} != {*on.get(home, ())} else None
        if both is None or pays(both, floor):
            continue
        evidence = _evidence_of(at, pack, seats(at).get(home, []))
        why = f"together {sum(both):.2f} of the speed they have by turns; {floor:.2f} is asked"
        if sum(both) > floor:
            why = f"one keeps {min(both):.2f} of its speed; {LEAST_KEPT:.2f} is asked of each"
        for job_id in pack.jobs:
            undone = because("PackUndone", *evidence, mate=pack.mate(job_id), why=why)
            tell(at, at.state.jobs[job_id], undone)


def _both(at: Cycle, home: Home, one: int, two: int) -> tuple[float, float] | None:
    """What two keep of their speed together; None when it was not measured."""
    first, second = (at.state.jobs[job_id].model for job_id in (one, two))
    return normal_rates(at.state.rates, first, second, at.state.nodes[home.node].node.gpu_type)


def _pack(
    at: Cycle, old: Pack | None, new: Pack, both: tuple[float, float] | None, here: Sequence[Seat]
) -> Pack:
    pack = old or new
    return replace(
        pack,
        ooms=pack.ooms if old else _ooms(at, pack),
        is_trial=both is None,
        gain=sum(both) if both else 0.0,
        least_s=at.settings.quantum_ns // SECOND_NS,
        evidence=_evidence_of(at, pack, here),
    )


def _ooms(at: Cycle, pack: Pack) -> int:
    """How often either of a pack has asked for more GPU memory than there was."""
    records = [at.state.jobs.get(job_id) for job_id in pack.jobs]
    seen = [at.state.sightings.get((pack.node, record.key)) for record in records if record is not None]
    return sum(sighting.measured.ooms for sighting in seen if sighting is not None)


def _evidence_of(at: Cycle, pack: Pack, here: Sequence[Seat]) -> tuple[str, ...]:
    """What is known of two that share a GPU: their speeds alone and together, and its memory."""
    told = [f"GPU {pack.gpu} of {pack.node}, {at.state.nodes[pack.node].node.gpu_type or 'no type'}"]
    for job_id in pack.jobs:
        seen = _seen(at, pack, job_id)
        if seen is not None:
            beside = f"{seen.rate_packed:.3g} packed" if seen.rate_packed else "packed not measured yet"
            told.append(f"job {job_id}: {seen.rate_alone:.3g} mini-batches a second alone, {beside}")
    return (*told, *memory(here, *pack.jobs))


def _seen(at: Cycle, pack: Pack, job_id: int) -> Measured | None:
    sighting = at.state.sightings.get((pack.node, at.state.jobs[job_id].key))
    return None if sighting is None else sighting.measured
