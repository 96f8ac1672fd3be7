"""Sets jobs aside, keeps their news from the engine's other steps, and tries them again when they change.

Such a job neither moves nor starts. Where it runs it goes on, with its turns, or by its node's own stride
where the policy may not see it; where it waits it goes on waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeVar

from gandiva_slurm import __version__
from gandiva_slurm.engine.lifecycle.event_handlers import ON_NODE, job_of
from gandiva_slurm.engine.state.aside import Aside
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import EngineState, JobRecord
from gandiva_slurm.engine.state.story import StoryLine
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import because
from gandiva_slurm.model.snapshot import FINISHED, JobOptions, SlurmJob

T = TypeVar("T")


def set_aside(at: Cycle, event: ev.JobSetAside) -> None:
    """Put a stand-in in a job's place; of what is not known yet the first news in this cycle makes one."""
    state, job_id = at.state, event.job_id
    known, old = state.aside.get(job_id), state.hidden.pop(job_id, None) or state.jobs.pop(job_id, None)
    seen = known.seen if known is not None else old.job if old is not None else None
    state.aside[job_id] = Aside(event.why, at.now_ns, __version__, event.is_hidden, seen)
    state.givings.pop(job_id, None)
    state.packs = [pack for pack in state.packs if job_id not in pack.jobs]
    if old is not None:
        _keep(at, job_id, _stand_in(at, old, seen or old.job))


def bring_back(state: EngineState, job_id: int) -> SlurmJob | None:
    """Let a job be scheduled like any other again; return what Slurm has shown of it meanwhile."""
    aside, record = state.aside.pop(job_id), state.hidden.pop(job_id, None) or state.jobs.get(job_id)
    if record is not None:
        record.job = aside.seen or record.job
        state.jobs[job_id] = record
    return aside.seen


def bring_back_of_other_releases(state: EngineState) -> None:
    """Try again what an error of another release's may have kept."""
    for job_id in [job_id for job_id, aside in state.aside.items() if aside.release != __version__]:
        bring_back(state, job_id)


def pass_on(at: Cycle, event: ev.Event) -> Iterator[ev.Event]:
    """Yield what the engine is to hear of an event."""
    if isinstance(event, ev.HeldTold):
        held = tuple(each for each in event.held_ns if not _is_hidden(at, each[0].job_id))
        yield event if len(held) == len(event.held_ns) else replace(event, held_ns=held)
        return
    job_id = _job_of(event)
    aside = at.state.aside.get(job_id)
    if aside is None:
        yield event
    elif isinstance(event, ev.JobSeen) and event.job.state not in FINISHED:
        yield from _seen(at, event, aside)
    elif isinstance(event, ev.JobSeen | ev.JobGone):
        yield from _gone(at, event, job_id, aside)
    elif isinstance(event, ev.Asked):
        yield from _asked(at, event, aside)
    elif isinstance(event, ev.ResidentSeen | ev.ResidentGone) and not _is_hidden(at, job_id):
        yield event


def _seen(at: Cycle, event: ev.JobSeen, aside: Aside) -> Iterator[ev.Event]:
    state, job_id = at.state, event.job.job_id
    was, aside.seen = aside.seen, event.job
    if was is not None and _told(was) == _told(event.job):
        return
    if was is not None and _may_try(at, aside):
        bring_back(state, job_id)
        yield event
        return
    old = state.hidden.pop(job_id, None) or state.jobs.pop(job_id, None) or JobRecord(event.job)
    _keep(at, job_id, _stand_in(at, old, event.job))


def _gone(at: Cycle, event: ev.JobSeen | ev.JobGone, job_id: int, aside: Aside) -> Iterator[ev.Event]:
    bring_back(at.state, job_id)
    if _may_try(at, aside):
        yield event
    else:
        at.state.jobs.pop(job_id, None)


def _asked(at: Cycle, event: ev.Asked, aside: Aside) -> Iterator[ev.Event]:
    if not _may_try(at, aside):
        return
    job = bring_back(at.state, event.job_id)
    if job is not None:
        yield ev.JobSeen(job)
    yield event


def _may_try(at: Cycle, aside: Aside) -> bool:
    """False in the cycle in which the job was set aside."""
    return aside.since_ns < at.now_ns


def _told(job: SlurmJob) -> tuple[object, ...]:
    """What of a job its owner, an operator or a start changes; not what Slurm alone says of its waiting."""
    quiet = replace(job, state="", reason="", priority=0, start_s=0, end_s=0, exit_code="")
    return (quiet, job.state in ON_NODE, job.is_held)


def _keep(at: Cycle, job_id: int, record: JobRecord) -> None:
    state = at.state
    if record.is_placed and not state.aside[job_id].is_hidden:
        state.jobs[job_id] = record
        return
    state.hidden[job_id] = record
    state.on.discard(job_id)
    state.sightings = {spot: seen for spot, seen in state.sightings.items() if spot[1].job_id != job_id}


def _stand_in(at: Cycle, old: JobRecord, job: SlurmJob) -> JobRecord:
    """Return a record of a job that every step can read."""
    places = _places(old, job)
    shown = replace(_sound_job(job), nodes=tuple(places), state="RUNNING" if places else "PENDING")
    record, to = JobRecord(shown, since_ns=at.now_ns), states.RUNNING if places else states.HELD
    if old.state in states.STATES and all(isinstance(line, StoryLine) for line in old.story):
        record.state, record.story = old.state, old.story
    record.vc = old.vc if isinstance(old.vc, str) else ""
    record.held_ns = old.held_ns if isinstance(old.held_ns, int) else 0
    record.asked_priority = old.asked_priority if isinstance(old.asked_priority, int) else None
    record.asked_class = old.asked_class if isinstance(old.asked_class, str) else ""
    reason = because("SetAside", why=at.state.aside[job.job_id].why)
    if record.state == to or (places and record.state in states.SLICED):
        record.stay(reason, at.now_ns)
    elif to in states.STATES[record.state].then:
        record.move(to, reason, at.now_ns)
    else:
        record.state, record.story, record.reason = to, [], reason
    record.places = dict(places)
    return record


def _places(old: JobRecord, job: SlurmJob) -> dict[str, tuple[int, ...]]:
    """Where a job lives, or is about to: what has been released may start at any moment."""
    is_same = old.job.restart == job.restart and old.is_placed
    if job.state in ON_NODE and job.nodes:
        return {node: old.places.get(node, ()) if is_same else () for node in job.nodes}
    return old.places if is_same and (job.state != "PENDING" or old.state == states.STARTING) else {}


def _sound_job(job: SlurmJob) -> SlurmJob:
    options = _sound(job.options or JobOptions(), JobOptions())
    options = replace(options, types=(), elastic="", pack="never", migrate="never")
    options = replace(options, gpus=max(1, options.gpus), nodes=max(1, options.nodes))
    job = _sound(replace(job, options=None), SlurmJob(job.job_id, "", 0, "", "", ""))
    return replace(job, dependency="", options=options)


def _sound(thing: T, default: T) -> T:
    """Return a data class with those values that are of the kind they should be."""
    names = [item.name for item in fields(thing)]  # type: ignore[arg-type]
    kinds = {
        name: (int, type(None)) if name == "array_task_id" else type(getattr(default, name)) for name in names
    }
    found = {name: getattr(thing, name) for name in names if isinstance(getattr(thing, name), kinds[name])}
    return replace(default, **found)  # type: ignore[type-var]


def _is_hidden(at: Cycle, job_id: int) -> bool:
    aside = at.state.aside.get(job_id)
    return aside is not None and (aside.is_hidden or job_id in at.state.hidden)


def _job_of(event: ev.Event) -> int:
    if isinstance(event, ev.JobSeen):
        return event.job.job_id
    if isinstance(event, ev.JobGone | ev.Asked):
        return event.job_id
    if isinstance(event, ev.ResidentSeen | ev.ResidentGone):
        return event.key.job_id
    return job_of(event.action_id) if isinstance(event, ev.ActionDone) else -1
