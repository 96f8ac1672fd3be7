"""Everything that happens to a cluster, and daemons killed in mid-everything: the journal is told again.

Beside what the machine of the engine does (jobs, nodes, daemons that fall silent, controllers that come back
with a journal or without one): the controller dies in mid-cycle, before what it decided was done or before it
heard of that; Slurm is away; another policy takes over; pairs share GPUs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.policy.registry import make_policy
from tests.fake_world import FakeWorld
from tests.killed_world import KilledWorld
from tests.property import test_replay_machine
from tests.slow import drawn
from tests.tape import Tape

#: Besides the machine's own, which decides again at the end.
OTHERS = ("fifo", "tiresias", "gandiva")


class KillsMachine(test_replay_machine.ReplayMachine):
    """The machine of the engine, recorded, with kills in mid-everything."""

    small_slurm = KilledWorld
    world: KilledWorld

    def recorded(self, world: FakeWorld) -> None:
        world.packed_rate = 2.5
        own = world.make_policy
        assert own is not None
        told = PolicySettings(world.settings.quantum_ns)

        def maker(name: str) -> Any:
            return own if name == "of this test" else lambda: make_policy(name, told)[0]

        self.maker = maker
        self.tape = Tape(lambda told: Leader(maker(told["policy"]), told))
        world.handle = self.tape.handle

    @rule(dt_s=st.sampled_from((0.2, 1.0, 7.0)), done=st.booleans())
    def the_controller_dies_in_mid_cycle(self, dt_s: float, done: bool) -> None:
        self.world.cycle_cut_short(dt_s, done)

    @rule(n=st.integers(1, 5), dt_s=st.sampled_from((1.0, 20.0)))
    def slurm_is_away(self, n: int, dt_s: float) -> None:
        for _ in range(n):
            self.world.cycle_without_slurm(dt_s)

    @rule(name=st.sampled_from(OTHERS), is_killed=st.booleans())
    def another_policy_takes_over(self, name: str, is_killed: bool) -> None:
        """A reload, perhaps in the cycle in which the controller dies."""
        self._lead(name)
        if is_killed:
            self.world.cycle_cut_short()

    def _lead(self, name: str) -> None:
        self.world.make_policy, self.world.told_of_policy = self.maker(name), {"policy": name}
        self.world.engine.lead(self.world.leader())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._lead("of this test")
        super().teardown()


TestKillsMachine = KillsMachine.TestCase
TestKillsMachine.settings = settings(
    max_examples=drawn(40), stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
