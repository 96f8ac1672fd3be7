"""Nodes that an operator drains for a reason of ours: what can be moved leaves them (ADR 0061).

    scontrol update NodeName=n1 State=DRAIN Reason="gandiva: a new disk"

To Slurm it is a drain as any other. A job leaves in its next turn, as one that makes way: by what moves it,
for any other node, now or when there is room. `moves.min_run_s` and `per_hour` do not keep it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gandiva_slurm.engine.lifecycle.moving import begin_move, why_bound
from gandiva_slurm.engine.lifecycle.unrestored import has_other
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord, NodeRecord
from gandiva_slurm.model import job as states

#: How the reason of such a drain begins.
PREFIX = "gandiva:"
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})


class Drain(NamedTuple):
    """How far the drain of a node is."""

    #: its reason, as the operator wrote it
    reason: str
    #: job ids of those that leave
    leaving: tuple[int, ...]
    #: by job id: why one runs on there
    staying: Mapping[int, str]

    @property
    def text(self) -> str:
        """The operator's line, without the node's name."""
        if not self.leaving and not self.staying:
            return f"{self.reason}: no job of Gandiva's is left there"
        leave = [f"job {job_id} leaves" for job_id in self.leaving]
        stay = [f"job {job_id} runs on ({why})" for job_id, why in self.staying.items()]
        return f"{self.reason}: {'; '.join((*leave, *stay))}"


def is_emptied(node: NodeRecord) -> bool:
    """True when what lives there is to be moved away."""
    return bool(node.node.state & _DRAINED) and node.node.reason.startswith(PREFIX)


def leave_drained(at: Cycle) -> None:
    """Have all leave that can; to be called once a cycle."""
    emptied = {name: node for name, node in at.state.nodes.items() if is_emptied(node)}
    for record in sorted(at.state.jobs.values(), key=lambda record: record.order) if emptied else ():
        name = next((name for name in record.nodes if name in emptied), "")
        if name and record.state in states.SLICED and not why_stays(at, record):
            begin_move(at, record, {}, f"{name} is drained ({emptied[name].node.reason})", "Draining")


def why_stays(at: Cycle, record: JobRecord) -> str:
    """Why a job on a node that is emptied runs on there; "" when it leaves."""
    if not at.settings.moves:
        return "gandiva.yaml has moves off"
    if record.job.job_id in at.state.hidden:
        return "it is set aside"
    if record.state == states.STARTING:
        return "it is just being started"
    if record.state == states.CHECKPOINTING:
        return ""
    why, kept = why_bound(at, record), record.travels.kept_type
    return why or (f"no other {kept} takes jobs now" if kept and not has_other(at, record) else "")


def drain_of(at: Cycle, name: str) -> Drain | None:
    """Return how far the drain of a node is; None where it is not emptied."""
    node = at.state.nodes.get(name)
    if node is None or not is_emptied(node):
        return None
    jobs = (*at.state.jobs.values(), *at.state.hidden.values())
    here = sorted((each for each in jobs if name in each.places), key=lambda record: record.order)
    whys = {record.job.job_id: why_stays(at, record) for record in here}
    staying = {job_id: why for job_id, why in whys.items() if why}
    return Drain(node.node.reason, tuple(job_id for job_id, why in whys.items() if not why), staying)


def drain_texts(at: Cycle) -> dict[str, str]:
    """Return the operator's line of each node that is emptied, by its name."""
    drains = {name: drain_of(at, name) for name in at.state.nodes}
    return {name: drain.text for name, drain in drains.items() if drain is not None}


def told(at: Cycle, record: JobRecord) -> Iterator[str]:
    """Say of a job that it runs on where it was to leave, for `gandiva why`."""
    why = why_stays(at, record) if record.is_placed else ""
    for name in record.nodes if why else ():
        node = at.state.nodes.get(name)
        if node is not None and is_emptied(node):
            yield f"{name} is drained ({node.node.reason}), and it runs on there: {why}"
