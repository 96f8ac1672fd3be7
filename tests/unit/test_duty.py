"""policy.duty: an opportunistic training beside a guaranteed one, which keeps what it is due."""

import random
import statistics

import pytest

from gandiva_slurm.policy.packing.duty import FIRST, FULL, KEPT, LEAST, next_duty


def settle(harm: float, noise: float = 0.0, rounds: int = 200, seed: int = 1) -> list[tuple[int, float]]:
    """(duty, what the guaranteed one keeps) round by round; at full duty it loses the part `harm`."""
    chance, duty, told = random.Random(seed), FIRST, []
    for _ in range(rounds):
        kept = 1 - harm * duty / FULL
        told.append((duty, kept))
        duty = next_duty(duty, kept + chance.gauss(0, noise))
        assert LEAST <= duty <= FULL
    return told


def test_who_harms_nobody_comes_to_run_all_the_time() -> None:
    assert settle(0.01)[-1][0] == FULL


@pytest.mark.parametrize("harm", [0.1, 0.3, 0.6, 0.9])
def test_the_guaranteed_one_keeps_its_bound_and_the_other_runs(harm: float) -> None:
    told = settle(harm)[30:]
    assert min(kept for _, kept in told) >= KEPT
    assert len({duty for duty, _ in told}) == 1, "settled"
    best = FULL * (1 - KEPT) / harm
    assert told[-1][0] >= min(best / 2.6, FULL)


@pytest.mark.parametrize("harm", [0.1, 0.5, 0.9])
def test_noise_takes_from_the_opportunistic_one(harm: float) -> None:
    told = settle(harm, noise=0.02, rounds=500)[30:]
    assert statistics.mean(kept for _, kept in told) >= KEPT
    assert min(duty for duty, _ in told) >= LEAST


def test_who_harms_however_little_he_runs_is_cut_to_the_least_at_once() -> None:
    told = settle(3.0)
    assert told[3][0] == LEAST
    assert told[-1] == (LEAST, pytest.approx(0.85)), "what then is not kept is the controller's matter"


def test_a_cut_is_steep_and_growth_is_not() -> None:
    assert next_duty(80, 0.5) == 20
    assert next_duty(80, 1.0) == 100
    assert next_duty(40, 1.0) == 50
    assert next_duty(LEAST, 1.0) == LEAST + 1
    assert next_duty(50, 0.96) == 50
    assert next_duty(50, 1.2) == 62, "faster than alone is no harm"
