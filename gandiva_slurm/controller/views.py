"""What users are shown: rows made of the engine's records and the nodes' reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.accounting.queries import OpenHold
from gandiva_slurm.config import NS_PER_S
from gandiva_slurm.controller.nodes import NodeLink
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.lifecycle import (
    draining,
    idleness,
    moves_told,
    moving,
    own_files,
    owners,
    promotion,
    time_limits,
    unrestored,
)
from gandiva_slurm.engine.state import cells, packs, sizes
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import JobRecord, NodeRecord
from gandiva_slurm.engine.state.sizes import gpus_of, nodes_of
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import Reason
from gandiva_slurm.slurm.jobs import fold_nodes
from gandiva_slurm.wire.messages import NodeReport, Resident

#: States of a node as `gandiva nodes` shows them.
UP, SILENT, DOWN, CLOSED = "up", "silent", "down", "drain"
#: Slurm's base states come first when a node's words are joined.
_BASE = ("IDLE", "MIXED", "ALLOCATED", "DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVAL")

Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """All that a view may look at."""

    engine: Engine
    links: Mapping[str, NodeLink]
    reports: Mapping[str, NodeReport]
    #: what is wrong with the policy's decisions now
    troubles: tuple[str, ...] = ()
    #: this moment, by the clock of the engine's cycles
    now_ns: int = 0

    @property
    def cycle(self) -> Cycle:
        """This moment, as the engine's rules are asked."""
        return Cycle(self.engine.state, self.engine.settings, self.now_ns)

    def residents(self, record: JobRecord) -> dict[str, Resident]:
        """Return what each of its nodes says of a job, as far as it says anything of this incarnation."""
        reports = {name: self.reports[name] for name in record.nodes if name in self.reports}
        return {
            name: item
            for name, report in reports.items()
            for item in report.residents
            if _key(item) == record.key
        }

    def open_holds(self) -> list[OpenHold]:
        """Return the holds that go on, by the last reports the ledger has."""
        return [
            OpenHold(report.node, JobKey(hold.job_id, hold.restart), hold.user, hold.gpus, *_span(hold))
            for report in self.reports.values()
            for hold in report.holds
            if hold.seq == 0
        ]


def in_order(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return jobs as they were submitted."""
    return sorted(records, key=lambda record: record.order)


def picked(jobs: Mapping[int, JobRecord], wanted: frozenset[int] | None) -> Iterable[JobRecord]:
    """Return the jobs with these numbers, an array's being all its tasks; None: all jobs.

    All are looked through only for a number that is an array's, or nobody's.
    """
    if wanted is None:
        return jobs.values()
    found = {number: jobs[number] for number in wanted if number in jobs}
    arrays = {number for number in wanted if number not in found or found[number].job.array_job_id == number}
    if arrays:
        found |= {number: each for number, each in jobs.items() if each.job.array_job_id in arrays}
    return found.values()


def queue_rows(world: World, records: Iterable[JobRecord], shares: Mapping[JobKey, float]) -> list[Row]:
    """Return a row for each of these jobs; `shares` are parts of their nodes' GPU time."""
    return [_queue_row(record, world, shares) for record in records]


def why_row(world: World, record: JobRecord, with_story: bool) -> Row:
    """Return the dominant reason of a job's state, what proves it, and what will change it."""
    skew_s = world.engine.state.skew_ns / NS_PER_S
    story = [
        {"t_s": line.t_s + skew_s, "from": line.from_, "to": line.to, "code": line.code, "text": line.text}
        for line in record.story
    ]
    reason = _reason(world, record)
    return {
        "job_id": record.job.job_id,
        "state": record.state,
        "code": reason.code,
        "sentence": reason.text,
        "evidence": [*reason.evidence, *_evidence(world, record)],
        "next": reason.next,
        "story": story if with_story else [],
    }


def node_rows(world: World) -> list[Row]:
    """Return a row a node."""
    return [_node_row(world, name, record) for name, record in sorted(world.engine.nodes.items())]


def _queue_row(record: JobRecord, world: World, shares: Mapping[JobKey, float]) -> Row:
    """Return a job's row."""
    reason, job, options = _reason(world, record), record.job, record.options
    homes = [world.engine.nodes.get(name) for name in record.nodes]
    kinds = [home.node.gpu_type for home in homes if home is not None]
    return {
        "job_id": job.job_id,
        "array_job_id": job.array_job_id or None,
        "array_task_id": job.array_task_id,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "state": record.state,
        "gpus": gpus_of(record),
        "type": kinds[0] if kinds else options.gpu_type,
        "node": fold_nodes(record.nodes),
        "gpu_ids": [gpu for gpus in record.places.values() for gpu in gpus],
        "places": [{"node": name, "gpus": list(gpus)} for name, gpus in record.places.items()],
        "nodes": nodes_of(record),
        "share": shares.get(record.key, 0.0) if record.places else None,
        **(_seen([*world.residents(record).values()]) if record.places else _UNSEEN),
        "reason": reason.code,
        "detail": reason.text,
        "tickets": options.tickets,
        "restart": job.restart,
        "submit_s": float(job.submit_s) or None,
        "start_s": float(job.start_s) or None if job.state != "PENDING" else None,
        "moves_by": moving.moves_by(world.engine.state, record) or None,
    }


def _seen(seen: Sequence[Resident]) -> Row:
    """Return what the nodes of a job say of it."""
    return {
        "rate": min((item.rate for item in seen), default=None),
        "parked_s": max((item.parked_ns / NS_PER_S for item in seen), default=None),
        "suspends": max((item.suspends for item in seen), default=0),
        "reaims": max((item.reaims for item in seen), default=0),
        "off_boundary": max((item.off_boundary for item in seen), default=0),
        "steps": max((item.steps for item in seen), default=0),
        "world": max((item.world for item in seen), default=0),
        "ranks": sum(item.ranks for item in seen),
    }


#: The same of a job that is on no node.
_UNSEEN = _seen(())


def _reason(world: World, record: JobRecord) -> Reason:
    """The dominant reason: whatever a job does meanwhile, that it is set aside."""
    aside = world.engine.state.aside.get(record.job.job_id)
    if aside is not None:
        return aside.reason
    return idleness.reason_of(world.engine.state, record) or record.reason


def _evidence(world: World, record: JobRecord) -> Iterable[str]:
    job = record.job
    yield f"Slurm: {job.state}" + (f", {job.reason}" if job.reason not in ("", "None") else "")
    if record.state == states.ENDED:
        yield f"exit code {job.exit_code}"
    engine = world.engine
    if record.state != states.ENDED:
        yield from world.troubles
        yield from engine.decider.explain(job.job_id, world.now_ns)
    yield from _asked(record)
    yield from owners.told(record, engine.settings)
    yield from cells.told(record, engine.nodes, engine.settings.cells)
    yield from time_limits.told(record, world.engine.state.givings.get(job.job_id))
    yield from moves_told.told(record, world.now_ns)
    yield from idleness.told(engine.settings, engine.state, record, world.now_ns)
    yield from own_files.told(engine.state, record, world.now_ns)
    yield from draining.told(world.cycle, record)
    yield from unrestored.told(record)
    fixed = moving.why_fixed(record)
    if fixed:
        yield f"it is not moved: {fixed}"
    yield from sizes.told(record)
    yield from promotion.told(record, world.now_ns)
    pack = packs.pack_of(engine.state.packs, job.job_id)
    if pack is not None and record.code not in ("Packed", "PackTrial"):
        yield f"packed with job {pack.mate(job.job_id)}" + (", on trial" if pack.is_trial else "")
        yield from pack.evidence
    seen = world.residents(record)
    unmoved = next((_unmoved(item) for item in seen.values() if item.ranks and not item.is_movable), "")
    if unmoved and not moving.moves_by(engine.state, record):
        near = {place.key.job_id for name in record.nodes for place in engine.plan_jobs(name)}
        others = (engine.jobs[job_id] for job_id in sorted(near & engine.jobs.keys()))
        yield from moves_told.told_shared(others, record, unmoved)
    for name, gpus in record.places.items():
        yield f"node {name}, GPUs {','.join(map(str, gpus)) or 'not known yet'}"
        link = world.links.get(name)
        if link is not None and link.is_silent:
            yield f"gandivad on {name} does not answer: {link.error}"
        if name in seen:
            yield from _told(seen[name], "" if fixed else moves_told.told_way(engine.settings, record))
        for row in _strangers(world.reports.get(name)):
            if row["job_id"] == job.job_id:
                yield f"its process {row['pid']} is on GPU {row['gpu']} of {name}, which was not given to it"


def _asked(record: JobRecord) -> Iterable[str]:
    """Say what `gandiva update` has changed."""
    if record.asked_priority is not None:
        yield f"priority {record.priority} by gandiva update; submitted with {record.options.priority}"
    if record.asked_class and not record.is_promoted:
        yield f"{record.asked_class} by gandiva update; submitted as {record.options.job_class}"


def _told(item: Resident, way: str) -> Iterable[str]:
    yield f"{item.ranks} of {item.world} ranks registered, {item.steps} steps, {item.rate:.3g} a second"
    if item.is_movable and item.framework == moving.ANEW:
        yield "it can be moved: it has not begun, and is started elsewhere"
    elif item.is_movable and item.framework == moving.IMAGE:
        yield way or "it can be moved: an image of its processes is made, and it goes on from that"
    elif item.is_movable:
        by = f" ({item.framework})" if item.framework else ""
        yield f"it can be moved: it saves itself and goes on from there{by}"
    elif way:
        yield way
    elif item.ranks or (item.unmoved and item.reason == "NoClient"):
        yield f"it cannot be moved: {_unmoved(item)}"
    yield from _told_steps(item)
    if item.duty < 100:
        yield f"may run {item.duty} % of the time beside its guaranteed mate"
    if item.peak_bytes > 1:
        live_mib, peak_mib = item.live_bytes >> 20, item.peak_bytes >> 20
        yield f"GPU memory: {live_mib} MiB at a boundary, {peak_mib} MiB at the peak"
    if item.spilled_bytes:
        at_most = f"up to {item.spilled_bytes >> 20} MiB of it were in host memory"
        yield f"{at_most}, for its part of the GPU was full: its steps are slower then"
    if item.gpu_percent >= 0:
        yield f"NVML: its processes keep its GPUs busy {item.gpu_percent} % of the time"
    if item.is_doubted:
        yield "its GPUs are idle by NVML though it reports mini-batches: is its loop the one that is counted?"
    yield f"suspended {item.suspends} times, parked {item.parked_ns / NS_PER_S:.1f} s in all"


def _told_steps(item: Resident) -> Iterable[str]:
    """Say what a mini-batch takes, to most of them and to the slowest in a hundred."""
    beside = f"beside job {item.mate}" if item.mate else "beside another"
    for (p50, p99), where in ((item.step_alone_ns, "alone"), (item.step_packed_ns, beside)):
        if p50:
            yield f"a mini-batch takes {p50 / 1e6:.3g} ms {where}, {p99 / 1e6:.3g} ms at the 99th percentile"


def _unmoved(item: Resident) -> str:
    return item.unmoved or moving.NOT_ATTACHED


def _node_row(world: World, name: str, record: NodeRecord) -> Row:
    link, report = world.links.get(name), world.reports.get(name)
    node, residents = record.node, report.residents if report else ()
    state, drain = node_state(record, link), draining.drain_of(world.cycle, name)
    reason = drain.text if drain is not None else node.reason
    return {
        "node": name,
        "type": node.gpu_type,
        "gpus": record.gpus,
        "slots": node.slots,
        "state": state,
        "slurm_state": "+".join(sorted(node.state, key=lambda word: (word not in _BASE, word))),
        "generation": link.generation if link else 0,
        "report_age_s": link.age_s if link else None,
        "holders": _holders(record.gpus, report),
        "packs": _packs(world, name),
        "strangers": _strangers(report),
        "faults": [{"what": what, "why": why} for what, why in (report.faults if report else ())],
        "residents": [_resident_row(world, item) for item in residents],
        "reason": link.error if link and state == SILENT else reason or _odd(report),
    }


def node_state(record: NodeRecord, link: NodeLink | None) -> str:
    """Return how a node is: up, silent, down or closed."""
    if record.is_down:
        return DOWN
    if link is None or link.is_silent:
        return SILENT
    return UP if record.is_open else CLOSED


def _holders(gpus: int, report: NodeReport | None) -> list[Row]:
    rows: list[Row] = [_holder(gpu, None, "", "") for gpu in range(gpus)]
    if report is None:
        return rows
    state_of = {_key(item): item.state for item in report.residents}
    for hold in report.holds:
        for gpu in hold.gpus if hold.seq == 0 else ():
            if gpu < gpus:
                state = state_of.get(JobKey(hold.job_id, hold.restart), "")
                rows[gpu] = _holder(gpu, hold.job_id, hold.user, state, hold.shared_with)
    return rows


def _holder(gpu: int, job_id: int | None, user: str, state: str, mate: int = 0) -> Row:
    return {"gpu": gpu, "job_id": job_id, "user": user, "state": state, "packed_with": mate or None}


def _packs(world: World, node: str) -> list[Row]:
    """The pack groups of a node: two jobs each, and what they come to together."""
    return [
        {"gpu": pack.gpu, "jobs": [*pack.jobs], "trial": pack.is_trial, "gain": pack.gain or None}
        for pack in world.engine.state.packs
        if pack.node == node
    ]


def _strangers(report: NodeReport | None) -> list[Row]:
    """Processes on GPUs of the node that were not given to their job."""
    return [
        {"gpu": gpu, "pid": pid, "job_id": job_id or None, "memory_bytes": memory}
        for gpu, pid, job_id, memory in (report.strangers if report else ())
    ]


def _odd(report: NodeReport | None) -> str:
    count = len(report.strangers) if report else 0
    return f"{count} process(es) on GPUs not given to them" if count else ""


def _resident_row(world: World, item: Resident) -> Row:
    record = world.engine.jobs.get(item.job_id)
    return {
        "job_id": item.job_id,
        "restart": item.restart,
        "user": record.job.user if record else "",
        "state": item.state,
        "gpus": list(item.gpus),
        "ranks": item.ranks,
        "world": item.world,
        "steps": item.steps,
        "rate": item.rate,
        "rate_alone": item.rate_alone or None,
        "rate_packed": item.rate_packed or None,
        "duty": item.duty,
        **_step_times(item),
        "gpu_percent": item.gpu_percent if item.gpu_percent >= 0 else None,
        "live_bytes": item.live_bytes or None,
        "spilled_bytes": item.spilled_bytes or None,
        "peak_bytes": item.peak_bytes or None,
        "reason": item.reason,
        "detail": item.detail,
    }


def _step_times(item: Resident) -> Row:
    """What its mini-batches take, ms; None where that is not known."""
    names = ("step_p50_ms", "step_p99_ms", "packed_step_p50_ms", "packed_step_p99_ms")
    values = (*item.step_alone_ns, *item.step_packed_ns)
    return {name: round(value / 1e6, 3) or None for name, value in zip(names, values, strict=True)}


def _key(item: Resident) -> JobKey:
    return JobKey(item.job_id, item.restart)


def _span(hold: Any) -> tuple[int, int, int, int]:
    return hold.t0_ns, hold.t1_ns, hold.park_ns, hold.shared_with
