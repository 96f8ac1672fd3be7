"""policy.tally and node.gauge: how fast a job is alone and beside its mate, and how sure that is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.node.gauge import ALONE, PACKED, Gauge
from gandiva_slurm.policy.packing.tally import LEAST_WINDOWS, WINDOWS, Tally

MS = 1_000_000


def fed(*looks: tuple[int, int]) -> Tally:
    tally = Tally()
    for steps, ms in looks:
        tally.add(steps, ms * MS)
    return tally


def test_no_rate_before_five_windows() -> None:
    assert fed(*[(10, 500)] * (LEAST_WINDOWS - 1)).rate == 0.0
    assert fed(*[(4, 1000)] * 8).rate == 0.0, "two of these are one window"
    assert fed(*[(10, 500)] * LEAST_WINDOWS).rate == 20.0


def test_long_windows_of_a_start_up_are_not_what_a_job_is_told_by() -> None:
    """Turns of many seconds with one look each: two windows hold hundreds of steps, and the start."""
    begun = fed((100, 20_000), (100, 20_000))
    assert begun.rate == 0.0
    assert fed((100, 20_000), (100, 20_000), *[(200, 20_000)] * 3).rate == 10.0


def test_even_windows_have_no_noise_and_uneven_ones_have() -> None:
    assert fed(*[(10, 500)] * 8).noise == 0.0
    uneven = fed(*[(8, 500), (12, 500)] * 4)
    assert 0.05 < uneven.noise < 0.15
    assert fed(*[(8, 500), (12, 500)] * 16).noise < uneven.noise / 1.8, "more windows make it surer"


def test_a_short_look_waits_for_the_rest_of_its_window() -> None:
    assert fed(*[(1, 50)] * 50).rate == 20.0


def test_what_is_long_ago_is_forgotten() -> None:
    assert fed(*[(10, 500)] * 5, *[(20, 500)] * WINDOWS).rate == 40.0


def test_a_start_and_a_stall_do_not_make_a_job_slow() -> None:
    begun = fed((5, 12_000), *[(10, 1000)] * 6, (5, 8_000), *[(10, 1000)] * 6)
    assert (begun.rate, begun.noise) == (10.0, 0.0)


def test_a_job_that_slows_down_is_told_of_once_it_fills_half_of_the_windows() -> None:
    tally = fed(*[(10, 1000)] * WINDOWS)
    for seconds in range(1, WINDOWS):
        tally.add(5, 1000 * MS)
        if seconds != WINDOWS // 2:
            assert tally.rate == (10.0 if seconds < WINDOWS // 2 else 5.0)


@given(st.lists(st.integers(5, 50), min_size=5, max_size=WINDOWS))
def test_the_rate_is_between_the_slowest_and_the_fastest_window(rates: list[int]) -> None:
    tally = fed(*[(rate, 1000) for rate in rates])
    assert min(rates) <= tally.rate <= max(rates)


def test_time_counts_in_the_condition_it_passed_in() -> None:
    gauge = Gauge()
    steps = now = 0
    for condition in [ALONE] * 6 + [PACKED] * 6 + [""] * 6 + [ALONE]:
        gauge.look(steps, now, condition)
        steps += {ALONE: 20, PACKED: 10, "": 500}[condition]
        now += 500 * MS
    assert (gauge.alone.rate, gauge.packed.rate) == (40.0, 20.0)


def test_a_script_that_counts_backwards_is_not_believed() -> None:
    gauge = Gauge()
    gauge.look(100, 0, ALONE)
    for second in range(3, 13):
        gauge.look(0, second * 1000 * MS, ALONE)
    assert gauge.alone.rate == 0.0


def test_a_count_that_jumps_is_set_aside() -> None:
    assert fed(*[(10, 500)] * 9, (1 << 60, 500)).rate == 20.0
    assert fed((1 << 60, 500), *[(5, 500)] * 4).rate == 10.0
