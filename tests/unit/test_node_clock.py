"""gandivad's time: what a hold lasts is moved by no step of the system's clock, and by no suspend."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from gandiva_slurm.accounting.ledger import Ledger as Accounts
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, job_usage
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import clock
from gandiva_slurm.node.ledger import Ledger
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.builders import a_job

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


STEPS = pytest.mark.parametrize("step_ns", [HOUR, -HOUR, DAY, -DAY], ids=["+1h", "-1h", "+1d", "-1d"])
ONE, TWO = JobKey(1, 0), JobKey(2, 0)


@pytest.fixture
def books(machine: Machine, tmp_path: Path) -> Books:
    return Books(machine, tmp_path)


class Books:
    """The holds of a node whose clock is looked at once a second, and the accounts of the cluster."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.clock = machine, clock.Clock()
        self.node = Ledger(directory / "holds.jsonl", "boot-1")
        self.path = directory / "ledger.sqlite"
        self.accounts = Accounts(self.path)
        jobs = [a_job(key.job_id, "user1", 1, submit_s=1) for key in (ONE, TWO)]
        self.accounts.record_jobs(jobs, {})

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.machine.mono_ns += S
            self.machine.system_ns += S
            if step_ns := self.clock.correct():
                self.node.redate(self.clock.real() - step_ns, self.clock.real())

    def told(self) -> list[Hold]:
        """Report all, and return what was closed."""
        holds = self.node.report(self.clock.real())
        self.accounts.record_report(NodeReport("n1", "boot-1", self.clock.real(), 0, 0, 2, (), holds, ()))
        return [hold for hold in holds if hold.seq]

    def used_s(self, begin_ns: int, end_ns: int) -> dict[int, float]:
        with sqlite3.connect(self.path) as db:
            db.row_factory = sqlite3.Row
            rows = job_usage(db, Window(begin_ns, end_ns, end_ns), Filter(), ())
        return {row["job_id"]: row["gpu_held_s"] for row in rows}


@STEPS
def test_a_step_moves_no_hold_and_dates_are_right_after_it(books: Books, step_ns: int) -> None:
    """A suspend is a step too: CLOCK_MONOTONIC stands still in it."""
    books.node.begin(ONE, "user1", (0,), books.clock.real())
    books.passes(30)
    books.machine.system_ns += step_ns
    books.passes(30)
    books.node.end(ONE, books.clock.real())
    books.node.begin(TWO, "user1", (0,), books.clock.real())
    books.passes(60)
    books.node.end(TWO, books.clock.real())
    closed, now_ns = books.told(), books.machine.system_ns
    lengths = [(hold.t1_ns - hold.t0_ns) / S for hold in closed]
    assert lengths == [31, 29, 60], "none is negative, and none lasts as long as the step"
    assert now_ns - closed[-1].t1_ns == 0 and now_ns - closed[-1].t0_ns == 60 * S
    begin_ns = min(hold.t0_ns for hold in closed) - S
    end_ns = max(hold.t1_ns for hold in closed) + S
    assert books.used_s(begin_ns, end_ns) == {1: 60.0, 2: 60.0}
    assert books.used_s(now_ns - 60 * S, now_ns)[2] == 60.0, "the last minute is found as the last minute"


@STEPS
def test_an_open_hold_is_cut_once_though_gandivad_dies_at_the_step(books: Books, step_ns: int) -> None:
    """The next one goes on with what was saved, and with the dates of before, until it looks."""
    books.node.begin(ONE, "user1", (0,), books.clock.real())
    books.passes(30)
    saved, offset_ns = books.node.to_json(), books.clock.offset_ns
    books.machine.system_ns += step_ns
    books.clock, books.node = clock.Clock(offset_ns), Ledger(books.node.path, "boot-2")
    books.node.restore(saved, rebooted=False)
    books.passes(30)
    books.node.end(ONE, books.clock.real())
    assert [(hold.t1_ns - hold.t0_ns) / S for hold in books.told()] == [31, 29]


def test_of_a_pair_both_are_cut_and_stay_one(books: Books) -> None:
    for key in (ONE, TWO):
        books.node.begin(key, "user1", (0,), books.clock.real())
    for key, mate in ((ONE, TWO), (TWO, ONE)):
        books.node.share(key, mate.job_id, books.clock.real())
    books.passes(5)
    books.machine.system_ns -= HOUR
    books.passes(5)
    for key in (ONE, TWO):
        books.node.end(key, books.clock.real())
    found = [(hold.job_id, hold.shared_with, (hold.t1_ns - hold.t0_ns) // S) for hold in books.told()]
    assert sorted(found) == [(1, 2, 4), (1, 2, 6), (2, 1, 4), (2, 1, 6)]


def test_gandivad_cuts_its_holds_when_it_sees_a_step(floor, monkeypatch: pytest.MonkeyPatch) -> None:
    floor = floor()
    floor.come_in()
    node = floor.node
    (begun,) = node.ledger.open.values()
    floor.clock.now_ns += 10 * S

    def jump() -> int:
        floor.clock.offset_ns -= HOUR
        return -HOUR

    monkeypatch.setattr(floor.clock, "correct", jump)
    floor.watcher.beat()
    (hold,) = node.ledger.open.values()
    assert hold.t0_ns == node.clock.real() == begun.t0_ns + 10 * S - HOUR
    assert [hold.t1_ns - hold.t0_ns for hold in node.ledger.report(node.clock.real())] == [10 * S, 0]


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
