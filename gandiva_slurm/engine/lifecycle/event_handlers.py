"""What news from Slurm and from the nodes does to the records. Decisions wait for the cycle's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gandiva_slurm.engine.lifecycle import forgotten
from gandiva_slurm.engine.lifecycle.own_checkpoint import ended_late, is_coming_back, tell_moved
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.packs import pack_of
from gandiva_slurm.engine.state.records import (
    OWNER_HOLD_S,
    SECOND_NS,
    JobRecord,
    NodeRecord,
    Sighting,
    named_jobs,
)
from gandiva_slurm.engine.state.sizes import with_its_memory
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.reason import UNBORN, Reason, because, of_node
from gandiva_slurm.model.snapshot import FINISHED, SlurmJob, is_reused

#: How an exit code ends when slurmd could not open a job's files: its error 4021, read as a wait status.
NO_OUTPUT = ":53"
#: Slurm's words for a job that has its node. A job COMPLETING is finished, or already requeued, below that
#: word: wait for the next. So with unknown words: such a job is alive, and nothing is done to it.
ON_NODE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})

#: A requeued job waits so long: slurmd remembers the killed incarnation by whole seconds and refuses a new
#: one that starts in the same second, which Slurm then fails (seen on 22.05.8).
REQUEUE_PAUSE_NS = 2 * SECOND_NS

#: Slurm's words for a job requeued into a hold that is not ours: those show as JobHeldAdmin.
REQUEUED_HELD = frozenset({"JobHeldUser", "job requeued in held state"})

#: What a node means when it names no reason.
_USUAL = {
    states.RUNNING: "Running",
    states.SUSPENDING: "Parking",
    states.SUSPENDED: "Parked",
    states.RESUMING: "Resuming",
}


def job_seen(at: Cycle, event: ev.JobSeen) -> None:
    """Take Slurm's picture of a job; one of an older incarnation, or of a job not ours, changes nothing."""
    job = event.job
    at.state.has_read_slurm = True
    record = _of_this_job(at, job)
    if job.options is None or (record is not None and job.restart < record.job.restart):
        return
    if record is not None and record.state == states.ENDED and job.state == "COMPLETING":
        return
    if job.state in FINISHED:
        job_gone(at, ev.JobGone(job.job_id, job.state, job.end_s, job.exit_code, job.restart))
        return
    if record is None:
        record = JobRecord(job, since_ns=at.now_ns, submitted_s=job.submit_s)
        at.state.jobs[job.job_id] = record
    was, record.job = record.job, with_its_memory(job, record.job)
    record.travels.first_run_ns = record.travels.first_run_ns or job.start_s * SECOND_NS
    if record.code == "Limit" and _asks(was) != _asks(job):
        record.retry_ns = 0
    if 0 < job.eligible_s < OWNER_HOLD_S:
        record.user_hold_lifted = False
    if job.restart > was.restart:
        tell_moved(at, record, JobKey(was.job_id, was.restart))
        record.travels.begin_anew()
    if record.state == states.ENDED or (record.is_placed and job.restart > was.restart):
        _give_back(at, record)
    if job.restart > was.restart:
        is_held_by_user = job.is_held and job.reason in REQUEUED_HELD
        record.requeue_hold_s = job.eligible_s if is_held_by_user else 0
    if job.state == "PENDING":
        _pending(at, record)
    elif job.state in ON_NODE and job.nodes:
        _on_node(at, record)


def _of_this_job(at: Cycle, job: SlurmJob) -> JobRecord | None:
    """The record of a job; what another job of its number has left is none of its."""
    record = at.state.jobs.get(job.job_id)
    if record is None or not is_reused(job, record.job.user, record.job.submit_s):
        return record
    _end(at, replace(record.job, state="", end_s=0))
    del at.state.jobs[job.job_id]
    return None


def _asks(job: SlurmJob) -> tuple[object, ...]:
    """What of a job a limit may be about, and its owner may change."""
    return (job.time_limit_s, job.qos, job.account, job.partition)


def job_gone(at: Cycle, event: ev.JobGone) -> None:
    """The job is finished, or Slurm does not know it any more."""
    at.state.has_read_slurm = True
    record = at.state.jobs.get(event.job_id)
    if record is not None and forgotten.take_end(at, record, event):
        return
    if record is not None and ended_late(at, record, event):
        record.travels.is_moving, record.travels.asked_ns = True, 0
        record.move(states.CHECKPOINTING, because("EndedLate", exit=event.exit_code), at.now_ns)
    if record is not None and is_coming_back(record, event.state):
        record.job = replace(record.job, state=event.state, exit_code=event.exit_code)
    elif record is not None:
        _end(at, replace(record.job, state=event.state, end_s=event.end_s, exit_code=event.exit_code))


def node_seen(at: Cycle, event: ev.NodeSeen) -> None:
    """Take Slurm's picture of a node; its GPUs are its slots over the slots of one."""
    at.state.has_read_slurm = True
    known = at.state.nodes.get(event.node.name)
    gpus = event.node.slots // at.settings.slots_per_gpu
    has_daemon, card_bytes = (known.has_daemon, known.card_bytes) if known is not None else (True, 0)
    at.state.nodes[event.node.name] = NodeRecord(event.node, gpus, has_daemon, card_bytes)


def node_gone(at: Cycle, event: ev.NodeGone) -> None:
    """The node is no longer ours; what Slurm still shows running there stays on record."""
    at.state.nodes.pop(event.name, None)
    for node, key in [where for where in at.state.sightings if where[0] == event.name]:
        resident_gone(at, ev.ResidentGone(node, key))


def shares_seen(at: Cycle, event: ev.SharesSeen) -> None:
    """Take the association tree."""
    at.state.associations = event.associations


def bounds_seen(at: Cycle, event: ev.BoundsSeen) -> None:
    """Take what bounds time: partitions and reservations."""
    at.state.bounds = event.bounds


def priority_asked(at: Cycle, event: ev.PriorityAsked) -> None:
    """Take a job's new priority; it keeps it in all its incarnations."""
    record = at.state.jobs.get(event.job_id)
    if record is not None:
        record.asked_priority = event.priority


def class_asked(at: Cycle, event: ev.ClassAsked) -> None:
    """Take a job's new class, running or not; as opportunistic it begins to wait anew (`promotion`)."""
    record = at.state.jobs.get(event.job_id)
    if record is not None and record.job_class != event.job_class:
        record.asked_class, record.is_promoted, record.without_ns = event.job_class, False, 0


def daemon_seen(at: Cycle, event: ev.DaemonSeen) -> None:
    """Note whether a node's daemon answers."""
    node = at.state.nodes.get(event.node)
    if node is not None:
        node.has_daemon = event.alive


def resident_seen(at: Cycle, event: ev.ResidentSeen) -> None:
    """Take a node's word on a job's state and GPUs, where Slurm shows that incarnation running there."""
    sighting = at.state.sightings.setdefault((event.node, event.key), Sighting())
    sighting.gpus = tuple(sorted(event.gpus))
    sighting.is_unborn = event.state == states.SUSPENDED and event.reason in UNBORN
    new, old = event.measured, sighting.measured
    sighting.measured = replace(
        new,
        rate_alone=new.rate_alone or old.rate_alone,
        card_bytes=new.card_bytes or old.card_bytes,
        peak_bytes=new.peak_bytes or old.peak_bytes,
        # the next park keeps as much
        held_bytes=new.held_bytes if event.state == states.SUSPENDED else old.held_bytes,
    )
    home = at.state.nodes.get(event.node)
    if home is not None and new.card_bytes:
        home.card_bytes = new.card_bytes
    if event.state in states.SLICED:
        sighting.state, sighting.reason, sighting.detail = event.state, event.reason, event.detail
    record = at.state.jobs.get(event.key.job_id)
    if record is None or record.key != event.key or event.node not in record.places:
        return
    take_reported_gpus(at, record)
    _learn_rates(at, record, event.node, event.measured)
    if record.state in states.SLICED and event.state in states.SLICED:
        state, reason = _whole_state(at, record)
        _slice(record, state, _reworded(at, record, reason), at.now_ns)


def _reworded(at: Cycle, record: JobRecord, reason: Reason) -> Reason:
    """What a node says of a packed job, in the words of the plan."""
    pack = pack_of(at.state.packs, record.job.job_id) if reason.code == "Packed" else None
    return reason if pack is None else pack.reason(record.job.job_id)


def _learn_rates(at: Cycle, record: JobRecord, node: str, measured: Measured) -> None:
    """Take over what a job was measured at: alone, and beside the job it is packed with."""
    home, mate = at.state.nodes.get(node), at.state.jobs.get(measured.mate)
    if home is None:
        return
    rates, kind, gpus = at.state.rates, home.node.gpu_type, sum(map(len, record.places.values()))
    if measured.rate_alone:
        rates.learn_alone((record.model, gpus, kind, len(record.places) == 1), measured.rate_alone, 1.0)
    if measured.rate_packed and mate is not None:
        rates.learn_packed((record.model, mate.model, kind), measured.rate_packed, 1.0)


def take_reported_gpus(at: Cycle, record: JobRecord) -> None:
    """Believe the node on a running job's GPUs: its processes are bound to them, whatever was planned."""
    if record.state not in states.RESIDENT:
        return
    for name in record.nodes:
        sighting = at.state.sightings.get((name, record.key))
        node = at.state.nodes.get(name)
        if sighting is not None and node is not None and sighting.gpus and max(sighting.gpus) < node.gpus:
            record.places[name] = sighting.gpus


def resident_gone(at: Cycle, event: ev.ResidentGone) -> None:
    """The node has no process of this incarnation any more: what it has not told yet was as planned."""
    sighting = at.state.sightings.pop((event.node, event.key), None)
    record = at.state.jobs.get(event.key.job_id)
    if sighting is not None and record is not None:
        record.held_ns += sighting.planned_ns


def action_done(at: Cycle, event: ev.ActionDone) -> None:
    """A start that Slurm refused is undone; other failures show in the next picture and are tried again."""
    record = at.state.jobs.get(job_of(event.action_id))
    if not event.error or record is None or record.state != states.STARTING:
        return
    if event.action_id == start_id(record):
        start_failed(at, record, event.error, is_busy=event.retry)


def policy_late(at: Cycle, event: ev.PolicyLate) -> None:
    """The policy took too long when this cycle was recorded."""
    at.is_late = True


def clock_skew(at: Cycle, event: ev.ClockSkew) -> None:
    """The system's clock was set: Slurm's times are of another clock than before."""
    at.state.skew_ns = event.skew_ns


def start_failed(at: Cycle, record: JobRecord, why: str, is_busy: bool = False) -> None:
    """Take the place back and wait before the next try: twice as long after each failure, `busy` aside."""
    record.failures += not is_busy
    wait_ns = at.settings.retry_ns << min(max(0, record.failures - 1), 30)
    wait_ns = min(wait_ns, at.settings.longest_retry_ns)
    record.retry_ns = at.now_ns + wait_ns
    facts = {"node": ",".join(record.nodes), "why": why, "wait_s": round(wait_ns / 1e9, 1)}
    evidence = f"start {record.starts}, failure {record.failures} in a row"
    record.move(states.HELD, because("StartFailed", evidence, **facts), at.now_ns)
    hold_again(at, record)


def hold_again(at: Cycle, record: JobRecord) -> None:
    """Have a pending job held again, for the reason on record."""
    record.hold_asked_ns = at.now_ns
    action_id = f"hold:{record.key}:{at.now_ns}"
    at.actions.append(HoldAgain(action_id, record.key, record.code, record.text))


def start_id(record: JobRecord) -> str:
    """The id of its latest start."""
    return f"start:{record.key}:{record.starts}"


def job_of(action_id: str) -> int:
    """The job an action was for; -1 when the id is none of ours."""
    parts = action_id.split(":")
    head = parts[1].partition(".")[0] if len(parts) == 3 else ""
    return int(head) if head.isdecimal() else -1


def end_for_good(at: Cycle, record: JobRecord) -> None:
    """End a job that could not be requeued after its end."""
    _end(at, record.job)


def _end(at: Cycle, job: SlurmJob) -> None:
    record = at.state.jobs.get(job.job_id)
    if record is None or record.state == states.ENDED:
        return
    record.job = job
    record.move(states.ENDED, _ending(job, record.nodes or job.nodes), at.now_ns)
    for other in at.state.jobs.values():  # who waits for it is tried again at once
        if other.code == "Dependency" and _may_wait_for(other.job, job):
            other.retry_ns = 0
        if other.code == "Limit" and _may_share_limit(other.job, job):
            other.retry_ns = 0


def _ending(job: SlurmJob, nodes: Sequence[str]) -> Reason:
    if job.state == "FAILED" and job.exit_code.endswith(NO_OUTPUT):
        return because("NoOutput", nodes=",".join(nodes) or "its node")
    return because("Ended", state=job.state or "gone from Slurm")


def _may_wait_for(waiting: SlurmJob, ended: SlurmJob) -> bool:
    is_twin = waiting.user == ended.user and waiting.name == ended.name
    return ended.job_id in named_jobs(waiting.dependency) or (is_twin and "singleton" in waiting.dependency)


def _may_share_limit(waiting: SlurmJob, ended: SlurmJob) -> bool:
    return waiting.account == ended.account or waiting.user == ended.user or waiting.qos == ended.qos


def _give_back(at: Cycle, record: JobRecord) -> None:
    """A new incarnation: whatever was tried before counts no more. One on the move keeps its target."""
    restart, nodes = f"restart {record.job.restart}", record.nodes
    if record.state == states.CHECKPOINTING and not record.target:
        record.travels.arrive()
        record.travels.left_ns = 0
        record.move(states.HELD, because("MadeWay", restart), at.now_ns)
    elif record.state == states.CHECKPOINTING:
        record.move(states.REQUEUED, because("MovedOut", restart, to=record.target_text), at.now_ns)
    else:
        if record.travels.is_moving:  # its target's node is lost, or its owner asked for it: no failed move
            record.travels.give_up()
        elif not any(at.state.nodes[name].is_down for name in nodes if name in at.state.nodes):
            record.travels.kept_type = ""  # its owner's wish: its image is deleted
        record.travels.forget_unfit()  # whether there is an image of it yet is not known
        record.move(states.HELD, because("Requeued", restart), at.now_ns)
    record.failures = record.hold_asked_ns = 0
    may_return = not record.target or not record.target.keys().isdisjoint(nodes)
    record.retry_ns = at.now_ns + (REQUEUE_PAUSE_NS if may_return else 0)


def _pending(at: Cycle, record: JobRecord) -> None:
    if record.is_placed and record.state != states.STARTING:
        _give_back(at, record)
    if record.state in states.WAITING and not record.job.is_held and not record.hold_asked_ns:
        record.user_hold_lifted = record.user_hold_lifted or record.is_owner_held
        if record.code not in ("Requeued", "MovedOut", "MadeWay"):
            record.stay(because("Released", f"priority {record.job.priority}"), at.now_ns)
        hold_again(at, record)
    if record.job.is_held and record.state in states.WAITING:
        record.hold_asked_ns = 0


def _on_node(at: Cycle, record: JobRecord) -> None:
    nodes = record.job.nodes
    was_running = record.is_placed and record.state != states.STARTING
    if was_running and record.nodes == nodes:
        return
    places = {node: record.places.get(node, ()) for node in nodes}
    if was_running:
        _give_back(at, record)
    is_ours = record.state == states.STARTING
    record.is_found = not is_ours or record.nodes != nodes
    code = "Started" if is_ours else "Adopted"
    record.move(states.RUNNING, because(code, node=",".join(nodes)), at.now_ns)
    record.places = places
    record.failures = record.retry_ns = record.hold_asked_ns = 0
    record.user_hold_lifted = False


def _whole_state(at: Cycle, record: JobRecord) -> tuple[str, Reason]:
    """The state of a job of parts, and why: RUNNING or SUSPENDED when all its nodes say so, else as it moves.

    A node that has said nothing yet is not counted.
    """
    told = [at.state.sightings.get((name, record.key)) for name in record.nodes]
    parts = [sighting for sighting in told if sighting is not None and sighting.state]
    found = {part.state for part in parts}
    if len(found) == 1:
        (state,) = found
    elif found & {states.SUSPENDING, states.RESUMING}:
        state = states.SUSPENDING if states.SUSPENDING in found else states.RESUMING
    else:
        leaves = record.state in (states.RUNNING, states.SUSPENDING)
        state = states.SUSPENDING if leaves else states.RESUMING
    return state, lost_node(at, record) or _reason_of(state, parts)


def _reason_of(state: str, parts: list[Sighting]) -> Reason:
    """The most telling word of those parts that are where the job is."""
    usual = _USUAL[state]
    words = [(part.reason or usual, part.detail) for part in parts if part.state == state]
    return of_node(*next((word for word in words if word[0] != usual), (words or [(usual, "")])[0]))


def lost_node(at: Cycle, record: JobRecord) -> Reason | None:
    """Say which of a job's nodes is down; None when none is."""
    nodes = [at.state.nodes.get(name) for name in record.nodes]
    down = next((node for node in nodes if node is not None and node.is_down), None)
    return because("NodeDown", node=down.node.name) if down else None


def _slice(record: JobRecord, to: str, reason: Reason, now_ns: int) -> None:
    if to == states.RUNNING:
        record.without_ns = 0
    if to != record.state:
        record.move(to, reason, now_ns)
    else:
        record.stay(reason, now_ns)
