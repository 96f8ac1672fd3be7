"""The cycle's decisions on starts: deadlines, holds after starts, places, and reasons for those who wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gandiva_slurm.engine.follow import Cycle, hold_again, start_failed, start_id, take_reported_gpus
from gandiva_slurm.engine.limits import behind, waiting_for_limits
from gandiva_slurm.engine.moving import fall_back, makes_room
from gandiva_slurm.engine.owners import as_there, note_owner, tickets_apart, told_vc
from gandiva_slurm.engine.sizes import gpus_of, is_elastic
from gandiva_slurm.engine.state import SECOND_NS, JobRecord, NodeRecord
from gandiva_slurm.engine.waiting import heed_slurm, obstacle
from gandiva_slurm.engine.windows import closed_nodes
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note, Start
from gandiva_slurm.model.pending import explain
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement import Board, Need, NodeGpus, Place, Site, Stay, kept_key, place_all
from gandiva_slurm.policy.shares import job_weight, leaf_tickets

#: Nodes named as evidence.
SHOWN = 4


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
    ready: dict[int, JobRecord] = {}
    limited = waiting_for_limits(at)
    for record in in_order(at, *states.WAITING):
        # who is only being moved had his part of the limits, and goes first
        is_moved = record.state == states.REQUEUED
        reason = obstacle(at, record) or (None if is_moved else behind(at, record, limited))
        if reason is None:
            ready[record.job.job_id] = record
        else:
            _put_off(at, record, reason)
    board = board_of(at, placed, list(ready.values()))
    _bind_unknown(at, board, placed)
    needs = {job_id: need_now(at, record) for job_id, record in ready.items()}
    start_kept(at, board, ready, needs)
    # a job that may only be told to wait for others must not push those that will run onto busy GPUs
    sure = [needs[job_id] for job_id, record in ready.items() if not record.job.dependency]
    others = [needs[job_id] for job_id, record in ready.items() if record.job.dependency]
    places = _place(at, board, sure) | _place(at, board, others)
    for job_id, place in places.items():
        start(at, ready[job_id], place)
    told: dict[tuple[object, ...], Reason] = {}
    left = [record for job_id, record in ready.items() if job_id not in places]
    for record in left:
        need = needs[record.job.job_id]
        reason = told.setdefault(need.shape, why_not(board, need, at.state.nodes))
        tell(at, record, reason)
    return board, left


def _place(at: Cycle, board: Board, needs: Sequence[Need]) -> dict[int, Place]:
    """Place jobs on their virtual clusters' GPUs, then those left on anybody's, as opportunistic there."""
    places = place_all(board, needs)
    left = [need for need in needs if need.job_id not in places and not need.is_opportunistic]
    if at.owners and left:
        places |= place_all(board, [replace(need, is_opportunistic=True) for need in left])
    return places


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
        weight=job_weight(options.tickets, options.priority),
        order=record.order,
        priority=options.priority,
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


def why_not(board: Board, need: Need, nodes: Mapping[str, NodeRecord]) -> Reason:
    """Say why a job has no place: what can never be first, then what must be waited for."""
    partitions = set(need.partitions)
    home = [site for site in board.sites.values() if not partitions or partitions & set(site.partitions)]
    right = [site for site in home if site.may_take(need)]
    never = _never(need, home, right)
    if never is not None:
        return never
    fitting = [site for site in right if site.is_large_enough(need)]
    open_ = [site for site in fitting if site.is_open]
    if _of_one_type(open_) < need.nodes:
        closed = [_state_of(nodes[site.name]) for site in fitting if not site.is_open]
        return because("NodesDown", *closed[:SHOWN], none_are=_no_node(need, "is", "are"))
    reserved = [site.name for site in open_ if site.name in need.closed]
    open_ = [site for site in open_ if site.name not in need.closed]
    if _of_one_type(open_) < need.nodes:
        return because("Reserved", names=", ".join(reserved[:SHOWN]))
    roomy = [site for site in open_ if site.has_memory(need)]
    if _of_one_type(roomy) < need.nodes:
        full = [site for site in open_ if not site.has_memory(need)]
        taken = [f"{site.name}: {site.memory_taken()} of {site.memory_mib} MiB taken" for site in full]
        facts = {"memory_mib": need.memory_mib, "none_have": _no_node(need, "has", "have")}
        return because("NoFreeMemory", *taken[:SHOWN], **facts)
    slots = [_slots_of(site, need) for site in roomy[:SHOWN]]
    return because("NoFreeSlots", *slots, gpus=need.gpus, none_have=_no_node(need, "has", "have"))


def _of_one_type(sites: Iterable[Site]) -> int:
    """The most of these nodes that have the same GPU type."""
    return max(Counter(site.gpu_type for site in sites).values(), default=0)


def _no_node(need: Need, one: str, many: str) -> str:
    if need.nodes == 1:
        return f"no node that could take it {one}"
    return f"fewer than {need.nodes} nodes of one type that could take it {many}"


def _never(need: Need, home: list[Site], right: list[Site]) -> Reason | None:
    if not home:
        return because("NoNodes", partition=",".join(need.partitions))
    if not right:
        known = ", ".join(sorted({site.gpu_type for site in home if site.gpu_type})) or "none"
        return because("NoSuchType", types=" or ".join(need.types), known=known)
    most_gpus = max(site.gpus for site in right)
    if need.gpus > most_gpus:
        return because("TooManyGpus", gpus=need.gpus, most=most_gpus)
    wide = [site for site in right if need.gpus <= site.gpus]
    if all(site.memory_mib and need.memory_mib > site.memory_mib for site in wide):
        most = max(site.memory_mib for site in wide)
        return because("TooMuchMemory", memory_mib=need.memory_mib, most=most)
    if not any(site.is_large_enough(need) for site in wide):
        return because("TooManyCpus", cpus=need.cpus, most=max(site.cpus for site in wide))
    enough = _of_one_type(site for site in wide if site.is_large_enough(need))
    if enough < need.nodes:
        return because("TooFewNodes", nodes=need.nodes, most=enough, gpus=need.gpus)
    return None


def board_of(at: Cycle, placed: list[JobRecord], ready: list[JobRecord]) -> Board:
    """Return all nodes with the placed, and what is kept for those on the move."""
    kept = [record for record in at.state.jobs.values() if record.target]
    here = [*placed, *ready, *kept]
    tickets = leaf_tickets(at.state.associations, {record.leaf for record in here})
    tickets |= leaf_tickets(at.state.associations, {r.leaf for r in here if not r.is_opportunistic})
    sites = {name: _site(at, node) for name, node in at.state.nodes.items()}
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


def _site(at: Cycle, record: NodeRecord) -> Site:
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


def _bind_unknown(at: Cycle, board: Board, placed: list[JobRecord]) -> None:
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


def _state_of(record: NodeRecord) -> str:
    words = "+".join(sorted(record.node.state)) if record.node.state else "no state"
    daemon = "" if record.has_daemon else ", its gandivad does not answer"
    why = f" ({record.node.reason})" if record.node.reason else ""
    return f"{record.node.name}: {words}{why}{daemon}"


def _slots_of(site: Site, need: Need) -> str:
    free = len(site.free_gpus(need.leaf, need.group))
    taken = sum(len(stay.gpus) for stay in site.stays.values())
    slots, whose = site.gpus * site.slots_per_gpu, f" of {told_vc(need.vc)}" if site.owners else ""
    return f"{site.name}: {taken} of {slots} slots taken, a free one on {free} GPU(s){whose}"
