"""From several runs forward to what is told of each job: a middle and a range in which 80 of 100 fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.engine.state.sizes import gpus_of
from gandiva_slurm.model import job as states
from gandiva_slurm.model.wish import Wish
from gandiva_slurm.sim.forecast.forward import Course, Forward, Run, ran_ns
from gandiva_slurm.sim.forecast.granting import grant
from gandiva_slurm.sim.forecast.lengths import Ask, Lengths, work_of

_S = 10**9
#: The range that is told: from this part of the runs to that one.
LOW, HIGH = 0.1, 0.9
#: The part of the time for a forecast that one run may take where nothing else is said.
MOST_OF_TIME = 0.25
#: Runs that a range is made of, and how far each goes.
DRAWS, HORIZON_NS = 20, 14 * 24 * 3600 * _S


class Range(NamedTuple):
    """Unix seconds; None: later than the runs came, or never."""

    low_s: float | None
    mid_s: float | None
    high_s: float | None


@dataclass(frozen=True)
class Foretold:
    """What is told of a job. A range is None where there is nothing to tell: it has started, or cannot."""

    job_id: int
    turn: Range | None
    start: Range | None
    end: Range | None
    #: why it will not start, where in no run it does
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


@dataclass
class Forecast:
    """All jobs', and what was done for it."""

    jobs: list[Foretold]
    #: the state's time, and how far all runs came; unix seconds
    of_s: float
    reached_s: float
    draws: int
    cycles: int


@dataclass(frozen=True)
class Present:
    """A state, and what else is known then. `engine_of` reads the engine anew each time.

    `load_ns`: how long a new start holds its GPUs before it gets anything done; `coarser`: makes the policy
    anew with quanta of that length, in ns; `wish`: what is other than it is.
    """

    engine_of: Callable[[], Engine]
    now_ns: int
    lengths: Lengths
    load_ns: int = 0
    coarser: Callable[[int], Leader] | None = None
    wish: Wish | None = None


def forecast(
    present: Present,
    seed: int,
    draws: int = DRAWS,
    time_left: Callable[[], float] = lambda: 1.0,
    most: float = MOST_OF_TIME,
) -> Forecast:
    """Run forward several times from the same state.

    `time_left`: the part of the time for it that is left, 1 at first; a run takes `most` of it, and one that
    is not begun in time is not made.
    """
    runs: list[Run] = []
    skew_ns, now_ns = 0, present.now_ns
    for number in range(draws):
        if runs and time_left() <= 0:
            break
        engine = present.engine_of()
        skew_ns = engine.state.skew_ns
        work = work_of(asks(engine, now_ns), present.lengths, Random(f"{seed}/{number}"))
        if present.wish is not None:
            grant(present.wish, engine, work, now_ns)
        begun = time_left()
        forward = Forward(engine, work, now_ns, present.load_ns, present.coarser)
        runs.append(forward.go(now_ns + HORIZON_NS, partial(_used, begun, time_left, most)))
    reached_ns = min(run.reached_ns for run in runs)
    jobs = [tell(job_id, [run.courses[job_id] for run in runs], skew_ns) for job_id in runs[0].courses]
    return Forecast(
        jobs, (now_ns + skew_ns) / _S, (reached_ns + skew_ns) / _S, len(runs), sum(run.cycles for run in runs)
    )


def _used(begun: float, time_left: Callable[[], float], most: float) -> float:
    """The part of a run's time that is used."""
    return (begun - time_left()) / most


def asks(engine: Engine, now_ns: int) -> dict[int, Ask]:
    """Return what is known of the length of each job that lives."""
    live = {job_id: one for job_id, one in engine.jobs.items() if one.state != states.ENDED}
    return {job_id: _ask(engine, record, now_ns) for job_id, record in live.items()}


def _ask(engine: Engine, record: JobRecord, now_ns: int) -> Ask:
    job, ran = record.job, ran_ns(engine, record, now_ns)
    return Ask(job.user, job.name, gpus_of(record), ran, limit_ns(engine, record))


def limit_ns(engine: Engine, record: JobRecord) -> int:
    """Return how long a job may hold its GPUs: its limit without what was given back; 0: for ever."""
    giving = engine.state.givings.get(record.job.job_id)
    return max(0, record.job.time_limit_s - (giving.given_s if giving is not None else 0)) * _S


def tell(job_id: int, courses: Sequence[Course], skew_ns: int) -> Foretold:
    """Sum up what became of one job in all runs."""
    why = next((course.why for course in courses if course.why), "")
    never = all(not course.start_ns for course in courses)

    def of(name: str) -> Range | None:
        times: list[int] = [getattr(course, name) for course in courses]
        return range_of([(at_ns + skew_ns) / _S if at_ns else None for at_ns in times])

    if never:
        return Foretold(job_id, None, None, None, why)
    return Foretold(job_id, of("turn_ns"), of("start_ns"), of("end_ns"))


def range_of(times: Sequence[float | None]) -> Range:
    """The 10th, the 50th and the 90th of a hundred; what was not reached is later than all that was.

    Of few, these lie nearer to the ends: one more would fall between two neighbours, or beside the first or
    the last, with equal chances.
    """
    known = sorted(times, key=lambda at_s: (at_s is None, at_s or 0.0))
    return Range(*(_at(known, part * (len(known) + 1) - 1) for part in (LOW, 0.5, HIGH)))


def _at(known: Sequence[float | None], place: float) -> float | None:
    place = min(max(0.0, place), len(known) - 1.0)
    low, high = known[int(place)], known[min(int(place) + 1, len(known) - 1)]
    if low is None or high is None or low == high:
        return low if place == int(place) or low == high else high
    return low + (high - low) * (place - int(place))
