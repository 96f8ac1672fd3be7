"""The cycle's decisions on starts: deadlines, holds after starts, places, and reasons for those who wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gandiva_slurm.engine.lifecycle.event_handlers import (
    hold_again,
    start_failed,
    start_id,
    take_reported_gpus,
)
from gandiva_slurm.engine.lifecycle.limits import behind, waiting_for_limits
from gandiva_slurm.engine.lifecycle.moving import fall_back
from gandiva_slurm.engine.lifecycle.reservations import reserved_nodes
from gandiva_slurm.engine.lifecycle.waiting import PASSING, heed_slurm, obstacle
from gandiva_slurm.engine.state.cells import Cells, parts_of
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord, NodeRecord
from gandiva_slurm.engine.state.sizes import gpus_of, is_elastic, nodes_of
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note, Start
from gandiva_slurm.model.pending import explain
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.placement.sites import Place, Site
from gandiva_slurm.policy.shares.associations import job_weight


def in_order(at: Cycle, *wanted: str) -> list[JobRecord]:
    """The records in these states, in the one total order of jobs."""
    return sorted(
        (record for record in at.state.jobs.values() if record.state in wanted),
        key=lambda record: record.order,
    )


def watch_starts(at: Cycle) -> None:
    """Take back starts that Slurm did not make in time, or whose node is lost."""
    for record in in_order(at, states.STARTING):
        heed_slurm(at, record)
    for record in in_order(at, states.STARTING):
        nodes = {name: at.state.nodes.get(name) for name in record.nodes}
        lost = [name for name, node in nodes.items() if node is None or node.is_down]
        if lost:
            record.travels.give_up()  # of a job on the move: no failure of its own
            record.move(states.HELD, because("NodeLost", node=",".join(lost)), at.now_ns)
            record.retry_ns = at.now_ns + 1  # the next cycle: the hold comes first
            hold_again(at, record)
        elif at.now_ns - record.since_ns >= at.settings.start_deadline_ns:
            start_failed(at, record, f"not started in time, Slurm says: {_in_words(record)}")


def _in_words(record: JobRecord) -> str:
    reason = record.job.reason or "no reason given"
    words = explain(reason, record.job.job_id).words
    return f"{reason}, {words}" if words else reason


def ask_holds(at: Cycle) -> None:
    """Hold again what waits and is not held, as long as Slurm shows it so."""
    for record in in_order(at, states.HELD):
        is_late = at.now_ns - record.hold_asked_ns >= at.settings.hold_again_ns
        if not record.job.is_held and is_late:
            hold_again(at, record)


def ready_to_start(at: Cycle) -> dict[int, JobRecord]:
    """Return the jobs that wait for room alone; the others are told what else they wait for."""
    ready: dict[int, JobRecord] = {}
    limited = waiting_for_limits(at)
    for record in in_order(at, *states.WAITING):
        # one that is only being moved had its part of the limits, and goes first
        is_moved = record.state == states.REQUEUED
        reason = obstacle(at, record) or (None if is_moved else behind(at, record, limited))
        if reason is None:
            ready[record.job.job_id] = record
        else:
            _put_off(at, record, reason)
    return ready


def _put_off(at: Cycle, record: JobRecord, reason: Reason) -> None:
    """Something other than room keeps it from starting: what is kept for it goes to others."""
    is_passing = reason is record.reason or reason.code in PASSING
    if record.state == states.REQUEUED and is_passing:
        return
    if record.state == states.REQUEUED:
        fall_back(at, record, reason.text)
    if not is_passing:
        record.target = {}
    tell(at, record, reason)


def need_of(record: JobRecord) -> Need:
    """What a job asks of a place."""
    job, options, nodes = record.job, record.options, nodes_of(record)
    shown = job.node_count if options.max_nodes > options.nodes else options.nodes
    return Need(
        job_id=job.job_id,
        leaf=record.leaf,
        gpus=max(1, gpus_of(record) // max(1, nodes)),
        nodes=nodes,
        weight=job_weight(options.tickets, record.priority),
        types=(options.gpu_type,) if options.gpu_type else options.types,
        partitions=tuple(filter(None, job.partition.split(","))),
        cpus=-(-job.cpus // max(1, shown)),
        memory_mib=job.memory_mib,
        is_opportunistic=record.is_opportunistic,
        vc=record.vc,
        cell=options.cell,
    )


def need_now(at: Cycle, record: JobRecord) -> Need:
    """What a job asks of a place now, with what is closed to it."""
    need, closed = need_of(record), closed_nodes(at, record)
    return replace(need, closed=closed) if closed else need


def closed_nodes(at: Cycle, record: JobRecord) -> frozenset[str]:
    """Return the nodes that a job may not be placed on: reserved, or unable to restore it from its image.

    The latter only while there is a node besides, down as that may be: else it goes where it can begin anew.
    """
    closed, travels, nodes = frozenset(reserved_nodes(at, record)), record.travels, at.state.nodes
    kept = travels.kept_type
    others = {name for name, each in nodes.items() if each.node.gpu_type != kept} if kept else set[str]()
    for unable in (others, travels.unfit.keys()):
        if unable and any(could_take(at, record, name) for name in nodes.keys() - unable - closed):
            closed = closed.union(unable)
    return closed


def could_take(at: Cycle, record: JobRecord, name: str) -> bool:
    """True when a job fits on this node were it open and empty."""
    site, need = site_of(at.state.nodes[name], at.settings.cells), need_of(record)
    return site.may_take(need) and site.is_large_enough(need)


def site_of(record: NodeRecord, cells: Cells) -> Site:
    """Return a node as placement sees it, empty."""
    node = record.node
    return Site(
        name=node.name,
        gpu_type=node.gpu_type,
        gpus=record.gpus,
        cpus=node.cpus,
        memory_mib=node.memory_mib,
        partitions=node.partitions,
        is_open=record.is_open,
        parts=parts_of(cells, node.gpu_type, record.gpus),
    )


def bind(at: Cycle) -> None:
    """Give GPUs to jobs found running, once their node has had time to say which they hold."""
    placed = in_order(at, *states.PLACED)
    for record in placed:
        take_reported_gpus(at, record)
    for record in placed:
        unknown = [name for name, gpus in record.places.items() if not gpus and name in at.state.nodes]
        for name in unknown:
            is_seen_unbound = (name, record.key) in at.state.sightings
            if is_seen_unbound or at.now_ns - record.since_ns >= at.settings.adopt_ns:
                record.places[name] = _least_lived_on(placed, name, at.state.nodes[name], need_of(record))
        still = [name for name in unknown if not record.places[name]]
        if still:
            record.stay(because("Unbound", node=",".join(still)), at.now_ns)


def _least_lived_on(placed: Sequence[JobRecord], name: str, node: NodeRecord, need: Need) -> tuple[int, ...]:
    """The GPUs of a node on which fewest jobs live; () where the job asks for more than there are."""
    living = Counter(gpu for record in placed for gpu in record.places.get(name, ()))
    order = sorted(range(node.gpus), key=lambda gpu: (living[gpu], gpu))
    return tuple(sorted(order[: need.gpus])) if need.gpus <= node.gpus else ()


def start(at: Cycle, record: JobRecord, place: Place) -> None:
    """Start a job that waits."""
    deadline_s = at.settings.start_deadline_ns // SECOND_NS
    facts = {"node": ",".join(place.nodes), "gpus": _told_gpus(place)}
    reason = because("Starting", deadline_s=deadline_s, **facts)
    record.move(states.STARTING, reason, at.now_ns)
    record.places = dict(place.parts)
    record.starts += 1
    record.released_ns = at.now_ns
    record.hold_asked_ns = 0
    size = gpus_of(record) if is_elastic(record) else 0
    at.actions.append(Start(start_id(record), record.key, place.parts, reason.code, reason.text, size))


def _told_gpus(place: Place) -> str:
    """The GPUs of a place: 0,1 or 0,1 of each or 0,1 and 2,3."""
    words = [",".join(map(str, gpus)) for _, gpus in place.parts]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} of each"
    return " and ".join(words)


def tell(at: Cycle, record: JobRecord, reason: Reason) -> None:
    """Change the reason why a job waits, and have that told when it is another one."""
    if record.stay(reason, at.now_ns):
        action_id = f"note:{record.key}:{at.now_ns}"
        at.actions.append(Note(action_id, record.key, reason.code, reason.text, reason.evidence))
