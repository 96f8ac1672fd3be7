"""Forecasts: the engine run forward, lengths drawn, ranges made of runs, and what was learnt from errors."""

from __future__ import annotations

import json
from random import Random

import pytest

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model import event as ev
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.sim.forecast.forward import Forward, Run
from gandiva_slurm.sim.forecast.lengths import Ask, Lengths, Past
from gandiva_slurm.sim.forecast.memory import LEAST, Memory
from gandiva_slurm.sim.forecast.ranges import Foretold, Present, Range, asks, forecast, range_of
from tests.builders import ACCOUNT, a_job, a_node

S = 10**9
NOW_NS, QUANTUM_NS = 10**18, 60 * S
LEADER = Leader(lambda: gandiva_fair.make(PolicySettings(QUANTUM_NS)))
USERS = ("user1", "user2")
TREE = (
    Association("root", "", "", 1),
    Association(ACCOUNT, "", "root", 1),
    *(Association(ACCOUNT, user, "", 1) for user in USERS),
)


def engine(*jobs: object, gpus: int = 1) -> Engine:
    """An engine that has heard of these jobs and of one node."""
    made = Engine(EngineSettings(QUANTUM_NS, 4), LEADER)
    news = [ev.NodeSeen(a_node(gpus=gpus)), ev.SharesSeen(TREE), *(ev.JobSeen(job) for job in jobs)]  # type: ignore[arg-type]
    made.handle([*news, ev.CycleTick()], NOW_NS)
    return made


def copy(of: Engine) -> Engine:
    """As it would be read from what was written down."""
    made = Engine.from_json(of.settings, json.loads(json.dumps(of.to_json())), LEADER)
    made.decider.is_same_life = made.state.has_read_slurm = True
    return made


def run(of: Engine, **work_s: float) -> Run:
    """Run forward with so much work for each job."""
    work = {int(name[1:]): round(left_s * S) for name, left_s in work_s.items()}
    return Forward(of, work, NOW_NS).go(NOW_NS + 10**6 * S)


def seconds(at_ns: int) -> float:
    return (at_ns - NOW_NS) / S


def test_a_job_alone_starts_at_once_and_ends_when_its_work_is_done() -> None:
    told = run(engine(a_job(1)), j1=500)
    assert told.is_over and seconds(told.courses[1].start_ns) < 1
    assert seconds(told.courses[1].end_ns) == pytest.approx(500, abs=1)


def test_two_users_take_turns_and_end_when_both_are_done() -> None:
    told = run(engine(a_job(1), a_job(2, "user2")), j1=600, j2=600)
    ends = sorted(seconds(course.end_ns) for course in told.courses.values())
    assert ends[1] == pytest.approx(1200, abs=5) and ends[0] > 900, "neither waits for the other's end"


def test_what_was_on_the_way_comes() -> None:
    started = engine(a_job(1), a_job(2, "user2"))
    assert {record.state for record in started.jobs.values()} == {"STARTING", "HELD"}
    told = run(copy(started), j1=100, j2=100)
    assert max(seconds(course.end_ns) for course in told.courses.values()) == pytest.approx(200, abs=5)


def test_a_job_that_cannot_start_says_why() -> None:
    told = run(engine(a_job(1), a_job(2, gpus=4)), j1=100, j2=100)
    assert told.is_over and "asks for 4 GPUs" in told.courses[2].why and not told.courses[2].start_ns
    assert seconds(told.courses[1].end_ns) == pytest.approx(100, abs=1)


def test_one_that_waits_for_another_starts_after_it() -> None:
    told = run(engine(a_job(1), a_job(2, dependency="afterok:1"), gpus=4), j1=300, j2=100)
    assert seconds(told.courses[2].start_ns) == pytest.approx(300, abs=5)


def test_a_begin_time_is_waited_for() -> None:
    told = run(engine(a_job(1, eligible_s=NOW_NS // S + 1000)), j1=100)
    assert seconds(told.courses[1].start_ns) == pytest.approx(1000, abs=5)


def test_a_start_takes_what_starts_took() -> None:
    told = Forward(engine(a_job(1)), {1: 100 * S}, NOW_NS, load_ns=30 * S).go(NOW_NS + 10**6 * S)
    assert seconds(told.courses[1].end_ns) == pytest.approx(130, abs=1)


def test_no_run_goes_on_for_longer_than_there_is_time() -> None:
    one, other = engine(a_job(1), a_job(2, "user2")), iter([0.0] * 5 + [1.0])
    told = Forward(one, {1: 10**6 * S, 2: 10**6 * S}, NOW_NS).go(NOW_NS + 10**7 * S, lambda: next(other))
    assert told.cycles == 5 and not told.is_over and not told.courses[1].end_ns


def test_quanta_grow_with_the_way() -> None:
    def coarser(quantum_ns: int) -> Leader:
        return Leader(lambda: gandiva_fair.make(PolicySettings(quantum_ns)))

    work = {1: 10**5 * S, 2: 10**5 * S}
    fine, coarse = (
        Forward(engine(a_job(1), a_job(2, "user2")), work, NOW_NS, coarser=each).go(NOW_NS + 10**7 * S)
        for each in (None, coarser)
    )
    assert coarse.cycles < fine.cycles / 4 and coarse.is_over
    for job_id in work:
        ends = [seconds(run.courses[job_id].end_ns) for run in (fine, coarse)]
        assert ends[1] == pytest.approx(ends[0], rel=0.02)


def present(*jobs: object, past: tuple[Past, ...] = ()) -> Present:
    made = engine(*jobs)
    return Present(lambda: copy(made), NOW_NS, Lengths.of(past))


def test_ranges_are_the_same_for_the_same_seed_and_within_limits() -> None:
    it = present(a_job(1, time_limit_s=6000), a_job(2, "user2", time_limit_s=600))
    told, again = forecast(it, 7), forecast(it, 7)
    assert [job.to_json() for job in told.jobs] == [job.to_json() for job in again.jobs]
    one, two = told.jobs
    assert one.end and two.end and one.end.low_s and one.end.high_s and one.end.low_s < one.end.high_s
    assert one.end.high_s <= NOW_NS / S + 6700 and (two.end.high_s or 0) <= NOW_NS / S + 1300


def test_time_that_is_over_makes_fewer_runs_but_one() -> None:
    assert forecast(present(a_job(1)), 7, time_left=lambda: 0.0).draws == 1


def test_a_users_own_past_tells_more_than_the_limit() -> None:
    past = tuple(Past("user1", "train", 1, (1000 + n) * S) for n in range(20))
    ask, lengths = Ask("user1", "train", 1, 0, 86_400 * S), Lengths.of(past)
    drawn = sorted(lengths.draw(ask, Random(n)) // S for n in range(100))
    assert drawn[20] >= 1000 and drawn[85] <= 1020, drawn
    late = ask._replace(ran_ns=1010 * S)
    assert all(lengths.draw(late, Random(n)) >= 1 for n in range(100))


def test_parts_of_limits_are_taken_where_they_tell_more() -> None:
    past = tuple(Past("user1", f"j{n}", 1, n * 500 * S, n * 1000 * S) for n in range(1, 20))
    drawn = sorted(Lengths.of(past).draw(Ask("user1", "new", 1, 0, 4000 * S), Random(n)) for n in range(100))
    assert drawn[20] == pytest.approx(2000 * S, rel=0.1) and drawn[80] == pytest.approx(2000 * S, rel=0.1)


@pytest.mark.parametrize("limit_s", [0, 1, 86_400])
@pytest.mark.parametrize("ran_s", [0, 1, 10**6])
def test_something_is_left_of_every_job(limit_s: int, ran_s: int) -> None:
    ask = Ask("user1", "train", 1, ran_s * S, limit_s * S)
    for past in ((), tuple(Past("user1", "train", 1, 0) for _ in range(5))):
        assert all(Lengths.of(past).draw(ask, Random(n)) >= 1 for n in range(20))


@pytest.mark.parametrize("over", [0.0, 0.5, 1.0])
def test_no_job_runs_for_longer_than_it_may(over: float) -> None:
    """Also where its like were ended by their limits."""
    past = [Past("user1", "train", 1, (1000 if n < 20 * over else 100 + n) * S, 1000 * S) for n in range(20)]
    lengths, ask = Lengths.of(past), Ask("user1", "train", 1, 0, 1000 * S)
    assert max(lengths.draw(ask, Random(n)) for n in range(200)) <= 1000 * S


def test_what_no_run_reached_is_later_than_all() -> None:
    assert range_of([1.0, 2.0, 3.0, None, None]).high_s is None
    assert range_of([5.0]) == Range(5.0, 5.0, 5.0)
    assert range_of([None, None]) == Range(None, None, None)


def test_asks_know_what_is_left_of_a_limit() -> None:
    ask = asks(engine(a_job(1, time_limit_s=600)), NOW_NS)[1]
    assert (ask.ran_ns, ask.limit_ns) == (0, 600 * S)


def test_a_forecast_that_was_too_sure_is_wider_the_next_time() -> None:
    it, memory = present(a_job(1, time_limit_s=6000)), Memory()
    told = forecast(it, 7)
    (row,) = told.jobs
    assert memory.corrected(told, it.engine_of()).jobs == [row], "nothing is known yet"
    of_s, (low_s, mid_s, high_s) = told.of_s, row.end  # type: ignore[misc]
    for number in range(2 * LEAST):
        memory.open[100 + number] = [[of_s, low_s, mid_s, high_s]]
    spread = {100 + n: of_s + (mid_s - of_s) * (10 if n % 2 else 0.1) for n in range(2 * LEAST)}
    memory.heard(spread)
    assert len(memory.errors) == 2 * LEAST and not memory.open.keys() & spread.keys()
    (wider,) = memory.corrected(told, it.engine_of()).jobs
    assert wider.end and (wider.end.low_s or 0) < low_s and (wider.end.high_s or 0) > high_s
    assert wider.start == row.start and isinstance(row, Foretold)
