"""A small Slurm whose daemons die: the controller in mid-cycle, slurmctld for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gandiva_slurm.controller.later import Later
from gandiva_slurm.engine.invariants import violations
from gandiva_slurm.model import event as ev
from gandiva_slurm.model.action import Action, Start
from tests.fake_world import FakeWorld


class KilledWorld(FakeWorld):
    """The same, killed in mid-everything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        #: what the journal has without an outcome: the next controller does it, where it is still wanted
        self.later = Later(())

    def cycle(self, *args: Any, **more: Any) -> list[Action]:
        """One cycle; what was begun before a kill is done in it as gandivactld does."""
        actions = super().cycle(*args, **more)
        todo, overtaken = self.later.take_up(self.nodes.keys() - self.mute, self.engine.jobs)
        new = {action.action_id for action in actions}
        done = [self._take_up(action) for action in todo if action.action_id not in new]
        self.outcomes += [*overtaken, *done]
        self._schedule()
        return actions

    def cycle_cut_short(self, dt_s: float, done: bool, note: Callable[[], None] = lambda: None) -> None:
        """The controller is killed in mid-cycle, and comes back.

        Its journal has what it decided. Nothing of that is done, or all is and nobody has heard of it.
        `note`: called when it has decided.
        """
        decided = self._decide(dt_s)
        note()
        if done:
            self._publish()
            for action in decided:
                self._obey(action)
        self.later = Later(decided)
        self._schedule()
        self.restart_controller(keep_journal=True)

    def cycle_without_slurm(self, dt_s: float = 1.0) -> None:
        """slurmctld does not answer: nodes are heard, nothing is decided, nothing starts."""
        self._pass_time(dt_s)
        self.handle(self.engine, [*self.outcomes, *self._reports()], self.now_ns)
        self.outcomes = []
        assert violations(self.engine) == []
        self._publish()

    def _take_up(self, action: Action) -> ev.Event:
        job = self.jobs.get(action.key.job_id)
        if isinstance(action, Start) and (job is None or job.state != "PENDING" or not job.is_held):
            return ev.ActionDone(action.action_id)  # it was done (`executor`)
        return self._obey(action)
