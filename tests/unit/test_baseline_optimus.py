"""Optimus: fitted models, and workers to whom they help most."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.baselines.fits import (
    AsyncSpeed,
    LossCurve,
    Seen,
    SyncSpeed,
    fit_async,
    fit_loss,
    fit_sync,
    fit_workers,
    least_squares,
)
from gandiva_slurm.policy.baselines.optimus import INTERVAL_NS, Remaining, make
from gandiva_slurm.policy.port import JobView
from tests.policy_world import (
    SETTINGS,
    Case,
    FixedRates,
    S,
    a_job,
    a_view,
    check_on,
    conserving_elastic,
    on_cases,
    running,
)

SHAPES = [(1, 1), (1, 2), (2, 2), (2, 4), (3, 8), (4, 4), (4, 16), (8, 8), (2, 10), (6, 12)]
POSITIVE = st.floats(0.01, 10)


@settings(max_examples=25)
@given(truth=st.tuples(POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE))
def test_fit_recovers_synthetic_coefficients_of_synchronous_speed(truth: tuple[float, ...]) -> None:
    model = SyncSpeed(32, truth)
    fitted = fit_sync([Seen(p, w, model.at(p, w)) for p, w in SHAPES], batch=32)
    assert fitted.coefficients == pytest.approx(truth, rel=1e-6)


@settings(max_examples=25)
@given(truth=st.tuples(POSITIVE, POSITIVE, POSITIVE, POSITIVE))
def test_fit_recovers_synthetic_coefficients_of_asynchronous_speed(truth: tuple[float, ...]) -> None:
    model = AsyncSpeed(truth)
    assert fit_async([Seen(p, w, model.at(p, w)) for p, w in SHAPES]).coefficients == pytest.approx(
        truth, rel=1e-6
    )


@settings(max_examples=25)
@given(truth=st.tuples(POSITIVE, POSITIVE, POSITIVE))
def test_fit_recovers_synthetic_coefficients_of_speed_by_workers(truth: tuple[float, float, float]) -> None:
    model = SyncSpeed(1.0, (truth[0], truth[1], 0.0, truth[2], 0.0))
    fitted = fit_workers([(w, model.at(w, w)) for w in (1, 2, 3, 8, 16)])
    assert fitted.coefficients == pytest.approx(model.coefficients, rel=1e-6)


@settings(max_examples=40)
@given(b0=st.floats(0.05, 2), b1=st.floats(0.1, 2), b2=st.floats(0, 1))
def test_fit_recovers_synthetic_coefficients_of_a_loss_curve(b0: float, b1: float, b2: float) -> None:
    truth = LossCurve(b0, b1, b2)
    fitted = fit_loss([(k, truth.at(k)) for k in range(1, 21)])
    assert (fitted.b0, fitted.b1) == pytest.approx((b0, b1), rel=1e-2)
    assert fitted.b2 == pytest.approx(b2, abs=1e-3)
    assert fitted.at(100) == pytest.approx(truth.at(100), rel=1e-2)


def test_fit_predicts_a_noisy_loss_curve_within_a_few_percent() -> None:
    truth = LossCurve(0.3, 0.4, 0.2)
    noisy = [(k, truth.at(k) * (1 + 0.02 * (-1) ** k)) for k in range(1, 16)]
    assert fit_loss(noisy).at(60) == pytest.approx(truth.at(60), rel=0.1)


def test_loss_curve_converges_when_an_epoch_drops_less_than_asked() -> None:
    curve = LossCurve(0.5, 1.0, 0.1)
    end = curve.converges_at(0.01)
    assert curve.at(end - 1) - curve.at(end) == pytest.approx(0.01)
    assert LossCurve(0.0, 1.0, 0.1).converges_at(0.01) == 0


def test_least_squares_keeps_coefficients_from_going_below_zero() -> None:
    assert least_squares([[1, 1], [1, 2], [1, 3]], [3, 2, 1]) == pytest.approx((2, 0))
    assert least_squares([[1, 1], [2, 2]], [1, 2]) == (1.0, 0.0), "columns that hang together: the fewest"


def table(models: dict[str, tuple[float, float, float]], most: int = 12) -> FixedRates:
    """Speeds of 1/(a/w + b + c·w)."""
    return FixedRates(
        {(m, w, "v"): 1 / (a / w + b + c * w) for m, (a, b, c) in models.items() for w in range(1, most + 1)}
    )


def total_s(jobs: list[JobView], sizes: dict[int, int], rates: FixedRates) -> float:
    """Remaining time of all together."""
    total = 0.0
    for job in jobs:
        asked, now = (rates.alone(job.model, size, "v") for size in (job.size, sizes[job.job_id]))
        assert job.length_ns and asked and now
        total += job.length_ns / S * asked / now
    return total


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.floats(0.1, 10), st.floats(0, 2), st.floats(0, 0.5), st.integers(10, 1000), st.integers(1, 6)
        ),
        min_size=1,
        max_size=4,
    ),
    spare=st.integers(0, 6),
)
def test_optimus_greedy_matches_brute_force(
    jobs: list[tuple[float, float, float, int, int]], spare: int
) -> None:
    rates = table({f"m{n}": (a, b, c) for n, (a, b, c, _, _) in enumerate(jobs)})
    made = [
        a_job(n, 1, length_s=length, model=f"m{n}", min_size=1, max_size=most)
        for n, (_, _, _, length, most) in enumerate(jobs)
    ]
    gpus = len(made) + spare
    runs = make(SETTINGS).decide(a_view((("v", gpus),), made, rates=rates)).runs
    choices = itertools.product(*(range(1, job.max_size + 1) for job in made))
    best = min(total_s(made, dict(enumerate(sizes)), rates) for sizes in choices if sum(sizes) <= gpus)
    assert total_s(made, {n: len(runs[n]) for n in runs}, rates) == pytest.approx(best)


def test_optimus_gives_more_to_the_job_with_more_left() -> None:
    rates = table({"m": (1, 0, 0)})
    jobs = [
        a_job(n, 1, length_s=length, model="m", min_size=1, max_size=8) for n, length in ((1, 900), (2, 100))
    ]
    runs = make(SETTINGS).decide(a_view((("v", 8),), jobs, rates=rates)).runs
    assert (len(runs[1]), len(runs[2])) == (6, 2)


def test_optimus_starts_everybody_with_the_least_before_anybody_grows() -> None:
    rates = table({"m": (1, 0, 0)})
    jobs = [a_job(n, 2, model="m", min_size=1, max_size=4) for n in range(1, 5)]
    runs = make(SETTINGS).decide(a_view((("v", 5),), jobs, rates=rates)).runs
    assert [len(runs[n]) for n in range(1, 5)] == [2, 1, 1, 1]


def test_optimus_gives_other_jobs_their_size_and_stops_where_more_is_no_faster() -> None:
    rates = table({"flat": (1, 0, 0.25)})
    jobs = [a_job(1, 3, model="m"), a_job(2, 1, model="flat", min_size=1, max_size=5)]
    runs = make(SETTINGS).decide(a_view((("v", 8),), jobs, rates=rates)).runs
    assert (len(runs[1]), len(runs[2])) == (3, 2)


def test_optimus_fits_speeds_between_measured_ones() -> None:
    """Seen on 1, 2 and 4 GPUs; best at 3 by the model: 1/(9/w + 1·w)."""

    class Seldom(FixedRates):
        def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
            return 1 / (9 / size + size) if size in (1, 2, 4) else None

    job = a_job(1, 1, model="m", min_size=1, max_size=8)
    assert len(make(SETTINGS).decide(a_view((("v", 8),), [job], rates=Seldom())).runs[1]) == 3


def test_optimus_grows_and_shrinks_in_place() -> None:
    rates = table({"m": (1, 0, 0)})
    job = running(a_job(1, 2, model="m", min_size=1, max_size=4), (1, 2))
    grown = make(SETTINGS).decide(a_view((("v", 4), ("v", 4)), [job], rates=rates)).runs[1]
    assert grown == (0, 1, 2, 3)
    job = running(a_job(1, 2, model="m", min_size=1, max_size=4), grown)
    shrunk = make(SETTINGS).decide(a_view((("v", 4),), [job, a_job(2, 2, model="m")], rates=rates)).runs
    assert shrunk == {1: (0, 1), 2: (2, 3)}


def test_optimus_reckons_remaining_time_by_losses_then_length_then_progress() -> None:
    left = Remaining()
    curve = LossCurve(0.5, 1.0, 0.1)
    told = a_job(1, length_s=7)
    told.losses = tuple((float(k), curve.at(k)) for k in range(1, 11))
    told.ran_ns = 100 * S
    end = curve.converges_at(0.01 * curve.at(10))
    assert left.of_ns(told) == pytest.approx(100 * S * (end - 10) / 10, rel=0.02)
    known = a_job(2, length_s=200)
    known.progress = 0.25
    assert left.of_ns(known) == 150 * S
    known.left_ns = 90 * S
    assert left.of_ns(known) == 90 * S
    dark = a_job(3, length_s=None)
    dark.progress, dark.ran_ns = 0.25, 100 * S
    assert left.of_ns(dark) == 300 * S
    assert left.of_ns(a_job(4, length_s=None)) == INTERVAL_NS


@on_cases(60)
def test_optimus_plans_are_legal_and_work_conserving_whatever_comes_and_goes(case: Case) -> None:
    check_on(case, make, conserving_elastic)
