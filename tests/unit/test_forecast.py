"""Measured rates are kept; the others are guessed from what other models gained, and a little more."""

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
