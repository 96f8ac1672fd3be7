"""The GPU time that jobs have held: what their nodes have told, and what was planned for them since.

A node tells it about once a second, and a quantum may be as short. A job that held its GPUs in the quantum
just over has to pay for it before the next one is given, when half of that is not told yet. Taken from the
plan, it is wrong by what a park takes; the node's next word puts that right.
"""

from __future__ import annotations

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.event import HeldTold


def held_told(at: Cycle, event: HeldTold) -> None:
    """Add to each job what it has held since it was told last; a counter that began anew counts whole."""
    for key, held_ns in event.held_ns:
        sighting, record = at.state.sightings.get((event.node, key)), at.state.jobs.get(key.job_id)
        if sighting is None or record is None:
            continue
        record.held_ns += held_ns - sighting.held_ns if held_ns >= sighting.held_ns else held_ns
        sighting.held_ns, sighting.planned_ns = held_ns, 0
        sighting.told_ns = event.at_ns or at.now_ns


def follow_plan(at: Cycle) -> None:
    """Add what the plan gave since it was followed last, where a node has not told it yet."""
    state = at.state
    for job_id in state.on:
        record = state.jobs[job_id]
        if record.state not in states.SLICED:
            continue
        for node, gpus in record.places.items():
            home, sighting = state.nodes.get(node), state.sightings.get((node, record.key))
            if home is None or not home.has_daemon or sighting is None:
                continue  # what is there is not known
            since_ns = max(sighting.told_ns, state.followed_ns)
            own_ns = max(0, at.now_ns - since_ns) * len(gpus)
            sighting.planned_ns += own_ns // 2 if sighting.measured.mate in state.on else own_ns


def held_ns(at: Cycle, record: JobRecord) -> int:
    """Return the GPU time that a job has held by now, all its incarnations together; of a shared GPU half."""
    sightings = (at.state.sightings.get((node, record.key)) for node in record.places)
    return record.held_ns + sum(each.planned_ns for each in sightings if each is not None)
