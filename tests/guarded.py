"""A FakeWorld whose engine is called as gandivactld calls it: a job that causes an error is set aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gandiva_slurm.controller.blaming import Guarded
from gandiva_slurm.controller.recorder import WRITTEN
from gandiva_slurm.engine import engine as engines
from gandiva_slurm.engine.apply import picture
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import Tally
from gandiva_slurm.model import event as ev
from gandiva_slurm.model.action import Action
from gandiva_slurm.policy.gandiva_fair import GandivaFair
from tests.fake_world import FakeWorld
from tests.tape import Tape


class Guard:
    """Calls the engine of a world, with a recording to be asked again."""

    def __init__(self, world: FakeWorld) -> None:
        self.tape, self._world = Tape(lambda told: world.leader()), world
        self._guarded = Guarded(self.tape.recorder, world.engine)
        world.handle = self.handle

    def handle(self, engine: Engine, events: Sequence[ev.Event], now_ns: int) -> list[Action]:
        self._guarded.note(engine)  # it may be another one than the last
        self._world.engine, actions = self._guarded.handle(engine, events, now_ns)
        batch = self.tape.recorder.batch
        assert batch is not None
        batch.fate = WRITTEN
        self.tape.batches.append(batch)
        return actions

    def replay(self) -> Tally:
        return self.tape.replay()


def news_of(kind: type) -> Callable[[pytest.MonkeyPatch, FakeWorld, int], None]:
    """Have this kind of news of a job be an error from now on."""

    def poison(patch: pytest.MonkeyPatch, world: FakeWorld, job_id: int) -> None:
        right = engines._HANDLERS[kind]

        def handler(at: Any, event: Any) -> None:
            right(at, event)  # what it has changed by then is not to stay
            found = event.job.job_id if kind is ev.JobSeen else event.key.job_id
            if found == job_id:
                raise ValueError(f"no such thing as job {job_id}")

        patch.setitem(engines._HANDLERS, kind, handler)

    return poison


def what_slurm_shows(patch: pytest.MonkeyPatch, world: FakeWorld, job_id: int) -> None:
    """Have Slurm show a job whose time limit is no number: the policy's view of it cannot be made."""
    world.jobs[job_id] = replace(world.jobs[job_id], time_limit_s=None)  # type: ignore[arg-type]


def the_policys_look(patch: pytest.MonkeyPatch, world: FakeWorld, job_id: int) -> None:
    """Have the policy raise whenever it sees the job."""
    right = GandivaFair.decide

    def decide(self: Any, view: Any) -> Any:
        plan = right(self, view)
        if job_id in view.jobs:
            raise ZeroDivisionError("tickets of nobody")
        return plan

    patch.setattr(GandivaFair, "decide", decide)


def the_view(patch: pytest.MonkeyPatch, world: FakeWorld, job_id: int) -> None:
    """Have the view of a job, whatever its record says, be an error."""
    right = picture.held_ns

    def held_ns(at: Any, record: Any) -> int:
        assert record.job.job_id != job_id
        return right(at, record)

    patch.setattr(picture, "held_ns", held_ns)
