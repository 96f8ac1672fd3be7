"""What must always hold, as functions that return violations: sentences, none when all is well.

Tests call them at their end, and `gandivactld --check-invariants` after each cycle (`violations`). The others
judge the nodes' books: holds are read by their fields, whatever file they come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.invariants.moves import moves_are_sound
from gandiva_slurm.engine.state.records import EngineState, JobRecord
from gandiva_slurm.engine.state.sizes import may_have, most_nodes, nodes_of
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.shares.associations import Leaf, leaf_tickets
from gandiva_slurm.slicing.groups import group_of
from gandiva_slurm.slicing.local import Gang, are_mates


class HeldInterval(Protocol):
    """A hold: GPUs of one node, from the grant until the last rank had released (as `wire.messages.Hold`).

    One that was packed has `shared_with` besides: its mate's job id.
    """

    @property
    def job_id(self) -> int: ...
    @property
    def restart(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def gpus(self) -> tuple[int, ...]: ...
    @property
    def t0_ns(self) -> int: ...
    @property
    def t1_ns(self) -> int: ...


def violations(engine: Engine) -> list[str]:
    """Check the engine after a cycle."""
    state = engine.state
    return [
        *places_follow_states(state),
        *gangs_are_whole(state),
        *slots_are_bounded(state, engine.settings.slots_per_gpu),
        *tickets_are_conserved(engine),
        *nothing_running_is_fenced(engine.state),
        *stories_follow_the_table(state),
        *moves_are_sound(state),
        *packs_are_sound(engine),
        *plan_is_whole(engine),
    ]


def places_follow_states(state: EngineState) -> list[str]:
    """A job has a node exactly in the states that have one, and always a reason for what it does."""
    found = []
    for record in state.jobs.values():
        if record.is_placed != bool(record.places):
            found.append(f"job {record.key} is {record.state} with places {record.places}")
        if not record.code or not record.text:
            found.append(f"job {record.key} is {record.state} for no reason")
    return found


def gangs_are_whole(state: EngineState) -> list[str]:
    """A placed gang has all its nodes, of one type, and on each all its GPUs, each once, all the node's.

    One that is found running is where Slurm says it is, and may have no GPUs yet.
    """
    found = []
    for record in _placed(state):
        want, nodes = record.options.elastic or record.options.gpus_per_node, nodes_of(record)
        if record.state == states.STARTING:
            types = {state.nodes[name].node.gpu_type for name in record.nodes if name in state.nodes}
            if len(record.places) != nodes or nodes > most_nodes(record) or len(types) > 1:
                found.append(f"job {record.key} starts on {record.nodes} of {types}, asked for {nodes} nodes")
        elif record.job.state == "RUNNING" and record.nodes != record.job.nodes:
            found.append(f"job {record.key} is on {record.nodes}, Slurm has it on {record.job.nodes}")
        for name, gpus in record.places.items():
            node = state.nodes.get(name)
            if not gpus and record.state in states.RESIDENT:
                continue
            if len(set(gpus)) != len(gpus) or not may_have(record, len(gpus), nodes):
                found.append(f"job {record.key} has GPUs {gpus} on {name}, asked for {want}")
            if node is not None and node.gpus and gpus and not 0 <= min(gpus) <= max(gpus) < node.gpus:
                found.append(f"job {record.key} has GPUs {gpus}, {name} has {node.gpus}")
    return found


def slots_are_bounded(state: EngineState, slots_per_gpu: int) -> list[str]:
    """No GPU has more residents than slots, where the engine placed them all (found running: as it is)."""
    residents: dict[tuple[str, int], list[JobRecord]] = {}
    for record in _placed(state):
        for name, gpus in record.places.items():
            for gpu in gpus:
                residents.setdefault((name, gpu), []).append(record)
    found = []
    for (node, gpu), records in sorted(residents.items()):
        is_ours = all(record.starts and not record.is_found for record in records)
        if len(records) > slots_per_gpu and is_ours:
            names = ", ".join(str(record.key) for record in records)
            found.append(f"GPU {gpu} of {node} has {len(records)} residents, {slots_per_gpu} slots: {names}")
    return found


def packs_are_sound(engine: Engine) -> list[str]:
    """A pack is two willing jobs of one GPU, each in no other, and one at most is on trial there."""
    state, packs = engine.state, engine.state.packs
    found, busy = [], [job_id for pack in packs for job_id in pack.jobs]
    for pack in packs:
        records = [state.jobs.get(job_id) for job_id in pack.jobs]
        if any(
            r is None or r.places != {pack.node: (pack.gpu,)} or r.options.pack == "never" for r in records
        ):
            found.append(
                f"jobs {pack.jobs} are packed on GPU {pack.gpu} of {pack.node}, and do not live there so"
            )
    on_trial = [(pack.node, pack.gpu) for pack in packs if pack.is_trial]
    if len(set(busy)) != len(busy) or len(set(on_trial)) != len(on_trial):
        found.append(f"packed {busy}, on trial {on_trial}: one is there twice")
    mates = {place.key.job_id: place.mate for name in state.nodes for place in engine.plan_jobs(name)}
    found += [
        f"job {job} is planned beside {mate}" for job, mate in mates.items() if mate and mates[mate] != job
    ]
    return found


def plan_is_whole(engine: Engine) -> list[str]:
    """What holds GPUs by the plan lives there; a GPU has one job, or two with the same GPUs."""
    jobs, found = engine.state.jobs, []
    on: dict[tuple[str, int], list[JobRecord]] = {}
    for job_id in sorted(engine.state.on):
        record = jobs.get(job_id)
        if record is None or not record.is_placed:
            found.append(f"job {job_id} is planned to hold GPUs and lives nowhere")
            continue
        for name, gpus in record.places.items():
            for gpu in gpus:
                on.setdefault((name, gpu), []).append(record)
    return found + [
        f"GPU {gpu} of {name} is planned for {', '.join(str(record.key) for record in records)}"
        for (name, gpu), records in sorted(on.items())
        if len(records) > 2 or len({tuple(sorted(record.places.items())) for record in records}) > 1
    ]


def tickets_are_conserved(engine: Engine) -> list[str]:
    """On all nodes a user has their tickets, split over the jobs of a group and the parts of those."""
    state = engine.state
    planned: dict[int, dict[str, int]] = {}
    for node in sorted({name for record in _placed(state) for name in record.nodes}):
        for place in engine.plan_jobs(node):
            planned.setdefault(place.key.job_id, {})[node] = place.tickets
    found: list[str] = []
    groups: dict[str, dict[Leaf, list[JobRecord]]] = {}
    for job_id, tickets in planned.items():
        record = engine.jobs[job_id]
        leaves = groups.setdefault(group_of(record.vc, record.is_opportunistic), {})
        leaves.setdefault(record.leaf, []).append(record)
        if tickets.keys() != record.places.keys():
            found.append(f"job {record.key} is planned on {sorted(tickets)}, its nodes are {record.nodes}")
    for _, leaves in sorted(groups.items()):
        for leaf, parts in leaf_tickets(state.associations, leaves.keys()).items():
            mine = [[*planned[record.job.job_id].values()] for record in leaves[leaf]]
            have, least = sum(map(sum, mine)), max(parts, len(mine))
            # a part has at least one, though its job has fewer than parts
            most = least + sum(len(tickets) - 1 for tickets in mine if max(tickets) == 1)
            if min(map(min, mine)) < 1 or not least <= have <= most:
                found.append(f"{leaf.user} in {leaf.account} has {parts} parts of a ticket, the jobs {have}")
    return found


def nothing_running_is_fenced(state: EngineState) -> list[str]:
    """What Slurm shows running on a node with that restart count is never fenced there."""
    found = []
    for record in state.jobs.values():
        for node in record.job.nodes:
            seen = state.sightings.get((node, record.key))
            if record.job.state == "RUNNING" and seen is not None and seen.is_fenced:
                found.append(f"job {record.key} runs on {node} and is fenced there")
    return found


def stories_follow_the_table(state: EngineState) -> list[str]:
    """Each line of a story begins where the one before ended, and goes where the table leads."""
    found = []
    for record in state.jobs.values():
        moves = [line for line in record.story if line.from_ != line.to]
        found += [
            f"job {record.key}: story goes {line.from_} -> {line.to}"
            for line in moves
            if line.to not in states.STATES[line.from_].then
        ]
        if record.story and record.story[-1].to != record.state:
            found.append(f"job {record.key} is {record.state}, its story ends in {record.story[-1].to}")
    return found


def no_job_is_lost(state: EngineState, in_slurm: Mapping[int, int]) -> list[str]:
    """Every live job of ours in Slurm (id -> restart count) is known, newest incarnation, and no other."""
    known = state.jobs | state.hidden
    live = {job_id: record for job_id, record in known.items() if record.state != states.ENDED}
    found = [f"job {job_id} is in Slurm, not known" for job_id in sorted(in_slurm.keys() - live.keys())]
    found += [f"job {job_id} is known, not in Slurm" for job_id in sorted(live.keys() - in_slurm.keys())]
    for job_id in sorted(live.keys() & in_slurm.keys()):
        if live[job_id].job.restart != in_slurm[job_id]:
            found.append(f"job {live[job_id].key}: Slurm is at restart {in_slurm[job_id]}")
    return found


def round_is_sound(gangs: Sequence[Gang], gpus: int, chosen: Sequence[JobKey]) -> list[str]:
    """One quantum of a node: known gangs, each once, whole, no GPU given twice but to the two of a pack."""
    by_key = {gang.key: gang for gang in gangs}
    found = [f"gang {key} is chosen, not resident" for key in chosen if key not in by_key]
    if len(set(chosen)) != len(chosen):
        found.append(f"a gang is chosen twice: {chosen}")
    taken: dict[int, list[Gang]] = {}
    for key in chosen:
        for gpu in by_key[key].gpus if key in by_key else ():
            others = taken.setdefault(gpu, [])
            if not 0 <= gpu < gpus or not all(are_mates(by_key[key], other) for other in others):
                found.append(f"GPU {gpu} is given to {[str(other.key) for other in others]} and {key}")
            others.append(by_key[key])
    return found


def guaranteed_go_first(
    gangs: Sequence[Gang], can_run: Collection[JobKey], forced: Collection[JobKey], chosen: Collection[JobKey]
) -> list[str]:
    """One quantum of a node: no guaranteed gang that could run is left out for an opportunistic one.

    `forced` are in whatever their class: they cannot be parked now, or a park's bound brings them back.
    """
    on = [gang for gang in gangs if gang.key in chosen]
    firm = [gang for gang in on if not gang.is_opportunistic or gang.key in forced]
    spare = [gang for gang in on if gang not in firm]
    out = [gang for gang in gangs if gang.key in can_run and gang.key not in chosen]
    return [
        f"gang {gang.key} is guaranteed and left out for {other.key}"
        for gang in out
        for other in spare
        if not gang.is_opportunistic
        and other.mask & gang.mask
        and not any(each.mask & gang.mask for each in firm)
    ]


def passes_never_fall(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """A pass stays, or rises."""
    return [
        f"the pass of {name} fell from {before[name]} to {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if after[name] < before[name]
    ]


def no_gpu_held_twice(holds: Iterable[HeldInterval]) -> list[str]:
    """One node: the holds of any GPU follow each other; it was given on only after its release.

    Two of one pack, each of which says that it shares with the other, hold it at the same time.
    """
    by_gpu: dict[int, list[HeldInterval]] = {}
    found = []
    for hold in holds:
        if hold.t1_ns < hold.t0_ns or not hold.gpus:
            found.append(f"hold of {_name(hold)} from {hold.t0_ns} to {hold.t1_ns} on GPUs {hold.gpus}")
        for gpu in hold.gpus:
            by_gpu.setdefault(gpu, []).append(hold)
    for gpu, mine in sorted(by_gpu.items()):
        mine.sort(key=lambda hold: (hold.t0_ns, hold.t1_ns))
        active: list[HeldInterval] = []
        for second in mine:
            active = [first for first in active if second.t0_ns < first.t1_ns]
            found += [
                f"GPU {gpu}: {_name(second)} was given it {(first.t1_ns - second.t0_ns) / 1e6:.3f} ms "
                f"before {_name(first)} released"
                for first in active
                if not _are_packed(first, second)
            ]
            active.append(second)
    return found


def packs_are_of_two(holds: Iterable[HeldInterval]) -> list[str]:
    """One node: a hold that says that it shared its GPUs did so with one that says the same, for as long."""
    shared: dict[tuple[int, int], int] = {}
    for hold in holds:
        if _shared_with(hold):
            pair = (hold.job_id, _shared_with(hold))
            shared[pair] = shared.get(pair, 0) + (hold.t1_ns - hold.t0_ns) * len(hold.gpus)
    return [
        f"job {one} shared with job {two} for {held} GPU-ns, that one with it for {shared.get((two, one), 0)}"
        for (one, two), held in sorted(shared.items())
        if held != shared.get((two, one), 0)
    ]


def one_incarnation_at_a_time(nodes: Mapping[str, Sequence[HeldInterval]]) -> list[str]:
    """All nodes: no two incarnations of a job held GPUs at the same time."""
    by_job: dict[int, list[tuple[int, int, int, str]]] = {}
    for node, holds in nodes.items():
        for hold in holds:
            by_job.setdefault(hold.job_id, []).append((hold.t0_ns, hold.t1_ns, hold.restart, node))
    found = []
    for job_id, rows in sorted(by_job.items()):
        newest_end = (0, -1, "")
        for t0_ns, t1_ns, restart, node in sorted(rows):
            if t0_ns < newest_end[0] and restart != newest_end[1]:
                other = f"{newest_end[1]} on {newest_end[2]}"
                found.append(f"job {job_id}: restarts {other} and {restart} on {node} at once")
            newest_end = max(newest_end, (t1_ns, restart, node))
    return found


def every_gpu_second_is_charged_once(
    holds: Iterable[HeldInterval], charged_ns: Mapping[str, int], tolerance_ns: int = 0
) -> list[str]:
    """What each user was charged is what their gangs held, GPU by GPU; of a pack each is charged half."""
    halves: dict[str, int] = {}
    for hold in holds:
        held = (hold.t1_ns - hold.t0_ns) * len(hold.gpus)
        halves[hold.user] = halves.get(hold.user, 0) + (held if _shared_with(hold) else 2 * held)
    return [
        f"{user} held {halves.get(user, 0) / 2:.1f} GPU-ns and was charged {charged_ns.get(user, 0)}"
        for user in sorted(halves.keys() | charged_ns.keys())
        if abs(halves.get(user, 0) - 2 * charged_ns.get(user, 0)) > 2 * tolerance_ns
    ]


def parks_are_bounded(parked_ns: Mapping[JobKey, Sequence[int]], bound_ns: int) -> list[str]:
    """No single park, nor freeze, of any incarnation lasted longer than its bound."""
    return [
        f"job {key} was parked {longest / 1e9:.1f} s, the bound is {bound_ns / 1e9:.1f} s"
        for key, lengths in sorted(parked_ns.items())
        if (longest := max(lengths, default=0)) > bound_ns
    ]


def _placed(state: EngineState) -> list[JobRecord]:
    return sorted((r for r in state.jobs.values() if r.is_placed), key=lambda record: record.order)


def _shared_with(hold: HeldInterval) -> int:
    return int(getattr(hold, "shared_with", 0))


def _are_packed(one: HeldInterval, two: HeldInterval) -> bool:
    is_mutual = _shared_with(one) == two.job_id and _shared_with(two) == one.job_id
    return is_mutual and set(one.gpus) == set(two.gpus)


def _name(hold: HeldInterval) -> str:
    return f"job {hold.job_id}.{hold.restart} of {hold.user}"
