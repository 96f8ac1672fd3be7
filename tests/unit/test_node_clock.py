"""gandivad's time: what a hold lasts is moved by no step of the system's clock, and by no suspend."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gandiva_slurm.node import clock

S = 1_000_000_000
HOUR, DAY = 3600 * S, 86_400 * S


class Machine:
    """CLOCK_MONOTONIC and the system's clock of a host."""

    def __init__(self) -> None:
        self.mono_ns, self.system_ns = 1000 * S, 1_800_000_000 * S

    def passes(self, seconds: int, made: clock.Clock) -> None:
        for _ in range(seconds):
            self.mono_ns += S
            self.system_ns += S
            made.correct()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    fake = SimpleNamespace(time_ns=lambda: made.system_ns, monotonic_ns=lambda: made.mono_ns)
    monkeypatch.setattr(clock, "time", fake)
    return made


@pytest.mark.parametrize("step_ns", [HOUR, -HOUR, DAY, -DAY], ids=["+1h", "-1h", "+1d", "-1d"])
def test_a_step_moves_no_hold(machine: Machine, step_ns: int) -> None:
    """A suspend is a step too: CLOCK_MONOTONIC stands still in it."""
    made = clock.Clock()
    begin_ns = made.real()
    machine.passes(30, made)
    machine.system_ns += step_ns
    machine.passes(30, made)
    assert abs(made.real() - begin_ns - 60 * S) <= 30 * clock.SLEW_NS_PER_S


@pytest.mark.parametrize("step_ns", [HOUR, -HOUR])
def test_the_next_gandivad_of_this_boot_goes_on_in_the_same_time(machine: Machine, step_ns: int) -> None:
    made = clock.Clock()
    machine.system_ns += step_ns
    assert clock.Clock(made.offset_ns).real() == made.real()


def test_a_second_is_caught_up_with_in_half_an_hour(machine: Machine) -> None:
    made = clock.Clock()
    machine.system_ns += S
    machine.passes(2000, made)
    assert made.real() == machine.system_ns
