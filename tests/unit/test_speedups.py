"""Profiles from measured rates, and when a division is made anew."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from gandiva_slurm.policy.port import Cluster, JobView, View
from gandiva_slurm.policy.trading.speedups import job_speeds, user_speeds
from gandiva_slurm.policy.trading.trades import Desk, claimants_of

TYPES = ("v100", "k80")


class Measured:
    """Rates by (model, size, type); what is not there was not measured."""

    def __init__(self, rates: Mapping[tuple[str, int, str], float]) -> None:
        self.rates = dict(rates)

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self.rates.get((model, size, gpu_type))

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        return None


def a_job(job_id: int, model: str, size: int = 1, user: str = "u", types: tuple[str, ...] = ()) -> JobView:
    return JobView(job_id, user, size, job_id, model=model, gpu_types=types)


RATES = Measured({("a", 1, "v100"): 10.0, ("a", 1, "k80"): 2.5, ("b", 2, "v100"): 3.0, ("b", 2, "k80"): 6.0})


def test_a_job_is_compared_with_itself_on_its_best_type() -> None:
    assert job_speeds(a_job(1, "a"), RATES, TYPES) == {"v100": 1, "k80": Fraction(1, 4)}
    assert job_speeds(a_job(1, "b", 2), RATES, TYPES) == {"v100": Fraction(1, 2), "k80": 1}


def test_what_was_not_measured_is_missing_and_what_cannot_be_is_nothing() -> None:
    rates = Measured({("a", 1, "v100"): 10.0})
    assert job_speeds(a_job(1, "a"), rates, TYPES) == {"v100": 1}
    assert job_speeds(a_job(1, "a", types=("k80",)), rates, TYPES) == {"v100": 0}
    assert job_speeds(a_job(1, "a"), Measured({("a", 1, "v100"): 0.0}), TYPES) == {"v100": 0}


def test_senseless_measurements_do_not_count() -> None:
    for nonsense in (float("nan"), float("inf"), -1.0):
        assert job_speeds(a_job(1, "a"), Measured({("a", 1, "k80"): nonsense}), TYPES) == {}


def test_a_users_speeds_are_weighed_by_gpus() -> None:
    jobs = [a_job(1, "a"), a_job(2, "b", 2)]
    assert user_speeds(jobs, RATES, TYPES) == {"v100": Fraction(2, 3), "k80": Fraction(3, 4)}


def test_splitting_a_gang_of_one_model_changes_nothing() -> None:
    rates = Measured({**RATES.rates, ("a", 2, "v100"): 20.0, ("a", 2, "k80"): 5.0})
    assert user_speeds([a_job(1, "a", 2)], rates, TYPES) == user_speeds(
        [a_job(1, "a"), a_job(2, "a")], rates, TYPES
    )


def test_a_type_counts_when_half_of_the_gpus_were_measured_there() -> None:
    rates = Measured({("a", 1, "v100"): 10.0, ("a", 1, "k80"): 2.5, ("new", 1, "v100"): 7.0})
    few = [a_job(1, "a"), a_job(2, "new")]
    assert user_speeds(few, rates, TYPES) == {"v100": 1, "k80": Fraction(1, 4)}
    assert user_speeds([*few, a_job(3, "new")], rates, TYPES) == {"v100": 1}
    assert user_speeds([], rates, TYPES) == {}


def a_view(*jobs: JobView, rates: Measured = RATES) -> View:
    return View(0, Cluster([("v100", 4), ("k80", 8)]), {job.job_id: job for job in jobs}, rates)


def test_users_come_with_their_gpus_speeds_and_tickets() -> None:
    view = a_view(a_job(1, "a", user="x"), a_job(2, "b", 2, user="y"), a_job(3, "a", user="x"))
    x, y = claimants_of(view, {"y": 5})
    assert (x.name, x.demand, x.tickets) == ("x", 2, 1)
    assert (y.name, y.demand, y.tickets) == ("y", 2, 5)
    assert x.speeds == {"v100": 1, "k80": Fraction(1, 4)}


def test_a_division_lasts_until_somebody_comes_or_goes() -> None:
    desk = Desk()
    counts = {"v100": 4, "k80": 8}
    jobs = [a_job(1, "a", user="x"), a_job(2, "b", 2, user="y")]
    first = desk.division(claimants_of(a_view(*jobs), {}), counts)
    noisy = Measured({key: rate * 1.01 for key, rate in RATES.rates.items() if key[2] == "k80"} | RATES.rates)
    assert desk.division(claimants_of(a_view(*jobs, rates=noisy), {}), counts) is first
    jobs.append(a_job(3, "a", user="z"))
    second = desk.division(claimants_of(a_view(*jobs), {}), counts)
    assert second is not first
    assert desk.division(claimants_of(a_view(*jobs[:2]), {}), counts) is not second
