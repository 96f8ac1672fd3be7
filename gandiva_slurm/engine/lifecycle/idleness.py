"""Jobs that hold GPUs and do nothing with them, by NVML: told, then set behind all others (ADR 0063).

Time counts in which a job has held its GPUs since NVML saw them busy last: a parked one is not idle. It is
told first; later it has what guaranteed jobs leave, as an opportunistic job has, and with it the promotion of
those: what waits long has a turn, in which it may show that it works. Then it is as it was. It is moved, or
makes way for others that wait for room, only where the site says so. What is no batch job is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.idle import Idle
from gandiva_slurm.engine.state.records import SECOND_NS, EngineState, JobRecord
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.reason import Reason, because

_SINCE_TOLD = "its GPUs have been idle for {} s of the time it held them"


def watch_idle(at: Cycle) -> None:
    """Tell of jobs whose GPUs are idle, set them behind others, and take both back; once a cycle."""
    is_on = at.settings.idle_tell_ns > 0
    if not is_on and at.state.may_have_idle:
        _forget(at.state)
    at.state.may_have_idle = is_on
    if not is_on:
        return
    for record in at.state.jobs.values():
        if record.state in states.SLICED and record.job.batch and record.places:
            _watch(at, record)
        elif record.idle.told_ns and record.state not in states.RESIDENT:
            record.idle = Idle()  # its next start may do better


def reason_of(state: EngineState, record: JobRecord) -> Reason | None:
    """Return why a job is told of, for its row of the queue; None: it is not."""
    if not record.idle.told_ns or record.state not in states.SLICED:
        return None
    return because("IdleParked" if record.idle.parked_ns else "IdleGpus", idle_s=idle_s(state, record))


def told(settings: EngineSettings, state: EngineState, record: JobRecord, now_ns: int) -> Iterator[str]:
    """Say what comes of it, for `gandiva why`."""
    idle = record.idle
    if not idle.told_ns:
        return
    yield _SINCE_TOLD.format(idle_s(state, record)) + "; one mini-batch on them takes this back"
    if idle.parked_ns:
        yield f"all others go before it since {(now_ns - idle.parked_ns) // SECOND_NS} s"
    elif settings.idle_park_ns:
        park_s = (settings.idle_tell_ns + settings.idle_park_ns) // SECOND_NS
        yield f"when they have been idle for {park_s} s, all others go before it"


def idle_s(state: EngineState, record: JobRecord) -> int:
    """Return for how long all its GPUs have been idle while it held them; 0: not, or not known."""
    seen = [state.sightings.get((name, record.key)) for name in record.nodes]
    return min((each.measured.idle_s if each is not None else 0 for each in seen), default=0)


def _watch(at: Cycle, record: JobRecord) -> None:
    settings, idle, idle_ns = at.settings, record.idle, idle_s(at.state, record) * SECOND_NS
    if idle_ns < settings.idle_tell_ns:
        record.idle = Idle() if idle.told_ns else idle
        return
    if not idle.told_ns:
        idle.told_ns = at.now_ns
        record.stay(because("IdleGpus", idle_s=idle_ns // SECOND_NS), at.now_ns)
    if not settings.idle_park_ns:
        return
    due_ns = settings.idle_tell_ns + settings.idle_park_ns
    if idle.tried_s:  # it had its turn to work
        due_ns = max(due_ns, idle.tried_s * SECOND_NS + settings.quantum_ns)
    if not idle.parked_ns and idle_ns >= due_ns:
        idle.parked_ns = at.now_ns
        record.stay(because("IdleParked", idle_s=idle_ns // SECOND_NS), at.now_ns)


def _forget(state: EngineState) -> None:
    """The site has it off: nobody is told of."""
    for record in state.jobs.values():
        if record.idle.told_ns:
            record.idle = Idle()
