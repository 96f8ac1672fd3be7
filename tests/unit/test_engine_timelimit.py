"""Parked time goes back to the time limit by ADR 0013's rule, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.lifecycle import time_limits
from gandiva_slurm.engine.state.time_limit_credit import Giving, Parked
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, SetTimeLimit
from gandiva_slurm.model.bounds import Bounds, Reservation
from gandiva_slurm.model.event import Event
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import SlurmJob
from tests.builders import SECOND_NS, a_job, a_node
from tests.fake_world import an_engine, as_configured

BEGIN_S = 10**6
MINUTE_S = 60


class Clock:
    """One job on one node, its limit in Slurm and its parked time; `obeys` = Slurm does what it is told."""

    def __init__(self, limit_min: int = 60, bounds: Bounds | None = None, stretch_percent: int = 200) -> None:
        self.settings = EngineSettings(stretch_percent=stretch_percent)
        self.engine = an_engine(self.settings)
        self.now_s, self.parked_s, self.spent_s, self.obeys = BEGIN_S, 0, 0, True
        self.job: SlurmJob = a_job(1, time_limit_s=limit_min * MINUTE_S)
        self.outcomes: list[Event] = []
        bounds = bounds or Bounds()
        self.engine.handle([ev.NodeSeen(a_node()), ev.BoundsSeen(bounds)], self.now_s * SECOND_NS)
        self.tick(1)
        self.job = replace(self.job, state="RUNNING", nodes=("n1",), start_s=BEGIN_S, priority=9)
        self.tick(1)

    def tick(self, seconds: int, parked: int = 0) -> list[SetTimeLimit]:
        """So many seconds pass, in so many of which the job was parked; then one cycle."""
        self.now_s += seconds
        self.parked_s += parked
        events: list[Event] = [*self.outcomes, ev.JobSeen(self.job)]
        if self.job.state == "RUNNING":
            key = JobKey(1, self.job.restart)
            told = ("n1", key, states.RUNNING, (0,), "", "", self.parked_s * SECOND_NS)
            events.append(ev.ResidentSeen(*told, spent_ns=self.spent_s * SECOND_NS))
        actions = self.engine.handle([*events, ev.CycleTick()], self.now_s * SECOND_NS)
        self.outcomes = []
        return [self._obey(action) for action in actions if isinstance(action, SetTimeLimit)]

    def _obey(self, action: Action) -> SetTimeLimit:
        assert isinstance(action, SetTimeLimit)
        self.outcomes.append(ev.ActionDone(action.action_id, "" if self.obeys else "Access denied"))
        if self.obeys:
            self.job = replace(self.job, time_limit_s=action.minutes * MINUTE_S)
        return action

    def go_elsewhere(self, spent_s: int) -> None:
        """Its node is left: it is requeued, and runs again, from an image of what had run for `spent_s`."""
        waiting = replace(self.job, state="PENDING", nodes=(), priority=0, start_s=0)
        self.job = replace(waiting, restart=self.job.restart + 1)
        self.parked_s, self.spent_s = 0, spent_s
        self.tick(1)
        self.tick(1)
        self.job = replace(self.job, state="RUNNING", nodes=("n1",), start_s=self.now_s, priority=9)

    def minutes(self) -> int:
        """The limit in Slurm."""
        return self.job.time_limit_s // MINUTE_S

    def restart_controller(self, keep_journal: bool = True) -> None:
        """Another gandivactld takes over."""
        data = json.loads(json.dumps(self.engine.to_json()))
        self.engine = an_engine(self.settings)
        if keep_journal:
            self.engine = Engine.from_json(self.settings, data, as_configured(self.settings))
        self.outcomes = []
        news = [ev.NodeSeen(a_node()), ev.BoundsSeen(Bounds())]
        self.engine.handle(news, self.now_s * SECOND_NS)


def test_a_job_that_is_never_parked_keeps_its_limit() -> None:
    clock = Clock()
    assert all(not clock.tick(60) for _ in range(70))


def test_parked_time_comes_back_in_steps_of_five_minutes() -> None:
    clock = Clock(60)
    grown = [action.minutes for _ in range(40) for action in clock.tick(60, parked=30)]
    assert grown == [65, 70, 75, 80]


def test_near_the_end_it_comes_by_the_minute_and_never_more_than_was_parked() -> None:
    clock = Clock(12)
    for _ in range(30):
        clock.tick(60, parked=30)
        assert clock.parked_s - (clock.minutes() - 12) * MINUTE_S >= 0
    assert clock.minutes() * MINUTE_S > clock.now_s - BEGIN_S - 12 * MINUTE_S, "it still runs"


def test_a_job_runs_what_it_asked_for_less_a_minute() -> None:
    """Parked half of the time, it may run 12 minutes of about 24."""
    clock = Clock(12)
    while clock.now_s - BEGIN_S < clock.job.time_limit_s:
        clock.tick(10, parked=5)
    ran_s = clock.now_s - BEGIN_S - clock.parked_s
    assert 11 * MINUTE_S <= ran_s <= 12 * MINUTE_S


def test_never_past_max_time_times_the_stretch() -> None:
    clock = Clock(60, Bounds(max_time_s=(("gandiva", 60 * MINUTE_S),)), stretch_percent=150)
    for _ in range(600):
        clock.tick(60, parked=59)
    assert clock.minutes() == 90


def test_nor_into_a_reservation_of_its_node() -> None:
    service = Reservation("service", ("n1",), BEGIN_S + 72 * MINUTE_S, BEGIN_S + 99 * MINUTE_S)
    other = Reservation("other", ("n2",), BEGIN_S + 62 * MINUTE_S, BEGIN_S + 99 * MINUTE_S)
    clock = Clock(60, Bounds(reservations=(service, other)))
    for _ in range(71):
        clock.tick(60, parked=59)
    assert clock.minutes() == 72


def test_a_limit_that_is_past_those_bounds_already_is_left_as_it_is() -> None:
    clock = Clock(200, Bounds(max_time_s=(("gandiva", 60 * MINUTE_S),)))
    assert not [action for _ in range(190) for action in clock.tick(60, parked=50)]


def test_without_bounds_nothing_is_given() -> None:
    clock = Clock(10)
    clock.engine.state.bounds = None
    assert not [action for _ in range(9) for action in clock.tick(60, parked=50)]


def test_what_its_owner_takes_off_stays_off() -> None:
    clock = Clock(60)
    for _ in range(20):
        clock.tick(60, parked=30)
    assert clock.minutes() == 70
    clock.job = replace(clock.job, time_limit_s=50 * MINUTE_S)
    grown = [action.minutes for _ in range(10) for action in clock.tick(60, parked=0)]
    assert grown == [], "40 of his and 10 parked are the 50 he set"
    for _ in range(5):
        clock.tick(60, parked=60)
    assert clock.minutes() == 55


@pytest.mark.parametrize("keep_journal", [True, False])
def test_another_controller_gives_nothing_twice(keep_journal: bool) -> None:
    clock = Clock(60)
    for _ in range(20):
        clock.tick(60, parked=30)
    clock.restart_controller(keep_journal)
    assert not [action for _ in range(3) for action in clock.tick(10, parked=5)]
    for _ in range(20):
        clock.tick(60, parked=30)
    assert clock.minutes() == 80


def test_a_request_that_failed_is_made_again() -> None:
    clock = Clock(60)
    clock.obeys = False
    assert len(clock.tick(600, parked=300)) == 1
    assert not clock.tick(5)
    clock.obeys = True
    assert [action.minutes for action in clock.tick(6)] == [65]
    assert not clock.tick(20)


def test_a_requeued_job_begins_with_the_limit_it_was_given_at_first() -> None:
    clock = Clock(60)
    for _ in range(20):
        clock.tick(60, parked=30)
    assert clock.minutes() == 70
    clock.parked_s = 0
    clock.job = replace(clock.job, state="PENDING", restart=1, nodes=(), priority=0, start_s=0)
    assert [action.minutes for _ in range(3) for action in clock.tick(1)] == [60]
    clock.job = replace(clock.job, state="RUNNING", nodes=("n1",), start_s=clock.now_s, priority=9)
    clock.tick(60, parked=20)
    assert clock.minutes() == 60


def test_what_goes_on_from_an_image_has_used_what_it_had_used() -> None:
    clock = Clock(60)
    for _ in range(20):
        clock.tick(60, parked=30)
    assert clock.minutes() == 70
    clock.go_elsewhere(spent_s=630)
    assert clock.minutes() == 60, "until it runs nobody knows that its image served"
    lowered = clock.tick(1)
    assert [action.minutes for action in lowered] == [49], "60 min less 10 min 30 s, in whole minutes"
    why = "it goes on from an image: what it had used stays used"
    assert lowered[0].text == f"time limit from 60 to 49 min: {why}"
    assert not [action for _ in range(9) for action in clock.tick(60)]
    grown = [action.minutes for _ in range(10) for action in clock.tick(60, parked=30)]
    assert grown == [54]
    clock.go_elsewhere(spent_s=1500)
    assert clock.minutes() == 60
    clock.restart_controller()
    clock.tick(1)
    assert clock.minutes() == 35


def test_what_begins_anew_after_an_image_has_all_of_its_time() -> None:
    """It was not waiting for long enough to be seen."""
    clock = Clock(60)
    clock.go_elsewhere(spent_s=1200)
    clock.tick(1)
    assert clock.minutes() == 40
    clock.job = replace(clock.job, restart=2, start_s=clock.now_s)
    clock.spent_s = 0
    clock.tick(1)
    assert clock.minutes() == 60


def test_what_has_used_all_of_its_time_is_ended_by_slurm() -> None:
    clock = Clock(10)
    clock.go_elsewhere(spent_s=11 * MINUTE_S)
    assert [action.minutes for _ in range(5) for action in clock.tick(1)] == [1]


def test_why_tells_what_a_limit_is_made_of() -> None:
    clock = Clock(60)
    clock.go_elsewhere(spent_s=630)
    for _ in range(12):
        clock.tick(60, parked=30)
    record = clock.engine.state.jobs[1]
    (told,) = time_limits.told(record, clock.engine.state.givings[1])
    assert told == "time limit 55 min: 60 set for it, 6 given back for parked time, 11 used before it moved"


def test_a_node_that_lost_its_count_adds_to_it() -> None:
    clock = Clock(60)
    clock.tick(600, parked=290)
    clock.parked_s = 0
    assert [action.minutes for action in clock.tick(60, parked=20)] == [65]


def test_a_job_without_a_limit_needs_nothing() -> None:
    clock = Clock(0)
    assert not clock.tick(600, parked=600)


def test_a_gang_was_parked_while_all_its_nodes_say_so() -> None:
    giving = Giving(0, parked={"n1": Parked(300 * SECOND_NS), "n2": Parked(60 * SECOND_NS)})
    assert giving.parked_s(("n1", "n2")) == 60
    assert giving.parked_s(("n1", "n2", "n3")) == 0, "n3 has not told"
