"""gandivactld's time: even whatever the system's clock is set to, over suspends, restarts and reboots."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva_slurm.controller.clock import Clock
from gandiva_slurm.model import event as ev
from tests.fake_world import FakeWorld, starts

S = 1_000_000_000
HOUR, DAY = 3600 * S, 86_400 * S
STEPS = pytest.mark.parametrize("step_ns", [HOUR, -HOUR, DAY, -DAY], ids=["+1h", "-1h", "+1d", "-1d"])


class Machine:
    """The two clocks of a host, and its boot's name."""

    def __init__(self) -> None:
        self.since_boot_ns, self.system_ns, self.boot = 1000 * S, 1_800_000_000 * S, "one"

    def passes(self, ns: int) -> None:
        self.since_boot_ns += ns
        self.system_ns += ns

    def clock(self, file: Path) -> Clock:
        return Clock(file, lambda: self.since_boot_ns, lambda: self.system_ns, lambda: self.boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@STEPS
def test_a_step_moves_no_deadline_and_the_skew_is_known(
    machine: Machine, tmp_path: Path, step_ns: int
) -> None:
    clock = machine.clock(tmp_path / "clock")
    begin_ns = clock.now_ns()
    machine.system_ns += step_ns
    machine.passes(5 * S)
    assert clock.now_ns() == begin_ns + 5 * S
    assert clock.look() == step_ns and clock.shown_ns() == clock.now_ns() + step_ns
    machine.system_ns -= step_ns
    assert clock.look() == 0


def test_a_suspend_is_time_that_passed(machine: Machine, tmp_path: Path) -> None:
    clock = machine.clock(tmp_path / "clock")
    begin_ns = clock.now_ns()
    machine.passes(DAY)
    assert clock.now_ns() == begin_ns + DAY and clock.look() == 0


@STEPS
def test_a_restart_goes_on_in_even_time(machine: Machine, tmp_path: Path, step_ns: int) -> None:
    first = machine.clock(tmp_path / "clock")
    first.save()
    machine.system_ns += step_ns  # once while it runs, once while it is away
    first.look()
    first.save()
    machine.system_ns += step_ns
    machine.passes(60 * S)
    second = machine.clock(tmp_path / "clock")
    assert second.now_ns() == first.now_ns() and second.look() == 2 * step_ns


@STEPS
def test_a_reboot_goes_on_by_the_systems_time_and_never_back(
    machine: Machine, tmp_path: Path, step_ns: int
) -> None:
    first = machine.clock(tmp_path / "clock")
    first.save()
    last_ns = first.now_ns()
    machine.boot, machine.since_boot_ns = "two", 5 * S
    machine.system_ns += step_ns
    second = machine.clock(tmp_path / "clock")
    assert second.now_ns() == max(last_ns, last_ns + step_ns)
    assert second.look() == min(0, step_ns)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "one"}', '{"boot":"one","offset_ns":"x"}'])
def test_a_file_that_says_nothing_is_no_file(machine: Machine, tmp_path: Path, text: str) -> None:
    (tmp_path / "clock").write_text(text)
    assert machine.clock(tmp_path / "clock").now_ns() == machine.system_ns


@STEPS
@pytest.mark.parametrize("late_s", [0, 30])
def test_slurms_begin_times_are_slurms_and_retries_ours(step_ns: int, late_s: int) -> None:
    """A start that failed is tried again when it would have been; a begin time is met by Slurm's clock."""
    when: list[int] = []
    for skew_ns in (0, step_ns):
        world = FakeWorld({"n1": 2})
        world.refuse_starts = True
        world.submit()
        world.run(3)
        world.refuse_starts = False
        world.outcomes.append(ev.ClockSkew(skew_ns))
        begin_s = (world.now_ns + skew_ns) // S + 20 + late_s
        later = world.submit("user2", eligible_s=begin_s)
        found: dict[int, int] = {}
        for cycle in range(90):
            for start in starts(world.cycle()):
                found.setdefault(start.key.job_id, cycle)
        when.append(found[1])
        assert later in found and abs(found[later] - 20 - late_s) <= 1
    assert when[0] == when[1]
