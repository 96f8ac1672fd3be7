"""Measured rates are kept; the others are guessed from what other models gained, and a little more."""

import pickle
from dataclasses import replace

import pytest

from gandiva_slurm.policy.moves.forecast import Forecast
from gandiva_slurm.policy.port import JobView

TYPES = ("v100", "k80")


class Table:
    """Rates by model and type."""

    def __init__(self, rows: dict[tuple[str, str], float]) -> None:
        self.rows = rows

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self.rows.get((model, gpu_type))

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        return None


def job(model: str, **fields: object) -> JobView:
    return JobView(1, "ada", 1, 0, model, **fields)  # type: ignore[arg-type]


def test_nothing_known_makes_all_types_equal() -> None:
    assert Forecast(TYPES).rates(job("a")) == {"v100": 1.0, "k80": 1.0}


def test_a_type_never_tried_looks_better_than_the_one_that_was() -> None:
    book = Forecast(TYPES)
    book.learn([(job("a"), "k80")], Table({("a", "k80"): 2.0}))
    assert book.rates(job("a")) == {"v100": 3.0, "k80": 2.0}


def test_what_others_gained_is_expected() -> None:
    book = Forecast(TYPES)
    table = Table({("a", "k80"): 2.0, ("a", "v100"): 8.0, ("b", "k80"): 1.0})
    book.learn([(job("a"), "k80"), (job("a"), "v100"), (job("b"), "k80")], table)
    assert book.rates(job("a")) == {"v100": 8.0, "k80": 2.0}
    assert book.rates(job("b"))["v100"] == pytest.approx(1.5 * 4.0)
    book.learn([(job("b"), "v100")], Table({("b", "v100"): 0.7}))
    assert book.rates(job("b"))["v100"] == 0.7


def test_a_type_on_which_it_cannot_run_stays_zero_and_teaches_nothing() -> None:
    book = Forecast(TYPES)
    table = Table({("a", "k80"): 0.0, ("a", "v100"): 8.0, ("b", "v100"): 4.0})
    book.learn([(job("a"), "k80"), (job("a"), "v100"), (job("b"), "v100")], table)
    assert book.rates(job("a"))["k80"] == 0.0
    assert book.rates(job("b"))["k80"] == 6.0


def test_types_that_a_job_does_not_accept_are_left_out() -> None:
    assert Forecast(TYPES).rates(job("a", gpu_types=("k80",))) == {"k80": 1.0}


def crowd(liar: float) -> tuple[Forecast, JobView]:
    """Five users, one of whom gains so much from a k80 to a v100; a sixth was seen on a k80 only."""
    gains = {"liar": liar, "ann": 2.0, "bob": 3.0, "cid": 4.0, "dan": 5.0}
    book = Forecast(TYPES)
    table = Table(
        {(user, kind): gain if kind == "v100" else 1.0 for user, gain in gains.items() for kind in TYPES}
    )
    book.learn([(replace(job(user), user=user), kind) for user in gains for kind in TYPES], table)
    new = replace(job("new"), user="eve")
    book.learn([(new, "k80")], Table({("new", "k80"): 1.0}))
    return book, new


@pytest.mark.parametrize("liar", [1e-300, 1e-3, 0.1, 10.0, 1e3, 1e300])
def test_what_one_user_says_moves_what_others_expect_no_further_than_to_the_next(liar: float) -> None:
    """A row that one user has poisoned is one voice of many; others' jobs are tried where they were."""
    honest = (crowd(3.5)[0].rates(crowd(3.5)[1])["v100"], 1.5 * 3.0, 1.5 * 4.0)
    book, new = crowd(liar)
    assert min(honest) <= book.rates(new)["v100"] <= max(honest)
    for user, gain in {"ann": 2.0, "bob": 3.0, "cid": 4.0, "dan": 5.0}.items():
        assert book.rates(replace(job(user), user=user))["v100"] == gain, "what was run is known"


@pytest.mark.parametrize(("told", "believed"), [(40.0, 40.0), (1e9, 16 * 12**0.5), (1e-9, 12**0.5 / 16)])
def test_a_gain_that_nobody_else_comes_near_is_brought_near(told: float, believed: float) -> None:
    book, _ = crowd(told)
    rates = book.rates(replace(job("liar"), user="liar"))
    assert rates["v100"] / rates["k80"] == pytest.approx(believed)


@pytest.mark.parametrize("told", [40.0, 1e9])
def test_where_nobody_can_be_compared_with_types_differ_by_sixteen_at_most(told: float) -> None:
    book = Forecast(TYPES)
    book.learn([(job("a"), kind) for kind in TYPES], Table({("a", "k80"): 1.0, ("a", "v100"): told}))
    rates = book.rates(job("a"))
    assert rates["v100"] / rates["k80"] == pytest.approx(16.0)


def test_rates_that_are_no_numbers_are_not_learnt() -> None:
    book = Forecast(TYPES)
    book.learn(
        [(job("a"), "k80"), (job("a"), "v100")],
        Table({("a", "k80"): float("inf"), ("a", "v100"): float("nan")}),
    )
    assert book.learnt == 0


def test_what_an_older_release_knew_of_gains_is_learnt_anew() -> None:
    old = {
        "_types": TYPES,
        "_known": {("a", 1): {"k80": 2.0}},
        "_gains": {("k80", "v100"): (1.0, 1)},
        "learnt": 1,
    }
    book = Forecast.__new__(Forecast)
    book.__setstate__(old)
    assert book.rates(job("a")) == {"v100": 1.0, "k80": 1.0} and book.learnt == 0
    again = pickle.loads(pickle.dumps(crowd(3.5)[0]))
    assert again.rates(crowd(3.5)[1]) == crowd(3.5)[0].rates(crowd(3.5)[1])
