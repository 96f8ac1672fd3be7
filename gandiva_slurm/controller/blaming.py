"""An error in a cycle that one job causes sets that job aside, and the cycle is done again without it.

An error that is no job's is raised as it came: the cycle begins anew, from the journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from gandiva_slurm.controller.recorder import Recorder
from gandiva_slurm.engine import blame
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import Event

#: How long a search may take: systemd's watchdog has a minute, nodes wait three quanta and 10 s for turns.
LONGEST_S = 10.0
#: An error for which no job was found is not looked into again for so long, nor is a job told of again.
AGAIN_S = 60.0

log = logging.getLogger(__name__)


class Guarded:
    """Has the engine decide, through the recorder."""

    def __init__(self, recorder: Recorder, engine: Engine) -> None:
        self.recorder = recorder
        #: its state as JSON text after the last cycle
        self.state = ""
        #: when each error was looked into in vain, and each job was told of
        self._vain: dict[str, float] = {}
        self._told: dict[int, float] = {}
        self.note(engine)

    def note(self, engine: Engine) -> str:
        """Note the engine as it is before the next cycle; return its state as JSON text."""
        self.state = blame.as_json(engine)
        return self.state

    def handle(self, engine: Engine, events: Sequence[Event], now_ns: int) -> tuple[Engine, list[Action]]:
        """Return the actions, and the engine that goes on: another one where a job was set aside."""
        then = blame.before(self.state, engine)
        had_raised = engine.decider.raised
        try:
            actions = self.recorder.handle(engine, events, now_ns)
            blame.read_out(engine)
        except Exception as err:
            done = self._without_culprits(then, events, now_ns, err, is_policys=False)
            if done is None:
                raise
            return done
        raised = engine.decider.raised
        if raised is None or had_raised is not None:
            return engine, actions
        return self._without_culprits(then, events, now_ns, raised, is_policys=True) or (engine, actions)

    def _without_culprits(
        self, then: blame.Before, events: Sequence[Event], now_ns: int, err: Exception, is_policys: bool
    ) -> tuple[Engine, list[Action]] | None:
        """Do the cycle again without the jobs that cause an error; None: it is no job's."""
        why, now_s = blame.in_words(err), time.monotonic()
        if now_s - self._vain.get(why, float("-inf")) < AGAIN_S:
            return None
        end_s = now_s + LONGEST_S
        found = blame.culprits(then, events, now_ns, err, lambda: time.monotonic() < end_s, is_policys)
        if not found:
            self._vain = {each: at_s for each, at_s in self._vain.items() if now_s - at_s < AGAIN_S}
            self._vain[why] = time.monotonic()
            return None
        engine = blame.again(then)
        actions = self.recorder.handle(engine, [*found, *events], now_ns)
        blame.read_out(engine)
        self._tell(engine, [each.job_id for each in found], err)
        return engine, actions

    def _tell(self, engine: Engine, jobs: Sequence[int], err: Exception) -> None:
        now_s = time.monotonic()
        self._told = {job_id: at_s for job_id, at_s in self._told.items() if now_s - at_s < AGAIN_S}
        for job_id in jobs:
            if job_id not in self._told:
                log.error("job %d: %s", job_id, engine.state.aside[job_id].reason.text, exc_info=err)
            self._told[job_id] = now_s
