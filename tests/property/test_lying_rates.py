"""Rates are words of jobs: what a liar gains by them, and what others lose, has a bound (ADR 0051)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gandiva_slurm.policy import gandiva_fair, gandiva_market
from tests.property.test_gaming import (
    GAINS,
    KINDS,
    LIAR,
    PHASES,
    QUANTA,
    QUANTUM_S,
    USERS,
    Make,
    Watched,
    both,
    crowd,
    play,
)

#: The most that a liar's work may grow, and the least that others have of what a quarter of every GPU type
#: would bring them. The table of ADR 0051 has what many draws came to, with lies and without.
MOST_FAIR, LEAST_FAIR = 1.2, 0.8
MOST_MARKET, LEAST_MARKET = 1.5, 0.98
MOST_PACKED, LEAST_PACKED = 1.5, 0.7

Gains = list[tuple[float, float]]
#: What is told of each type, over what is true.
LIES = st.fixed_dictionaries(
    dict.fromkeys(KINDS, st.sampled_from([0.001, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 1000.0]))
)
#: What jobs of one user keep of their speed beside those of another.
KEPT = st.fixed_dictionaries(
    {(one, other): st.sampled_from([0.2, 0.35, 0.5, 0.7, 0.9]) for one in USERS for other in USERS}
)


def quarters(watched: Watched, gains: Gains) -> dict[str, float]:
    """Work of each user, over that of a quarter of every type for itself: one V100, one P100, two K80."""
    each = {
        user: QUANTA * QUANTUM_S * (gain[0] + gain[1] + 2) for user, gain in zip(USERS, gains, strict=True)
    }
    return {user: watched.work[user] * 10**6 / each[user] for user in USERS}


def least_of_others(watched: Watched, gains: Gains) -> float:
    return min(part for user, part in quarters(watched, gains).items() if user != LIAR)


@examples(max_examples=15, phases=PHASES)
@given(gains=GAINS, lie=LIES)
def test_lies_by_type_bring_no_gpu_time_and_little_work(gains: Gains, lie: dict[str, float]) -> None:
    told, true = play(gandiva_fair.make, crowd(), gains, lie), play(gandiva_fair.make, crowd(), gains)
    assert abs(told.gpu_quanta[LIAR] / (QUANTA * 4) - 1) <= 0.01
    assert told.work[LIAR] <= MOST_FAIR * true.work[LIAR]
    assert least_of_others(told, gains) >= LEAST_FAIR


@examples(max_examples=15, phases=PHASES)
@given(gains=GAINS, lie=LIES)
def test_in_a_market_lies_take_from_nobody_what_is_its_own(gains: Gains, lie: dict[str, float]) -> None:
    """Whoever sells fast GPUs for slow ones has more GPU time, and less work."""
    told, true = play(gandiva_market.make, crowd(), gains, lie), play(gandiva_market.make, crowd(), gains)
    assert told.work[LIAR] <= MOST_MARKET * true.work[LIAR]
    assert least_of_others(told, gains) >= LEAST_MARKET


@both
@examples(max_examples=8, phases=PHASES)
@given(gains=GAINS, factor=st.sampled_from([1e-6, 0.01, 0.5, 2.0, 100.0]), quanta=st.integers(8, 20))
def test_rates_that_fall_or_rise_later_change_no_plan(
    make: Make, gains: Gains, factor: float, quanta: int
) -> None:
    """One that tells of ever fewer mini-batches is not further behind for it."""
    lie = dict.fromkeys(KINDS, factor)
    told = play(make, crowd(), gains, lie, since_s=quanta * QUANTUM_S)
    assert told.plans == play(make, crowd(), gains).plans


@examples(max_examples=10, phases=PHASES)
@given(gains=GAINS, kept=KEPT, lie=LIES, packed=st.sampled_from([0.1, 0.5, 0.8, 1.2, 2.0, 10.0]))
def test_lies_about_pairs_bring_little_more_than_to_be_packed_or_not(
    gains: Gains, kept: dict[tuple[str, str], float], lie: dict[str, float], packed: float
) -> None:
    """Not to be packed is everybody's right (`--gandiva-pack=never`); nobody pays for a liar's pair."""
    alone = {pair: 0.01 if LIAR in pair else part for pair, part in kept.items()}
    told = play(gandiva_fair.make, crowd(), gains, lie, kept=kept, packed_factor=packed)
    true, never = (play(gandiva_fair.make, crowd(), gains, kept=each) for each in (kept, alone))
    assert told.work[LIAR] <= MOST_PACKED * max(true.work[LIAR], never.work[LIAR])
    assert least_of_others(told, gains) >= LEAST_PACKED
