"""Finds the jobs that cause an error each by itself, by doing the cycle again without them. Pure.

Jobs are set aside all together first: where the error comes all the same, it is no job's. Then halves are
taken back in, and halves of those that bring the error back. What is left at the end was tried: without
these jobs the cycle does not fail, and with any of them it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model.event import Event, JobGone, JobSeen, JobSetAside, PriorityAsked, ResidentSeen

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
    heeds_policy: bool,
    may_go_on: Callable[[], bool] = lambda: True,
) -> list[JobSetAside]:
    """Return which jobs are to be set aside for the cycle not to fail; []: the error is no job's.

    `heeds_policy`: an error that the policy raises is one, too. `may_go_on`: there is time for another try.
    """
    search = _Search(then, events, now_ns, heeds_policy)
    state = search.state
    jobs = sorted(
        {*state.jobs, *state.aside, *_named(events)}, key=lambda job_id: (_array(search, job_id), job_id)
    )
    if not search.fails(()):
        return []
    for search.is_hidden in (False, True):
        if not search.fails(jobs):
            return search.split(jobs, may_go_on)
    return []


class _Search:
    def __init__(self, then: Before, events: Sequence[Event], now_ns: int, heeds_policy: bool) -> None:
        self._then, self._events, self._now_ns = then, events, now_ns
        self._heeds_policy = heeds_policy
        self.is_hidden = False
        self.state: EngineState = again(then).state
        self.arrays = {
            event.job.job_id: event.job.array_job_id for event in events if isinstance(event, JobSeen)
        }

    def fails(self, aside: Iterable[int]) -> str:
        """Say how the cycle fails without these jobs; "": it does not."""
        engine = again(self._then)
        engine.decider.asks_always = self._heeds_policy
        try:
            engine.handle(
                [*(JobSetAside(job_id, "", self.is_hidden) for job_id in aside), *self._events], self._now_ns
            )
            read_out(engine)
            as_json(engine)
        except Exception as err:  # it is what we look for
            return in_words(err)
        return engine.decider.fault if self._heeds_policy and engine.decider.has_raised else ""

    def split(self, jobs: Sequence[int], may_go_on: Callable[[], bool]) -> list[JobSetAside]:
        """Take jobs back in by halves; what does not fit in is left."""
        aside, found, todo = {*jobs}, list[JobSetAside](), [jobs]
        while todo:
            part = todo.pop()
            if not may_go_on():
                return []
            why = self.fails(aside.difference(part))
            if not why:
                aside.difference_update(part)
            elif len(part) > 1:
                todo += [part[len(part) // 2 :], part[: len(part) // 2]]
            else:
                found.append(JobSetAside(part[0], why, self.is_hidden))
                if len({_array(self, each.job_id) for each in found}) > MOST:
                    return []
        return found


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _array(search: _Search, job_id: int) -> int:
    record = search.state.jobs.get(job_id)
    return search.arrays.get(job_id) or (record.job.array_job_id if record is not None else 0) or job_id


def _named(events: Collection[Event]) -> Iterable[int]:
    for event in events:
        if isinstance(event, JobSeen):
            yield event.job.job_id
        elif isinstance(event, JobGone | PriorityAsked):
            yield event.job_id
        elif isinstance(event, ResidentSeen):
            yield event.key.job_id
