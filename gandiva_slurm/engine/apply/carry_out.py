"""A policy's plan made true: the difference between it and the world becomes starts, moves and leaves.

A job of the plan that lives there holds its GPUs from now on; one that lives elsewhere leaves for there; one
that lives nowhere is started. All others are parked where they live. Where a comer finds no slot or no
memory, jobs that are parked there and can be saved leave: those parked longest first, but the last of a user
there after the others. The comer waits until they have left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from gandiva_slurm.engine.apply.crowding import no_room
from gandiva_slurm.engine.apply.led_packs import note_packs
from gandiva_slurm.engine.apply.pending_reason import no_place
from gandiva_slurm.engine.apply.picture import Picture, Places, may_leave
from gandiva_slurm.engine.lifecycle.moving import begin_move, lost_target
from gandiva_slurm.engine.lifecycle.placing import (
    bind,
    need_now,
    ready_to_start,
    site_of,
    start,
    tell,
)
from gandiva_slurm.engine.lifecycle.unrestored import unfit_or
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.engine.state.sizes import is_elastic
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.needs import Need
from gandiva_slurm.policy.placement.sites import NodeGpus, Place
from gandiva_slurm.policy.port import Plan, View

#: Of a GPU, or of a node as a whole.
Spot = tuple[str, int]
_WHOLE = -1


def placeable(at: Cycle) -> dict[int, JobRecord]:
    """Return the jobs that wait for room alone, and could be placed; tell the others what they wait for."""
    bind(at)
    ready = ready_to_start(at)
    sites = [site_of(node, at.settings.cells) for node in at.state.nodes.values()] if ready else []
    known: dict[tuple[object, ...], Reason | None] = {}
    for job_id, record in [*ready.items()]:
        if record.state != states.HELD:
            continue
        need = _least(at, record)
        if need.shape not in known:
            known[need.shape] = no_place(sites, need, at.state.nodes)
        nowhere = known[need.shape]
        if nowhere is not None:
            tell(at, record, unfit_or(record, nowhere))
            del ready[job_id]
        if nowhere is not None or lost_target(at, record):
            record.target = {}
    return ready


def _least(at: Cycle, record: JobRecord) -> Need:
    """What a job asks of a place at the least."""
    need = need_now(at, record)
    return replace(need, gpus=record.options.sizes[0], nodes=1) if is_elastic(record) else need


def carry_out(at: Cycle, picture: Picture, view: View, plan: Plan, ready: Mapping[int, JobRecord]) -> None:
    """Do what a plan asks for; `ready`: the jobs that wait for room alone."""
    jobs, wanted = at.state.jobs, {job_id: picture.places(gpus) for job_id, gpus in plan.runs.items()}
    comers = [jobs[job_id] for job_id, places in wanted.items() if _must_come(jobs[job_id], places)]
    starters = [record for record in ready.values() if record.target]
    if comers:
        starters += _make_way(at, comers, wanted)
    if starters:
        _start(at, starters)
    take_turns(at, wanted)
    _tell_waiting(at, picture, view, [each for each in ready.values() if each.state == states.HELD], wanted)


def take_turns(at: Cycle, wanted: Mapping[int, Places]) -> None:
    """Have those of a plan hold their GPUs that live there."""
    jobs = at.state.jobs
    at.state.on = {job_id for job_id, places in wanted.items() if jobs[job_id].places == places}
    at.state.followed_ns = at.now_ns if at.state.on else 0
    note_packs(at)


def _tell_waiting(
    at: Cycle, picture: Picture, view: View, waiting: Sequence[JobRecord], wanted: Mapping[int, Places]
) -> None:
    """Say of each what it waits for: for others to leave, for a slot or memory beside those, or its turn."""
    eligibility = Eligibility(view) if waiting else None
    known: dict[tuple[object, ...], Reason | None] = {}
    for record in waiting:
        job_id, reason = record.job.job_id, None
        if job_id in wanted:
            reason = because("NoRoomYet")
        elif eligibility is not None and job_id in view.jobs:
            job, need = view.jobs[job_id], _least(at, record)
            key = (*need.shape, job.hosts, job.can_migrate, job.migrations, job.restart_ns)
            if key not in known:
                known[key] = no_room(picture, eligibility, job, need)
            reason = known[key]
        tell(at, record, reason or because("WaitingTurn"))


def _must_come(record: JobRecord, places: Places) -> bool:
    """True when a job is to be where it does not live, and is not on its way yet."""
    if record.target or record.state == states.STARTING:
        return False
    return record.state in (states.HELD, states.CHECKPOINTING) or record.places != places


def _make_way(at: Cycle, comers: Sequence[JobRecord], wanted: Mapping[int, Places]) -> list[JobRecord]:
    """Have comers leave for where they are to be, and others make way; return those that wait to be started.

    Room is what there is when all that leave have left.
    """
    movers = {record.job.job_id for record in comers if record.state in states.SLICED}
    room = Room(at, lambda record: not _is_leaving(record) and record.job.job_id not in movers)
    starters = []
    for record in sorted(comers, key=lambda record: record.order):
        job_id, leavers = record.job.job_id, room.make(at, record, wanted[record.job.job_id], wanted.keys())
        if leavers is None:
            if job_id in movers:
                room.take(record, record.places)
            continue
        for leaver in leavers:
            room.leave(leaver)
            begin_move(at, leaver, {}, f"job {job_id} needs its place", "MakingWay")
        room.take(record, wanted[job_id])
        if record.state in states.SLICED:
            _leave_for(at, record, wanted[job_id])
            continue
        record.target = dict(wanted[job_id])
        if record.state == states.HELD and record.retry_ns <= at.now_ns:
            starters.append(record)
    return starters


def _leave_for(at: Cycle, record: JobRecord, places: Places) -> None:
    """Have a job go on elsewhere, or with another number of GPUs."""
    had, has = (sum(map(len, each.values())) for each in (record.places, places))
    if had == has:
        return begin_move(at, record, places, "its turn has come there")
    why = "the others are idle" if has > had else "others need them"
    code = "Growing" if has > had else "Shrinking"
    over = "" if len(places) == len(record.places) else f" on {len(places)} node(s)"
    begin_move(at, record, places, f"{has} GPU(s){over} instead of {had}: {why}", code)


def _start(at: Cycle, starters: Sequence[JobRecord]) -> None:
    """Start those for whom there is room by now; those for whom nobody makes any get another place."""
    now, soon = Room(at, lambda record: True), Room(at, lambda record: not _is_leaving(record))
    for record in sorted(starters, key=lambda record: record.order):
        if now.has(record, record.target):
            start(at, record, Place(tuple(NodeGpus(*part) for part in record.target.items())))
        elif record.state == states.HELD and not soon.has(record, record.target):
            record.target = {}


class Room:
    """Slots and memory of all nodes."""

    def __init__(self, at: Cycle, counts: Callable[[JobRecord], bool]) -> None:
        """Count what those take that live somewhere, as far as they count; else what is kept for them."""
        self._settings, self._nodes = at.settings, at.state.nodes
        #: by GPU and by node: those that are there
        self._there: dict[Spot, dict[int, JobRecord]] = {}
        for record in at.state.jobs.values():
            if record.is_placed and counts(record):
                self.take(record, record.places)
            elif record.target:
                self.take(record, record.target)
        for record in at.state.hidden.values():
            self.take(record, record.places)

    def take(self, record: JobRecord, places: Places) -> None:
        """A job is to live there."""
        for spot in _spots(places):
            self._there.setdefault(spot, {})[record.job.job_id] = record

    def leave(self, record: JobRecord) -> None:
        """A job is to live there no more."""
        for spot in _spots(record.places):
            self._there[spot].pop(record.job.job_id, None)

    def has(self, record: JobRecord, places: Places) -> bool:
        """True when there is a slot on each of these GPUs, and memory on their nodes."""
        return all(self._over(record, spot) <= 0 for spot in _spots(places))

    def make(
        self, at: Cycle, comer: JobRecord, places: Places, planned: Set[int]
    ) -> list[JobRecord] | None:
        """Return those that must leave for one that comes, in that order; None: there is no room."""
        leavers: dict[int, JobRecord] = {}
        for spot in _spots(places):
            over, here = self._over(comer, spot), self._there.get(spot, {})
            over -= sum(_taken(leavers[job_id], spot) for job_id in leavers.keys() & here.keys())
            if over <= 0:
                continue
            parked = [each for job_id, each in here.items() if job_id not in planned | leavers.keys()]
            parked.sort(key=lambda each: (each.job.job_id in at.state.on, each.since_ns, each.order))
            users = Counter(each.job.user for each in here.values())
            parked.sort(key=lambda each: users[each.job.user] == 1)
            for each in parked:
                if over > 0 and may_leave(at, each) and _taken(each, spot):
                    leavers[each.job.job_id] = each
                    over -= _taken(each, spot)
            if over > 0:
                return None
        return [*leavers.values()]

    def _over(self, comer: JobRecord, spot: Spot) -> int:
        """How much is lacking there, in slots or MiB."""
        node, gpu = spot
        here = self._there.get(spot, {})
        others = [each for job_id, each in here.items() if job_id != comer.job.job_id]
        if gpu != _WHOLE:
            return len(others) + 1 - self._settings.slots_per_gpu
        most_mib = self._nodes[node].node.memory_mib
        return sum(_taken(each, spot) for each in (*others, comer)) - most_mib if most_mib else 0


def _spots(places: Places) -> Iterator[Spot]:
    for node, gpus in places.items():
        yield (node, _WHOLE)
        for gpu in gpus:
            yield (node, gpu)


def _taken(record: JobRecord, spot: Spot) -> int:
    """What a job takes of a GPU's slots, or of a node's memory."""
    return record.job.memory_mib if spot[1] == _WHOLE else 1


def _is_leaving(record: JobRecord) -> bool:
    return record.state == states.CHECKPOINTING
