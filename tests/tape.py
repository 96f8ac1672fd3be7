"""Records an engine as gandivactld does, in memory, and replays it from the text it would have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from gandiva_slurm.controller.recorder import WRITTEN, Batch, Frame, Recorder
from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import START, Heard, Tally, compare_state, engine_of, replay
from gandiva_slurm.engine.state.codec import dumps, lists, read_actions, read_events
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import CycleTick, Event


class Tape:
    """Call `handle` in place of Engine.handle."""

    def __init__(self, leader_of: Callable[[Mapping[str, Any]], Leader]) -> None:
        """`leader_of` makes the policy of what was recorded again."""
        self._leader_of = leader_of
        config = SimpleNamespace(controller=SimpleNamespace(replay_hours=24, replay_mib=256))
        self.recorder = Recorder(lambda: config)  # type: ignore[arg-type,return-value]
        self.batches: list[Batch] = []

    def handle(self, engine: Engine, events: Sequence[Event], now_ns: int) -> list[Action]:
        actions = self.recorder.handle(engine, events, now_ns)
        batch = self.recorder.batch
        assert batch is not None
        batch.fate = WRITTEN
        self.batches.append(batch)
        return actions

    def replay(self) -> Tally:
        """Return what was compared."""
        tally, engine, cycles, frame = Tally(), None, [], None
        for batch in self.batches:
            if batch.frame is not None:
                engine, cycles = self._end(frame, cycles, tally, batch.frame), []
                frame = batch.frame
            cycles += [Heard(at_ns, (CycleTick(),), ()) for at_ns in batch.ticks]
            if batch.cycle is not None:
                now_ns, events, actions = batch.cycle
                text = dumps([lists(events), lists(actions)])
                events, actions = json.loads(text)
                cycles.append(Heard(now_ns, read_events(events), read_actions(actions)))
        assert engine is None or frame is not None
        self._end(frame, cycles, tally, None)
        return tally

    def _end(
        self, frame: Frame | None, cycles: list[Heard], tally: Tally, after: Frame | None
    ) -> Engine | None:
        if frame is None:
            return None
        engine = engine_of(frame.engine, frame.settings, self._leader_of, frame.why != START)
        if replay(engine, cycles, tally) and after is not None:
            compare_state(engine, after.engine, after.why, after.at_ns, tally)
        return engine
