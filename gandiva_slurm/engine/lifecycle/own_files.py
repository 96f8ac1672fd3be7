"""What a move of a job would lose that goes on from its own newest file, by that file's age (ADR 0045)."""

from __future__ import annotations

from collections.abc import Iterator

from gandiva_slurm.engine.state.records import SECOND_NS, EngineState, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.measured import NO_FILE

#: It is moved where that loses a LOST_PART-th at most of what it has run since it was started, or the seconds
#: of LEAST_LOST_S, if that is more.
LOST_PART, LEAST_LOST_S = 18, 60


def age_s(state: EngineState, record: JobRecord, now_ns: int) -> int | None:
    """Return how old its newest whole file is, None where that is not known, or there is none."""
    saved_s = _saved_s(state, record)
    return max(0, now_ns // SECOND_NS - saved_s) if saved_s > NO_FILE else None


def too_dear(state: EngineState, record: JobRecord, now_ns: int) -> str:
    """Say why it is not to be moved now, as it would lose too much; "" where it would not."""
    is_told = record.options.saves_by == "self" and record.options.own_files
    if not is_told or not _saved_s(state, record):
        return ""
    ran_s, age = _ran_s(state, record), age_s(state, record, now_ns)
    lost_s = ran_s if age is None else min(age, ran_s)
    if lost_s <= max(LEAST_LOST_S, ran_s // LOST_PART):
        return ""
    return f"it would do {lost_s} s of {ran_s} s again: {_told_age(record, age)}"


def has_saved(state: EngineState, record: JobRecord) -> bool:
    """True for one whose newest whole file was written since it was sent its signal: it may be requeued."""
    sent_ns = record.travels.signalled_ns
    return bool(sent_ns and record.options.own_files) and _saved_s(state, record) * SECOND_NS >= sent_ns


def told(state: EngineState, record: JobRecord, now_ns: int) -> Iterator[str]:
    """Say how old what it would go on from is, for `gandiva why`."""
    if record.options.own_files and record.state in states.SLICED:
        is_known = bool(_saved_s(state, record))
        age = _told_age(record, age_s(state, record, now_ns))
        yield age if is_known else f"nobody has looked yet for its files in {record.options.own_files}"


def _told_age(record: JobRecord, age: int | None) -> str:
    where = f"in {record.options.own_files}"
    return f"there is no whole file {where}" if age is None else f"its newest file {where} is {age} s old"


def _saved_s(state: EngineState, record: JobRecord) -> int:
    """When it was written, by the newest word of its nodes; NO_FILE: there is none, 0: not known."""
    seen = (state.sightings.get((name, record.key)) for name in record.nodes)
    return max((each.measured.saved_s for each in seen if each is not None), default=0)


def _ran_s(state: EngineState, record: JobRecord) -> int:
    """For how long it has held its GPUs since it was started."""
    seen = ((state.sightings.get((name, record.key)), gpus) for name, gpus in record.places.items())
    held_ns = (each.held_ns // max(1, len(gpus)) for each, gpus in seen if each is not None)
    return max(held_ns, default=0) // SECOND_NS
