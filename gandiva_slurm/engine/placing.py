"""The cycle's decisions on starts: deadlines, holds after starts, places, and reasons for those who wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from gandiva_slurm.engine.follow import Cycle, hold_again, start_failed, start_id, take_reported_gpus
from gandiva_slurm.engine.lacking import why_not
from gandiva_slurm.engine.limits import behind, waiting_for_limits
from gandiva_slurm.engine.moving import fall_back, makes_room
from gandiva_slurm.engine.owners import as_there, note_owner, tickets_apart
from gandiva_slurm.engine.sizes import gpus_of, is_elastic
from gandiva_slurm.engine.state import SECOND_NS, JobRecord, NodeRecord
from gandiva_slurm.engine.waiting import heed_slurm, obstacle
from gandiva_slurm.engine.windows import closed_nodes
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note, Start
from gandiva_slurm.model.pending import explain
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement import Board, Need, NodeGpus, Place, Site, Stay, in_turn, kept_key
from gandiva_slurm.policy.shares import job_weight, leaf_tickets

#: Nodes looked at in one cycle for those who find a place, each for each, some 13 us a look. Thousands that
#: come at once to a thousand nodes would keep the controller busy for minutes: several cycles place them.
MOST_LOOKS = 100_000


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


def place_waiting(at: Cycle) -> tuple[Board, list[JobRecord]]:
    """Give GPUs to the running whose GPUs nobody knows, and start those who wait and fit.

    Return the board as it is then, and the jobs that found no place.
    """
    placed = in_order(at, *states.PLACED)
    for record in placed:
        take_reported_gpus(at, record)
    ready = ready_to_start(at)
    board = board_of(at, placed, list(ready.values()))
    bind_unknown(at, board, placed)
    needs = {job_id: need_now(at, record) for job_id, record in ready.items()}
    start_kept(at, board, ready, needs)
    # a job that may only be told to wait for others must not push those that will run onto busy GPUs
    sure = [needs[job_id] for job_id, record in ready.items() if not record.job.dependency]
    others = [needs[job_id] for job_id, record in ready.items() if record.job.dependency]
    places, later = _place(at, board, sure)
    if later:
        later |= {need.job_id for need in others}
    else:
        found, later = _place(at, board, others)
        places |= found
    for job_id, place in places.items():
        start(at, ready[job_id], place)
    left = [record for job_id, record in ready.items() if job_id not in places]
    _tell_why(at, board, left, later, needs)
    return board, left


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


def _tell_why(
    at: Cycle, board: Board, left: Sequence[JobRecord], later: Set[int], needs: Mapping[int, Need]
) -> None:
    """Say of those who found no place why; of those to be looked at later, that."""
    told: dict[tuple[object, ...], Reason] = {}
    for record in left:
        need = needs[record.job.job_id]
        if need.job_id in later:
            tell(at, record, because("NextCycle"))
            continue
        if need.shape not in told:
            told[need.shape] = why_not(board, need, at.state.nodes)
        tell(at, record, told[need.shape])


def _place(at: Cycle, board: Board, needs: Sequence[Need]) -> tuple[dict[int, Place], set[int]]:
    """Place jobs on their virtual clusters' GPUs, then those left on anybody's, as opportunistic there.

    Return the places, and whose turn comes in a later cycle: nobody borrows before that one has his own.
    """
    places, later = _fill(board, needs)
    left = [need for need in needs if need.job_id not in places and not need.is_opportunistic]
    if at.owners and later:
        later |= {need.job_id for need in left}
    elif at.owners:
        lent, later = _fill(board, [replace(need, is_opportunistic=True) for need in left])
        places |= lent
    return places, later


def _fill(board: Board, needs: Sequence[Need]) -> tuple[dict[int, Place], set[int]]:
    """Place jobs in turn; return the places, and whose turn does not come in this cycle."""
    most = max(1, MOST_LOOKS // max(1, len(board.sites)))
    places: dict[int, Place] = {}
    full: set[tuple[object, ...]] = set()
    for need, place in in_turn(board, needs):
        if place is None:  # counts for nothing: it would be so in each cycle, and keep the others waiting
            full.add(need.shape)
            continue
        places[need.job_id] = place
        if len(places) == most:
            break
    left = (need for need in needs if need.job_id not in places)
    return places, {need.job_id for need in left if need.shape not in full}


def start_kept(at: Cycle, board: Board, ready: dict[int, JobRecord], needs: Mapping[int, Need]) -> None:
    """Start those for whom a place is kept, and take out of `ready` who is still to wait for his."""
    for job_id, record in [*ready.items()]:
        if not record.target:
            continue
        need, key = as_there(at, needs[job_id], record.target), kept_key(job_id)
        kept = {name: board.lift(name, key) for name in record.target if name in board.sites}
        if record.state == states.HELD and need.group != needs[job_id].group:
            record.target = {}  # those GPUs are others' by now: it may find some of its own
            continue
        place: Place | None = Place(tuple(NodeGpus(*part) for part in record.target.items()))
        is_moved = record.state == states.REQUEUED
        if place is not None and not board.has_room(need, place, is_kept=is_moved):
            place = None if is_moved else _best(board, need)
        if place is not None:
            board.put(need, place)
            start(at, record, place)
            del ready[job_id]
        elif is_moved:
            fall_back(at, record, "its place there is taken")
            del ready[job_id]  # it may come to be placed where it was, and not within the same second
        elif makes_room(at, job_id):
            for name, stay in kept.items():
                board.lay(name, key, stay)
            del ready[job_id]
        else:
            record.target = {}


def _best(board: Board, need: Need) -> Place | None:
    return board.best(need, [site for site in board.sites.values() if site.may_take(need)])


def _put_off(at: Cycle, record: JobRecord, reason: Reason) -> None:
    """Something other than room keeps it from starting: what is kept for it goes to others."""
    is_passing = reason is record.reason or reason.code == "NotPending"
    if record.state == states.REQUEUED and is_passing:
        return
    if record.state == states.REQUEUED:
        fall_back(at, record, reason.text)
    if not is_passing:
        record.target = {}
    tell(at, record, reason)


def need_of(record: JobRecord) -> Need:
    """What a job asks of a place."""
    job, options = record.job, record.options
    return Need(
        job_id=job.job_id,
        leaf=record.leaf,
        gpus=max(1, gpus_of(record) // max(1, options.nodes)),
        nodes=options.nodes,
        weight=job_weight(options.tickets, record.priority),
        order=record.order,
        priority=record.priority,
        types=(options.gpu_type,) if options.gpu_type else options.types,
        partitions=tuple(filter(None, job.partition.split(","))),
        cpus=-(-job.cpus // options.nodes),
        memory_mib=job.memory_mib,
        is_opportunistic=record.is_opportunistic,
        vc=record.vc,
    )


def need_now(at: Cycle, record: JobRecord) -> Need:
    """What a job asks of a place now, reservations heeded."""
    return replace(need_of(record), closed=frozenset(closed_nodes(at, record)))


def board_of(at: Cycle, placed: list[JobRecord], ready: list[JobRecord]) -> Board:
    """Return all nodes with the placed, and what is kept for those on the move."""
    kept = [record for record in at.state.jobs.values() if record.target]
    here = [*placed, *ready, *kept]
    tickets = leaf_tickets(at.state.associations, {record.leaf for record in here})
    tickets |= leaf_tickets(at.state.associations, {r.leaf for r in here if not r.is_opportunistic})
    sites = {name: site_of(at, node) for name, node in at.state.nodes.items()}
    for record in placed:
        need = need_of(record)
        for name, gpus in record.places.items():
            if name in sites:
                is_leaving = record.state == states.CHECKPOINTING
                sites[name].stays[need.job_id] = replace(need.stay(gpus), is_leaving=is_leaving)
    for record in kept:
        for name, stay in _kept_stays(at, record):
            if name in sites:
                sites[name].stays[kept_key(record.job.job_id)] = stay
    return Board(sites.values(), tickets, tickets_apart(at, here))


def _kept_stays(at: Cycle, record: JobRecord) -> Iterator[tuple[str, Stay]]:
    """What is kept for a job to move to: on its own node only GPUs it has not yet, and no memory.

    It counts there as what it will be there, not as the borrower that it may be where it is.
    """
    need = as_there(at, replace(need_of(record), is_opportunistic=not record.is_entitled), record.target)
    for name, gpus in record.target.items():
        own = record.places.get(name, ())
        more = tuple(gpu for gpu in gpus if gpu not in own)
        memory_mib = 0 if own else need.memory_mib
        if more:
            yield name, replace(need.stay(more), memory_mib=memory_mib)


def site_of(at: Cycle, record: NodeRecord) -> Site:
    """Return a node as placement sees it, empty."""
    node = record.node
    return Site(
        name=node.name,
        gpu_type=node.gpu_type,
        gpus=record.gpus,
        slots_per_gpu=at.settings.slots_per_gpu,
        cpus=node.cpus,
        memory_mib=node.memory_mib,
        partitions=node.partitions,
        is_open=record.is_open,
        owners=at.owners.get(node.name, ()),
    )


def bind_unknown(at: Cycle, board: Board, placed: list[JobRecord]) -> None:
    """Assign GPUs to jobs found running, once their node has had time to say which they hold."""
    for record in placed:
        unknown = [name for name, gpus in record.places.items() if not gpus and name in board.sites]
        for name in unknown:
            is_seen_unbound = (name, record.key) in at.state.sightings
            if is_seen_unbound or at.now_ns - record.since_ns >= at.settings.adopt_ns:
                record.places[name] = board.bind(need_of(record), board.sites[name])
        still = [name for name in unknown if not record.places[name]]
        if still:
            record.stay(because("Unbound", node=",".join(still)), at.now_ns)


def start(at: Cycle, record: JobRecord, place: Place) -> None:
    """Start a job that waits."""
    deadline_s = at.settings.start_deadline_ns // SECOND_NS
    facts = {"node": ",".join(place.nodes), "gpus": _told_gpus(place)}
    reason = because("Starting", deadline_s=deadline_s, **facts)
    record.move(states.STARTING, reason, at.now_ns)
    record.places = dict(place.parts)
    note_owner(at, record)
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
