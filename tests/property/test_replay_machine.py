"""Whatever happened to a controller, told again it decides the same, and its frames are the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from gandiva_slurm.engine.replay import engine_of, frame_of, settings_of
from tests.fake_world import FakeWorld, ruled
from tests.property import test_engine_machine, test_led_machine
from tests.slow import drawn
from tests.tape import Tape


class ReplayMachine(test_engine_machine.EngineMachine):
    """The machine of the engine, recorded."""

    @staticmethod
    def leader_of(told: Mapping[str, Any]) -> None:
        """The engine's own rules decide."""

    @initialize()
    def begin(self) -> None:
        self.world = ruled({"n0": 2, "n1": 4, "n2": 4})
        self.tape = Tape()
        self.world.handle = self.tape.handle

    @rule()
    def a_frame_is_the_whole_engine(self) -> None:
        engine = self.world.engine
        assert engine_of(frame_of(engine), settings_of(engine), self.leader_of).state == engine.state

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "world"):
            assert self.tape.replay().first is None


class LedReplayMachine(test_led_machine.LedMachine):
    """The machine of an engine that a policy leads, recorded."""

    def recorded(self, world: FakeWorld) -> None:
        leader = world.leader()
        assert leader is not None
        self.tape = Tape(lambda told: leader)
        world.handle = self.tape.handle

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "tape"):
            assert self.tape.replay().first is None


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(
    max_examples=drawn(30), stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
TestLedReplayMachine = LedReplayMachine.TestCase
TestLedReplayMachine.settings = settings(
    max_examples=drawn(30), stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
