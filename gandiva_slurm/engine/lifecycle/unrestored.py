"""Jobs that a node could not restore from their image: they go on from it on another one (ADR 0071).

The node has given the image back, and keeps the job parked for a minute, in which it is requeued. Nodes that
could not restore it are no places for it (`placing.closed_nodes`), until it trains on one of them after all;
one whose gandivad was started anew meanwhile only until it trains anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.lifecycle.moving import ANEW, IMAGE, begin_move, moves_by
from gandiva_slurm.engine.lifecycle.owners import lacks_vc
from gandiva_slurm.engine.lifecycle.placing import closed_nodes, could_take
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.engine.state.sighting import why_unfit
from gandiva_slurm.model import job as states
from gandiva_slurm.model.event import ResidentSeen
from gandiva_slurm.model.reason import Reason, because

#: What a node says of a job whose script runs.
_AT_WORK = ("Running", "NoClient", "Packed", "Parked", "NotParkable")


def note_unrestored(at: Cycle, event: ResidentSeen) -> None:
    """Take a node's word that it cannot restore a job, or that the job trains there."""
    record = at.state.jobs.get(event.key.job_id)
    if record is None or record.key != event.key or event.node not in record.places:
        return
    travels, measured = record.travels, event.measured
    if measured.framework or measured.is_movable:
        travels.is_imaged = measured.framework == IMAGE
    is_at_work = measured.framework not in ("", ANEW) or event.reason in _AT_WORK
    if measured.keeps_type and event.node in at.state.nodes and moves_by(at.state, record) == IMAGE:
        travels.kept_type = at.state.nodes[event.node].node.gpu_type
    elif is_at_work and not measured.unrestored and record.state != states.CHECKPOINTING:
        travels.kept_type = ""
    if measured.unrestored:
        travels.unfit[event.node] = measured.unrestored
        if measured.is_fit_again and event.node not in travels.unfit_once:
            travels.unfit_once = (*travels.unfit_once, event.node)
    elif travels.unfit and is_at_work:
        # Where it trains it can be restored, and where it has begun anew any node may be as good.
        is_here = event.node in travels.unfit
        travels.forget_unfit(but=() if is_here else travels.unfit.keys() - {*travels.unfit_once})


def leave_unfit(at: Cycle) -> None:
    """Have those leave that their nodes cannot restore, while others take jobs; to be called once a cycle."""
    told = [record for record in at.state.jobs.values() if record.travels.unfit]
    for record in sorted(told, key=lambda record: record.order):
        why = why_unfit(at.state.sightings, record.key, record.nodes)
        if why and record.state in states.SLICED and _may_leave(at, record) and has_other(at, record):
            begin_move(at, record, {}, why, "Unrestored")


def unfit_or(record: JobRecord, reason: Reason) -> Reason:
    """Say why a job has no place: where nodes are closed to it, that they could not restore it."""
    if reason.code != "Reserved" or not (record.travels.unfit or record.travels.kept_type):
        return reason
    kept = record.travels.kept_type
    words = [f"it was on {kept}s, and goes on on such alone"] if kept else []
    words += [f"{name} ({why})" for name, why in _in_order(record)]
    return because("Unfit", unfit=", ".join(words))


def told(record: JobRecord) -> Iterator[str]:
    """Say which nodes could not restore it, and which may, for `gandiva why`."""
    if record.travels.kept_type:
        yield f"it is moved by an image of its processes, to other {record.travels.kept_type}s alone"
    yield from (f"{name} could not restore it from its image: {why}" for name, why in _in_order(record))


def _in_order(record: JobRecord) -> list[tuple[str, str]]:
    return sorted(record.travels.unfit.items())


def _may_leave(at: Cycle, record: JobRecord) -> bool:
    """True for one that can be requeued now. After a move that failed its node is to have it begin anew."""
    homes = [at.state.nodes.get(name) for name in record.nodes]
    is_heard = all(home is not None and not home.is_down and home.has_daemon for home in homes)
    is_ours = record.job.batch and record.job.requeue and not lacks_vc(at, record)
    return is_heard and is_ours and record.travels.wait_until_ns <= at.now_ns


def has_other(at: Cycle, record: JobRecord) -> bool:
    """True when another node takes jobs, and could take this one with its image."""
    closed = closed_nodes(at, record) | record.travels.unfit.keys()
    closed |= record.places.keys()
    others = (name for name, node in at.state.nodes.items() if node.is_open and name not in closed)
    return any(could_take(at, record, name) for name in others)
