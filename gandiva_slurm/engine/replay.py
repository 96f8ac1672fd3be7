"""What an engine decided, decided again: the same state, settings, events and times give the same actions.

A recording is made of segments: a key frame (the whole engine at one moment) and the cycles that followed.
Pure; who writes and reads recordings is elsewhere (controller.recorder, controller.segments).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, NamedTuple

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.codec import dumps, reader
from gandiva_slurm.engine.state.plain import build
from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model.action import Action, Start
from gandiva_slurm.model.bounds import Bounds
from gandiva_slurm.model.event import Event
from gandiva_slurm.model.ids import JobKey

#: Of the form of frames and cycles; the engine's state has its own.
SCHEMA = 4

#: Why a frame was made: the engine was read from the journal, or began empty; the segment was long enough;
#: something between was not written.
START, ANEW, NEXT, GAP = "start", "anew", "next", "gap"


class Heard(NamedTuple):
    """One cycle: what the engine was told, when, and what it answered."""

    now_ns: int
    events: Sequence[Event]
    actions: Sequence[Action]


@dataclass(frozen=True)
class Difference:
    """Where a replay first parts from what was recorded."""

    at_ns: int
    #: number of the cycle in its segment, from 1; 0: the frame at its end
    cycle: int
    what: str
    want: str
    got: str


@dataclass
class Tally:
    """What was compared."""

    segments: int = 0
    cycles: int = 0
    events: int = 0
    #: actions that were recorded and decided again; those that one of the two has not, or has otherwise
    equal: int = 0
    different: int = 0
    #: cycles after a segment's first difference: the two engines have parted there
    skipped: int = 0
    #: segments of another form
    passed_over: int = 0
    first: Difference | None = None

    def found(self, difference: Difference, count: int = 1) -> None:
        """Note a difference."""
        self.different += count
        self.first = self.first or difference


def frame_of(engine: Engine) -> str:
    """Return the whole engine but its settings, as JSON text."""
    state = engine.state
    beyond = {"bounds": state.bounds, "has_read_slurm": state.has_read_slurm}
    return dumps({"state": engine.to_json(), **beyond})


def settings_of(engine: Engine) -> str:
    """Return the engine's settings, and by what its policy can be made again, as JSON text."""
    return dumps(dict(vars(engine.settings)) | {"leader": engine.decider.leader.told})


def decided_by(
    settings: str, leader_of: Callable[[Mapping[str, Any]], Leader]
) -> tuple[EngineSettings, Leader]:
    """Return what `settings_of` wrote; KeyError, TypeError or ValueError.

    `leader_of` makes the policy again.
    """
    read: dict[str, Any] = json.loads(settings)
    if "leader" not in read:
        raise ValueError("no policy decided then, but rules of an older release's")
    told = read.pop("leader")
    unknown = read.keys() - {item.name for item in fields(EngineSettings)}
    if unknown:
        raise ValueError(f"settings {', '.join(sorted(unknown))} are not known")
    return build(EngineSettings, read), leader_of(told)


def engine_of(
    frame: str,
    settings: str,
    leader_of: Callable[[Mapping[str, Any]], Leader],
    is_same_life: bool = False,
) -> Engine:
    """Make an engine of what `frame_of` and `settings_of` wrote; KeyError, TypeError or ValueError.

    `is_same_life`: what the policy knew is not of a former one.
    """
    raw = json.loads(frame)
    made, led_by = decided_by(settings, leader_of)
    engine = Engine.from_json(made, raw["state"], led_by)
    engine.decider.is_same_life = is_same_life
    engine.state.bounds = reader(Bounds | None)(raw["bounds"])
    engine.state.has_read_slurm = raw["has_read_slurm"]
    return engine


def replay(engine: Engine, cycles: Iterable[Heard], tally: Tally) -> bool:
    """Let an engine hear these cycles; True when it answers each as it did then.

    After the first other answer the rest is only counted: the engine is in another state now.
    """
    is_same = True
    for number, heard in enumerate(cycles, 1):
        tally.cycles += 1
        if not is_same:
            tally.skipped += 1
            continue
        tally.events += len(heard.events)
        try:
            got: Sequence[Action] = engine.handle(heard.events, heard.now_ns)
        except Exception as err:  # whatever a recording that does not fit makes of the engine
            failed = f"{type(err).__name__}: {err}"
            tally.found(Difference(heard.now_ns, number, "the cycle", "an answer", failed))
            is_same = False
            continue
        is_same = _compare(heard, got, number, tally)
    return is_same


def compare_state(engine: Engine, frame: str, why: str, at_ns: int, tally: Tally) -> None:
    """Compare the engine at a segment's end with the frame that follows."""
    if why in (GAP, ANEW):
        return
    want, got = json.loads(frame), json.loads(frame_of(engine))
    for each in (want, got):  # bytes of equal things may differ; what it knows shows in what it answers
        each["state"].pop("policy", None)
    if why == START:  # what is read anew in each life
        want, got = want["state"], got["state"]
    path = next(_paths(want, got), None)
    if path is not None:
        where, one, other = path
        tally.found(Difference(at_ns, 0, f"the state: {where}", _short(one), _short(other)))


def state_is_empty(state: EngineState) -> bool:
    """True for an engine that was not read from anywhere."""
    return not state.jobs and not state.nodes


def in_words(action: Action | None) -> str:
    """Say an action as `gandiva replay` prints it."""
    if action is None:
        return "nothing"
    what = f"{type(action).__name__} of job {JobKey(*action.key)}"
    if isinstance(action, Start):
        what += " on " + " and ".join(f"{node}({','.join(map(str, gpus))})" for node, gpus in action.places)
    return f"{what}, {action.code}: {action.text}"


def _compare(heard: Heard, got: Sequence[Action], number: int, tally: Tally) -> bool:
    is_same = True
    for place, (want, have) in enumerate(zip_longest(heard.actions, got), 1):
        if want == have:
            tally.equal += 1
            continue
        is_same = False
        words = [in_words(want), in_words(have)]
        if words[0] == words[1]:
            words = [repr(want), repr(have)]
        tally.found(Difference(heard.now_ns, number, f"action {place} of the cycle", *words))
    return is_same


def _paths(want: Any, got: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two JSON values differ, deepest place first found."""
    if want == got:
        return
    if isinstance(want, dict) and isinstance(got, dict):
        for name in [*want, *(got.keys() - want.keys())]:
            yield from _paths(want.get(name), got.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(want, list) and isinstance(got, list):
        for index, (one, other) in enumerate(zip_longest(want, got)):
            yield from _paths(one, other, f"{path}[{index}]")
    else:
        yield path or "all of it", want, got


def _short(value: object) -> str:
    text = dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."
