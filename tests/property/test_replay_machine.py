"""Whatever happened to a controller, told again it decides the same, and its frames are the whole of it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from gandiva_slurm.engine.replay import engine_of, frame_of, settings_of
from tests.fake_world import FakeWorld
from tests.property import test_engine_machine
from tests.slow import DRAWN, drawn
from tests.tape import Tape


class ReplayMachine(test_engine_machine.EngineMachine):
    """The machine of the engine, recorded."""

    def recorded(self, world: FakeWorld) -> None:
        leader = world.leader()
        self.tape = Tape(lambda told: leader)
        world.handle = self.tape.handle

    @rule()
    def a_frame_is_the_whole_engine(self) -> None:
        engine = self.world.engine
        again = engine_of(frame_of(engine), settings_of(engine), lambda told: self.world.leader())
        assert again.state == engine.state

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "tape"):
            first = self.tape.replay().first
            assert first is None, first


TestReplayMachine = DRAWN(ReplayMachine.TestCase)
TestReplayMachine.settings = settings(
    max_examples=drawn(30), stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
