"""How far behind a job is: what it would have done alone on its user's part, over what it did."""

import pytest

from gandiva_slurm.policy.moves.lag import LagBook, isolated_rate
from gandiva_slurm.policy.port import Cluster, JobView

CLUSTER = Cluster([("v100", 4), ("k80", 4)])
RATES = {"v100": 10.0, "k80": 2.0}


def job(number: int, user: str = "ada", size: int = 1) -> JobView:
    return JobView(number, user, size, 0, "m")


def test_a_lone_job_on_a_part_that_is_large_enough_runs_all_the_time() -> None:
    """Half of 4 + 4 GPUs is more than one: it runs all the time, half of it on each type."""
    assert isolated_rate(job(1), 0.5, CLUSTER.counts, RATES) == pytest.approx(6.0)


def test_many_jobs_share_the_part() -> None:
    assert isolated_rate(job(1), 0.5 / 8, CLUSTER.counts, RATES) == pytest.approx(0.25 * (10 + 2))
    assert isolated_rate(job(1, size=4), 0.5 / 8, CLUSTER.counts, RATES) == pytest.approx(3.0 / 4)


def test_who_runs_where_it_should_has_lag_one_and_who_waits_falls_behind() -> None:
    book = LagBook(CLUSTER, quantum_s=60)
    jobs = [job(1), job(2, "bob")]
    book.set_members(jobs, {1: 0.5, 2: 0.5}, {1: RATES, 2: RATES})
    assert book.lag(1) == book.lag(2) == 1.0
    for _ in range(100):
        book.note(60, {1: 6.0})
    assert book.lag(1) == pytest.approx(1.0)
    assert book.lag(2) == 4.0


def test_who_ran_on_the_fast_type_is_ahead() -> None:
    book = LagBook(CLUSTER, quantum_s=60)
    book.set_members([job(1)], {1: 0.5}, {1: RATES})
    for _ in range(1000):
        book.note(60, {1: 10.0})
    assert book.lag(1) == pytest.approx(0.6, abs=0.01)


def test_sums_outlive_a_change_of_members() -> None:
    book = LagBook(CLUSTER, quantum_s=60)
    book.set_members([job(1)], {1: 0.5}, {1: RATES})
    book.note(6000, {})
    book.set_members([job(1), job(2)], {1: 0.25, 2: 0.25}, {1: RATES, 2: RATES})
    assert book.lag(1) > book.lag(2) == 1.0


@pytest.mark.parametrize("unit", [1 / 64, 1, 64])
def test_what_a_job_calls_a_mini_batch_does_not_matter(unit: float) -> None:
    """Before its rate was ever seen, 1 stands for it on all types, in nobody's units."""
    book = LagBook(CLUSTER, quantum_s=60)
    book.set_members([job(1)], {1: 0.5}, {1: {"v100": 1.0, "k80": 1.0}})
    book.note(60, {1: 0.0})
    book.set_members([job(1)], {1: 0.5}, {1: {"v100": 10.0 * unit, "k80": 2.0 * unit}})
    book.note(600, {1: 2.0 * unit})
    # due: 1 for 60 s, then 0.6 of the best for 600 s; done: 0.2; both begin with two quanta of 0.6
    assert book.lag(1) == pytest.approx((60 + 360 + 72) / (120 + 72))


@pytest.mark.parametrize("turns", [1, 2, 10])
@pytest.mark.parametrize("jobs", [4, 96])
def test_who_waits_for_his_turn_and_no_longer_is_not_behind(jobs: int, turns: int) -> None:
    """At the moment of its turn its lag is one, however many share the GPU."""
    book = LagBook(CLUSTER, quantum_s=60)
    part = 1 / 8 / jobs  # one GPU's time, shared among so many
    book.set_members([job(1)], {1: part}, {1: RATES})
    for _ in range(turns - 1):
        book.note(60 * (jobs - 1), {})
        book.note(60, {1: 6.0})
    book.note(60 * (jobs - 1), {})
    assert book.lag(1) == pytest.approx(1)
    book.note(60 * jobs * turns, {})
    assert book.lag(1) > 1.3
