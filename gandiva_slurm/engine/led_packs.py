"""Packs that a policy plans: what is said of them, and what is learnt when one lacks GPU memory.

The policy decides who shares a GPU, by what was measured (`state.rates`); two that ran out of memory together
are never on one GPU again, nor are others of their models.
"""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.findings import Pack
from gandiva_slurm.engine.fitting import Home, Seat, ooms, seats
from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.pairs import BROKE, evidence_of
from gandiva_slurm.engine.settings import SECOND_NS
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.packing import normal_rates


def watch_packs(at: Cycle) -> None:
    """Look whether one of a pack has lacked GPU memory since it was packed, or ended for want of it."""
    here = seats(at) if at.state.pairs.packs else {}
    for pack in at.state.pairs.packs:
        home = at.state.nodes.get(pack.node)
        records = [at.state.jobs.get(job_id) for job_id in pack.jobs]
        broke = any(r is not None and r.state == states.ENDED and r.job.state in BROKE for r in records)
        is_short = ooms(here.get(Home(pack.node, pack.gpu), []), *pack.jobs) > pack.ooms
        one, two = (record.model if record is not None else "" for record in records)
        if (broke or is_short) and home is not None and one and two:
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
    old = {(Home(pack.node, pack.gpu), *pack.jobs): pack for pack in at.state.pairs.packs}
    pairs = {home: jobs for home, jobs in on.items() if len(jobs) == 2}
    here = seats(at) if pairs else {}
    at.state.pairs.packs = [
        _pack(at, home, one, two, here.get(home, []), old.get((home, one, two)))
        for home, (one, two) in sorted(pairs.items())
    ]


def _pack(at: Cycle, home: Home, one: int, two: int, here: list[Seat], old: Pack | None) -> Pack:
    pack = old or Pack(*home, one, two, at.now_ns, ooms=ooms(here, one, two))
    first, second = (at.state.jobs[job_id].model for job_id in pack.jobs)
    both = normal_rates(at.state.rates, first, second, at.state.nodes[home.node].node.gpu_type)
    if old is not None and old.is_trial == (both is None):
        return old
    return replace(
        pack,
        is_trial=both is None,
        gain=sum(both) if both else 0.0,
        least_s=at.settings.quantum_ns // SECOND_NS,
        evidence=evidence_of(at, pack, here),
    )
