"""Limits and reservations of Slurm's: who is taken back, who waits behind whom, where nothing is placed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.lifecycle.limits import behind, waiting_for_limits
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain
from gandiva_slurm.model.bounds import Bounds, Reservation
from gandiva_slurm.model.pending import explain
from gandiva_slurm.model.reason import because
from tests.builders import SECOND_NS, a_job, a_node
from tests.fake_world import FakeWorld, an_engine, starts

HOUR_S = 3600


class LimitedWorld(FakeWorld):
    """A Slurm that runs at most `most` of user1's jobs."""

    most = 1

    def _schedule(self) -> None:
        mine = [job for job in self.jobs.values() if job.user == "user1"]
        room = self.most - sum(job.state == "RUNNING" for job in mine)
        released = [job for job in mine if job.state == "PENDING" and not job.is_held]
        limited = [replace(job, reason="AssocMaxJobsLimit") for job in released[max(0, room) :]]
        for job in limited:
            del self.jobs[job.job_id]
        super()._schedule()
        self.jobs |= {job.job_id: job for job in limited}


@pytest.fixture
def world() -> LimitedWorld:
    return LimitedWorld({"n1": 4})


def test_a_job_behind_a_limit_is_taken_back_at_once_and_blocks_nobody(world: LimitedWorld) -> None:
    first, second = world.submit(), world.submit()
    other = world.submit("user2")
    world.run(3)
    assert world.running() == [first, other]
    record = world.engine.jobs[second]
    assert (record.state, record.code, record.places) == (states.HELD, "Limit", {})
    assert "running jobs" in record.text and "AssocMaxJobsLimit" in record.text
    assert world.jobs[second].is_held


def test_it_starts_as_soon_as_a_job_under_the_limit_has_ended(world: LimitedWorld) -> None:
    first, second = world.submit(), world.submit()
    world.run(3)
    world.finish(first)
    world.run(3)
    assert world.running() == [second]


def test_it_asks_again_when_nobody_ended_but_the_limit_is_raised(world: LimitedWorld) -> None:
    world.submit()
    second = world.submit()
    world.run(5)
    world.most = 2
    world.run(world.settings.probe_ns // SECOND_NS + 2)
    assert world.state_of(second) == states.RUNNING


def test_of_many_jobs_behind_one_limit_one_asks(world: LimitedWorld) -> None:
    jobs = [world.submit() for _ in range(5)]
    world.run(3)
    actions = world.run(300)
    assert len(starts(actions)) <= 300 // (world.settings.probe_ns // SECOND_NS) + 1
    codes = [world.code_of(job) for job in jobs]
    assert codes.count("Limit") == 1 and codes.count("BehindLimit") == 3
    assert str(jobs[codes.index("Limit")]) in world.engine.jobs[jobs[codes.index("BehindLimit")]].text


def test_while_one_asks_the_other_that_was_told_to_wait_does_not(world: LimitedWorld) -> None:
    first, second, third = (world.submit() for _ in range(3))
    world.run(3)
    jobs = world.engine.jobs
    assert {world.code_of(second), world.code_of(third)} <= {"Limit", "BehindLimit"}
    jobs[second].retry_ns = jobs[third].retry_ns = 0
    world.cycle()
    assert (world.state_of(first), world.state_of(second)) == (states.RUNNING, states.STARTING)
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    assert behind(at, jobs[third], waiting_for_limits(at)) is not None
    jobs[third].reason = because("New")
    assert behind(at, jobs[third], waiting_for_limits(at)) is None, "nobody has told it of a limit yet"


def test_a_smaller_job_of_the_same_user_may_still_ask(world: LimitedWorld) -> None:
    world.submit()
    big = world.submit(gpus=2)
    world.run(3)
    small = world.submit(gpus=1)
    (start,) = starts(world.cycle())
    assert (world.code_of(big), start.key.job_id) == ("Limit", small)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("AssocGrpGRES", "GPUs of resident jobs"),
        ("QOSMaxGRESPerUser", "GPUs of resident jobs of one user"),
        ("QOSMaxJobsPerUserLimit", "running jobs of one user"),
        ("AssocGrpCPURunMinutesLimit", "CPUs"),
        ("QOSGrpMemLimit", "memory"),
        ("PartitionTimeLimit", "time limit is longer"),
        ("AssocGrpSomethingNew", "resources"),
    ],
)
def test_limits_in_words(word: str, told: str) -> None:
    pending = explain(word, 7)
    assert pending.is_limit and told in pending.words and pending.then


@pytest.mark.parametrize(
    "word", ["Resources", "Priority", "ReqNodeNotAvail, UnavailableNodes:n1", "None", "", "JobHeldAdmin"]
)
def test_what_is_no_limit(word: str) -> None:
    assert not explain(word, 7).is_limit


def a_reservation(name: str, nodes: tuple[str, ...], start_s: int, hours: int = 1) -> Reservation:
    return Reservation(name, nodes, start_s, start_s + hours * HOUR_S)


def placed(bounds: Bounds, **fields: object) -> tuple[str, tuple[str, ...]]:
    """Where a job goes on two nodes, or why it waits; it is 1,000,000."""
    engine = an_engine()
    job = a_job(1, **fields)
    news = [ev.NodeSeen(a_node("n1")), ev.NodeSeen(a_node("n2")), ev.BoundsSeen(bounds), ev.JobSeen(job)]
    engine.handle([*news, ev.CycleTick()], 10**6 * SECOND_NS)
    record = engine.jobs[1]
    return record.code, record.nodes


NOW_S = 10**6


def test_a_node_reserved_before_the_limit_is_over_is_no_place() -> None:
    soon = Bounds(reservations=(a_reservation("service", ("n1",), NOW_S + HOUR_S),))
    assert placed(soon, time_limit_s=2 * HOUR_S) == ("Starting", ("n2",))
    assert placed(soon, time_limit_s=HOUR_S) == ("Starting", ("n1",))
    assert placed(soon, time_limit_s=0) == ("Starting", ("n2",)), "no limit: for ever"


def test_a_reservation_that_is_over_closes_nothing() -> None:
    over = Bounds(reservations=(a_reservation("old", ("n1",), NOW_S - HOUR_S),))
    assert placed(over) == ("Starting", ("n1",))


def test_with_all_nodes_reserved_it_says_so() -> None:
    now = Bounds(reservations=(a_reservation("course", ("n1", "n2"), NOW_S - 1),))
    assert placed(now, time_limit_s=60) == ("Reserved", ())


def test_a_job_with_a_reservation_runs_there_and_nowhere_else() -> None:
    open_ = Bounds(reservations=(a_reservation("course", ("n2",), NOW_S - 1),))
    assert placed(open_, reservation="course") == ("Starting", ("n2",))
    later = Bounds(reservations=(a_reservation("course", ("n2",), NOW_S + 1),))
    assert placed(later, reservation="course") == ("Reserved", ())
    assert placed(Bounds(), reservation="gone") == ("Reserved", ())


def test_a_start_that_slurm_ignores_for_a_limit_is_held_once(world: LimitedWorld) -> None:
    world.submit(), world.submit()
    actions = world.run(5)
    assert [type(action) for action in actions].count(HoldAgain) == 1


def test_a_job_whose_owner_changes_what_was_in_the_way_asks_at_once(world: LimitedWorld) -> None:
    world.submit()
    second = world.submit(qos="small")
    world.run(3)
    assert world.code_of(second) == "Limit"
    world.most = 2
    world.jobs[second] = replace(world.jobs[second], qos="large")
    world.run(3)
    assert world.state_of(second) == states.RUNNING
