"""Checks the invariants behind every test's back, and fails the test at its end if one was broken.

An engine or a node's stride that a test uses is checked after each call. A checked simulation looks at its
engine right afterwards, and is told what was found here: looking twice was a sixth of what simulations took.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.invariants import (
    guaranteed_go_first,
    passes_never_fall,
    round_is_sound,
    violations,
)
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import CycleTick, Event
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.sim import slurm_world
from gandiva_slurm.slicing.local import LocalStride

_broken: list[str] = []
#: The engine that was looked at last, and what was found; taken once.
_latest: list[tuple[Engine, list[str]]] = []


@pytest.fixture(autouse=True)
def invariants_hold() -> Iterator[None]:
    """Fail the test at its end if an invariant was broken during it."""
    _broken.clear()
    yield
    _latest.clear()
    found, _broken[:] = list(dict.fromkeys(_broken)), []
    assert not found, "invariants broken:\n" + "\n".join(found)


def _watch_engine() -> None:
    handle = Engine.handle

    @functools.wraps(handle)
    def watched(self: Engine, events: Sequence[Event], now_ns: int) -> list[Action]:
        actions = handle(self, events, now_ns)
        if any(isinstance(event, CycleTick) for event in events):
            found = violations(self)
            _broken.extend(found)
            _latest[:] = [(self, found)]
        return actions

    def found_by(engine: Engine) -> list[str]:
        looked_at, found = _latest.pop() if _latest else (None, [])
        return found if looked_at is engine else violations(engine)

    Engine.handle = watched  # type: ignore[method-assign]
    slurm_world.violations = found_by


def _watch_stride() -> None:
    choose, settle = LocalStride.choose, LocalStride.settle

    @functools.wraps(choose)
    def watched_choose(
        self: LocalStride,
        runnable: Collection[JobKey],
        pinned: Collection[JobKey],
        overdue: Collection[JobKey],
        yielding: Collection[JobKey] = (),
    ) -> tuple[JobKey, ...]:
        chosen = choose(self, runnable, pinned, overdue, yielding)
        stuck = [gang.key for gang in self.gangs if gang.key in pinned]
        if not round_is_sound(
            self.gangs, self.gpus, stuck
        ):  # what cannot be parked may overlap: not our doing
            _broken.extend(round_is_sound(self.gangs, self.gpus, chosen))
            _broken.extend(guaranteed_go_first(self.gangs, runnable, {*pinned, *overdue}, chosen))
        return chosen

    @functools.wraps(settle)
    def watched_settle(self: LocalStride) -> None:
        before = {group: self.passes(group)[0] for group in self.groups}
        settle(self)
        for group, passes in before.items():
            _broken.extend(passes_never_fall(passes, self.passes(group)[0]))

    LocalStride.choose = watched_choose  # type: ignore[method-assign]
    LocalStride.settle = watched_settle  # type: ignore[method-assign]


_watch_engine()
_watch_stride()
