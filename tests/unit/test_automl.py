"""Forecasts of a search, who leads, who is given up, and that the rest take turns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gandiva_slurm.policy.automl import AutoMl, Curve, Search, SearchSettings
from gandiva_slurm.policy.port import Cluster, JobView, Plan, View
from tests.sim_scenes import ORACLE, S

HORIZON = 32_000
QUANTUM_NS = 60 * S


def a_curve(final: float, time: float) -> Callable[[int], float]:
    """Accuracy by mini-batches: `final` at the end of the run."""
    return lambda done: final * math.expm1(-done / HORIZON / time) / math.expm1(-1 / time)


def told(search: Search, job_id: int, curve: Callable[[int], float], steps: int, noise: float = 0.0) -> None:
    draw = random.Random(f"{job_id}")
    for step in range(1, steps + 1):
        search.tell(job_id, step * 1000, curve(step * 1000) + draw.gauss(0, noise))


@pytest.mark.parametrize("time", [0.06, 0.12, 0.3])
@pytest.mark.parametrize("final", [0.1, 0.5, 0.9])
def test_a_curve_is_foretold_within_its_deviation_and_then_for_good(final: float, time: float) -> None:
    search = Search(SearchSettings(HORIZON))
    told(search, 1, a_curve(final, time), 8)
    early = search.forecasts[1]
    assert abs(early.mean - final) <= 2 * early.deviation
    told(search, 2, a_curve(final, time), 32)
    assert search.forecasts[2].mean == pytest.approx(final, abs=0.01)
    assert search.forecasts[2].deviation < early.deviation


def test_a_first_point_says_little_and_is_not_believed_too_much() -> None:
    search = Search(SearchSettings(HORIZON))
    told(search, 1, a_curve(0.9, 0.12), 1)
    assert search.forecasts[1].deviation > 0.1
    told(search, 1, a_curve(0.9, 0.12), 16)
    assert search.forecasts[1].deviation < 0.02


def test_a_curve_weighs_times_by_how_well_they_fit() -> None:
    curve = Curve()
    for step in range(1, 17):
        curve.add(step / 32, a_curve(0.7, 0.1)(step * 1000))
    curve.forecast(0.02**2, [1.0] * 32)
    times = [0.03 * 1.12**step for step in range(32)]
    assert sum(curve.belief) == pytest.approx(1)
    assert times[curve.belief.index(max(curve.belief))] == pytest.approx(0.1, rel=0.12)
    assert curve.residual() < 1e-3


def test_leaders_are_those_of_the_greatest_hopes_and_nobody_unknown() -> None:
    search = Search(SearchSettings(HORIZON))
    assert search.best([1, 2, 3, 4]) == []
    for job_id, final in ((1, 0.5), (2, 0.9), (3, 0.7)):
        told(search, job_id, a_curve(final, 0.1), 6, noise=0.01)
    assert search.best([1, 2, 3, 4]) == [2, 3]
    assert search.best([1, 3, 4]) == [3, 1]


def test_given_up_after_two_low_forecasts_in_a_row_not_before() -> None:
    search = Search(SearchSettings(HORIZON))
    low, high = a_curve(0.1, 0.1), a_curve(0.6, 0.1)
    told(search, 1, low, 8)
    first = next(n for n in range(1, 9) if 1 in given_up_after(low, n))
    assert 2 <= first <= 8 and search.given_up == {1}
    told(search, 2, high, 32, noise=0.02)
    assert search.given_up == {1} and search.best([1, 2]) == [2]


def given_up_after(curve: Callable[[int], float], steps: int) -> set[int]:
    search = Search(SearchSettings(HORIZON))
    told(search, 1, curve, steps)
    return search.given_up


def test_one_low_forecast_between_good_ones_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(SearchSettings(HORIZON))
    foretold = iter([0.2, 0.4, 0.2, 0.4, 0.2, 0.2])

    def forecast(self: Curve, variance: float, prior: object) -> object:
        self.belief = [1 / 32] * 32
        return type("Forecast", (), {"mean": next(foretold), "deviation": 0.0})()

    monkeypatch.setattr(Curve, "forecast", forecast)
    for step in range(1, 6):
        search.tell(1, step * 1000, 0.1)
        assert search.given_up == set()
    search.tell(1, 6000, 0.1)
    assert search.given_up == {1}


class Trainings:
    """Jobs of one GPU that run as they are told, so many mini-batches a quantum."""

    def __init__(self, finals: dict[int, float], gpus: int, minibatches: int = 1000) -> None:
        self.minibatches = minibatches
        self.jobs = {number: JobView(number, "u", 1, 0) for number in finals}
        self.cluster = Cluster([("p40", gpus)])
        self.search = Search(SearchSettings(HORIZON))
        curves = {number: a_curve(final, 0.1) for number, final in finals.items()}
        self.policy = AutoMl(self.search, QUANTUM_NS, lambda number, done: curves[number](done))
        self.quanta = dict.fromkeys(finals, 0)
        self.now_ns = 0

    def quantum(self) -> Plan:
        plan = self.policy.decide(View(self.now_ns, self.cluster, self.jobs, ORACLE.rates))
        for number, job in self.jobs.items():
            job.is_running = number in plan.runs
            if job.is_running:
                job.gpus = plan.runs[number]
                job.progress += self.minibatches / HORIZON
                self.quanta[number] += 1
        assert plan.wake_ns is not None
        self.now_ns = plan.wake_ns
        return plan


def test_two_run_alone_and_the_rest_take_turns() -> None:
    world = Trainings(dict.fromkeys(range(8), 0.4) | {8: 0.9, 9: 0.8}, gpus=4)
    for _ in range(5):
        world.quantum()
    plans = [world.quantum() for _ in range(8)]
    assert all({8, 9} <= plan.runs.keys() and len(plan.runs) == 4 for plan in plans)
    got = [world.quanta[n] for n in range(8)]
    assert max(got) - min(got) <= 1 and world.quanta[8] >= 9
    assert {plan.runs[8] for plan in plans} == {plans[0].runs[8]}  # nobody moves a leader


def test_the_hopeless_run_no_more() -> None:
    world = Trainings({0: 0.9, 1: 0.8, 2: 0.1, 3: 0.1, 4: 0.6}, gpus=4)
    for _ in range(20):
        plan = world.quantum()
    assert world.search.given_up == {2, 3}
    assert plan.runs.keys() == {0, 1, 4}


def test_gpus_are_given_once_and_a_broken_one_to_nobody() -> None:
    world = Trainings(dict.fromkeys(range(6), 0.5), gpus=4)
    plan = world.policy.decide(View(0, world.cluster, world.jobs, ORACLE.rates, frozenset({1})))
    assert sorted(plan.runs.values()) == [(0,), (2,), (3,)]


def test_a_turn_lasts_until_the_training_has_told_again() -> None:
    """Four quanta to a thousand mini-batches: four tell at once, then the next four, nobody in between."""
    world = Trainings(dict.fromkeys(range(8), 0.5), gpus=4, minibatches=250)
    plans = [set(world.quantum().runs) for _ in range(8)]
    assert plans == [{0, 1, 2, 3}] * 4 + [plans[4]] * 4
    leaders = set(world.search.best([*range(4)]))
    assert leaders < plans[4] and len(plans[4] - {0, 1, 2, 3}) == 2


def test_a_leader_that_is_overtaken_waits_no_longer_than_a_round() -> None:
    """It has had far more than the others: that is forgiven, but for a turn of everybody."""
    world = Trainings({0: 0.7} | dict.fromkeys(range(1, 5), 0.4), gpus=1)
    world.search.settings = SearchSettings(HORIZON, exclusive=1)
    for _ in range(20):
        world.quantum()
    ran = world.quanta[0]
    assert ran > 10
    world.search.settings = SearchSettings(HORIZON, exclusive=0)
    for _ in range(10):
        world.quantum()
    assert world.quanta[0] > ran
