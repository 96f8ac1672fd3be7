"""A small Slurm whose daemons die: the controller in mid-cycle, slurmctld for a while."""

from __future__ import annotations

from gandiva_slurm.engine.invariants import violations
from tests.fake_world import FakeWorld


class KilledWorld(FakeWorld):
    """The same, killed in mid-everything."""

    def cycle_cut_short(self, dt_s: float = 1.0, done: bool = False) -> None:
        """The controller is killed in mid-cycle, and comes back.

        Its journal has what it decided. Nothing of that is done, or all is and nobody has heard of it.
        """
        actions = self._decide(dt_s)
        if done:
            self._publish()
            for action in actions:
                self._obey(action)
        self._schedule()
        self.restart_controller(keep_journal=True)

    def cycle_without_slurm(self, dt_s: float = 1.0) -> None:
        """slurmctld does not answer: nodes are heard, nothing is decided, nothing starts."""
        self._pass_time(dt_s)
        self.handle(self.engine, [*self.outcomes, *self._reports()], self.now_ns)
        self.outcomes = []
        assert violations(self.engine) == []
        self._publish()
