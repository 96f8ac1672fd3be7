"""policy.tally and node.gauge: how fast a job is alone and beside its mate, and how sure that is."""

from __future__ import annotations

from gandiva_slurm.node.gauge import ALONE, PACKED, Gauge
from gandiva_slurm.policy.packing.tally import WINDOWS, Tally

MS = 1_000_000


def fed(*looks: tuple[int, int]) -> Tally:
    tally = Tally()
    for steps, ms in looks:
        tally.add(steps, ms * MS)
    return tally


def test_no_rate_before_two_seconds_and_twenty_boundaries() -> None:
    assert fed(*[(10, 500)] * 3).rate == 0.0
    assert fed(*[(4, 1000)] * 4).rate == 0.0
    assert fed(*[(10, 500)] * 4).rate == 20.0


def test_even_windows_have_no_noise_and_uneven_ones_have() -> None:
    assert fed(*[(10, 500)] * 8).noise == 0.0
    uneven = fed(*[(8, 500), (12, 500)] * 4)
    assert 0.05 < uneven.noise < 0.1
    assert fed(*[(8, 500), (12, 500)] * 16).noise < uneven.noise / 1.8, "more windows make it surer"


def test_a_short_look_waits_for_the_rest_of_its_window() -> None:
    assert fed(*[(1, 50)] * 40).rate == 20.0


def test_what_is_long_ago_is_forgotten() -> None:
    assert fed(*[(10, 500)] * 5, *[(20, 500)] * WINDOWS).rate == 40.0


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
    gauge.look(0, 3000 * MS, ALONE)
    assert gauge.alone.rate == 0.0
