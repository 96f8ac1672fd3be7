"""Finds the jobs that cause an error each by itself, by doing the cycle again without them. Pure.

The jobs that stand in the error's frames are suspected first. Where that is not it, all jobs are set aside
together: where the error comes all the same, it is no job's. Then halves are taken back in, and halves of
those that bring the error back. Either way it was tried that without these jobs the cycle does not fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.records import EngineSettings, JobRecord
from gandiva_slurm.model.event import Asked, Event, JobGone, JobSeen, JobSetAside, ResidentSeen
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.policy.port import JobView

#: An error that jobs of more arrays (or single ones) than this bring is taken for one of ours.
MOST = 4
#: Of a sentence: the rest is in the log.
_LONGEST = 300


class Before(NamedTuple):
    """An engine as it was before the cycle that failed: its JSON text, and what is not in that."""

    text: str
    settings: EngineSettings
    leader: Leader
    bounds: object
    has_read_slurm: bool


def before(state_json: str, engine: Engine) -> Before:
    """Note an engine of which this is the JSON text."""
    state, leader = engine.state, engine.decider.leader
    return Before(state_json, engine.settings, leader, state.bounds, state.has_read_slurm)


def again(then: Before) -> Engine:
    """Return the engine that was."""
    engine = Engine.from_json(then.settings, json.loads(then.text), then.leader)
    engine.decider.is_same_life = True
    engine.state.bounds, engine.state.has_read_slurm = then.bounds, then.has_read_slurm  # type: ignore[assignment]
    return engine


def as_json(engine: Engine) -> str:
    """Return the engine's state as JSON text."""
    return json.dumps(engine.to_json(), separators=(",", ":"))


def read_out(engine: Engine) -> None:
    """Read all else that a cycle reads of it: where one job is the fault, that fails here."""
    for name in engine.nodes:
        engine.plan_jobs(name)
        engine.fences(name)
    engine.tickets()


def in_words(err: BaseException) -> str:
    """Say what an error is and where it was raised, in our own code as far as it came from there."""
    frames = [*_frames(err.__traceback__)]
    ours = [frame for frame in frames if "/gandiva_slurm/" in frame[0]]
    where = "".join(
        f", in {name}, {file.rpartition('/')[2]}:{line}" for file, line, name in (ours or frames)[-1:]
    )
    text = " ".join(f"{type(err).__name__}: {err}".split())
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...") + where


def culprits(
    then: Before,
    events: Sequence[Event],
    now_ns: int,
    err: Exception,
    may_go_on: Callable[[], bool] = lambda: True,
    heeds_policy: bool = False,
) -> list[JobSetAside]:
    """Return which jobs are to be set aside for the cycle not to fail with `err`; []: that is no job's.

    `may_go_on`: there is time for another try. `heeds_policy`: what the policy raises is an error, too.
    """
    search = _Search(then, events, now_ns, heeds_policy)
    found = search.suspect(err, may_go_on)
    if found or search.fails({}) is None:
        return found
    for is_hidden in (False, True):
        if may_go_on() and search.fails(dict.fromkeys(search.jobs, is_hidden)) is None:
            return search.split(is_hidden, may_go_on)
    return []


class _Search:
    def __init__(self, then: Before, events: Sequence[Event], now_ns: int, heeds_policy: bool) -> None:
        self._then, self._events, self._now_ns = then, events, now_ns
        self._heeds_policy = heeds_policy
        state = again(then).state
        shown = {event.job.job_id: event.job for event in events if isinstance(event, JobSeen)}
        known = {job_id: record.job for job_id, record in state.jobs.items()} | shown
        #: by job: its array, or itself
        self.arrays = {job_id: job_id for job_id in _named(events)}
        self.arrays |= {job_id: job.array_job_id or job_id for job_id, job in known.items()}
        self.jobs = sorted(self.arrays, key=lambda job_id: (self.arrays[job_id], job_id))

    def fails(self, aside: Mapping[int, bool]) -> Exception | None:
        """Return what the cycle raises without these jobs (True: hidden from the policy, too)."""
        engine = again(self._then)
        engine.decider.asks_always = self._heeds_policy
        try:
            asked = [JobSetAside(job_id, "", is_hidden) for job_id, is_hidden in aside.items()]
            engine.handle([*asked, *self._events], self._now_ns)
            read_out(engine)
            as_json(engine)
        except Exception as err:  # it is what we look for
            return err
        return engine.decider.raised if self._heeds_policy else None

    def suspect(self, err: Exception, may_go_on: Callable[[], bool]) -> list[JobSetAside]:
        """Set aside what stands in the error's frames, and in those of the next one, where that helps."""
        aside: dict[int, bool] = {}
        why: dict[int, str] = {}
        failed: Exception | None = err
        while failed is not None and may_go_on():
            ids = [job_id for job_id in in_frames(failed) if job_id in self.arrays and not aside.get(job_id)]
            if not ids:
                return []
            array = self.arrays[ids[0]]
            # a task of an array like another that was found: they are all alike
            is_next = any(self.arrays[job_id] == array and job_id != ids[0] for job_id in aside)
            part = [job_id for job_id in self.jobs if self.arrays[job_id] == array] if is_next else ids[:1]
            for job_id in part:
                aside[job_id] = job_id in aside
                why.setdefault(job_id, in_words(failed))
            if len({self.arrays[job_id] for job_id in aside}) > MOST:
                return []
            failed = self.fails(aside)
        if failed is not None:
            return []
        return [JobSetAside(job_id, why[job_id], is_hidden) for job_id, is_hidden in aside.items()]

    def split(self, is_hidden: bool, may_go_on: Callable[[], bool]) -> list[JobSetAside]:
        """Take jobs back in by halves; what does not fit in is left."""
        aside, found, todo = {*self.jobs}, list[JobSetAside](), [self.jobs]
        while todo:
            part = todo.pop()
            if not may_go_on():
                return []
            failed = self.fails(dict.fromkeys(sorted(aside.difference(part)), is_hidden))
            if failed is None:
                aside.difference_update(part)
            elif len(part) > 1:
                todo += [part[len(part) // 2 :], part[: len(part) // 2]]
            else:
                found.append(JobSetAside(part[0], in_words(failed), is_hidden))
                if len({self.arrays[each.job_id] for each in found}) > MOST:
                    return []
        return found


def in_frames(err: BaseException) -> list[int]:
    """Return the jobs that are values of the error's frames, those of the innermost first."""
    frames, trace = list[Mapping[str, object]](), err.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_locals)
        trace = trace.tb_next
    found = (_job_id(name, value) for values in reversed(frames) for name, value in values.items())
    return [*dict.fromkeys(job_id for job_id in found if job_id is not None)]


def _job_id(name: str, value: object) -> int | None:
    """The job that a value is of: its id, its record, what is shown of it, news of it."""
    if isinstance(value, JobSeen | JobRecord):
        value = value.job
    if isinstance(value, ResidentSeen):
        value = value.key
    if isinstance(value, SlurmJob | JobView | JobGone | JobKey | Asked):
        return value.job_id
    return value if name == "job_id" and isinstance(value, int) else None


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _named(events: Collection[Event]) -> Iterable[int]:
    for event in events:
        if isinstance(event, JobSeen):
            yield event.job.job_id
        elif isinstance(event, JobGone | Asked):
            yield event.job_id
        elif isinstance(event, ResidentSeen):
            yield event.key.job_id
