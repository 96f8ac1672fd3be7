"""What the coordinator learns of a gang's pace, and how far ahead it aims by it."""

import pytest

from gandiva_slurm.node.pace import LONGEST_SPREAD_NS, WIDEST_MARGIN, Pace
from gandiva_slurm.wire.page import W_LAST_NS, W_SEQ

MS = 1_000_000


def view(seq, at_ms):
    words = [0] * 64
    words[W_SEQ], words[W_LAST_NS] = seq, int(at_ms * MS)
    return words


def observed(*looks):
    pace = Pace()
    for look in looks:
        pace.observe([view(*look)])
    return pace


def test_step_is_what_passed_between_two_looks():
    pace = observed((10, 1000), (30, 1100))
    assert (pace.fastest_ns, pace.slowest_ns) == (5 * MS, 5 * MS)


def test_worse_samples_count_at_once_and_fade_slowly():
    pace = observed((10, 1000), (11, 1010), (12, 1012), (13, 1052))
    assert pace.fastest_ns == 2 * MS + (40 - 2) * MS // 8
    assert pace.slowest_ns == 40 * MS


def test_page_read_between_the_ranks_two_writes_is_no_sample():
    pace = observed((10, 1000), (11, 1000), (12, 1010))
    assert pace.slowest_ns == 5 * MS


def test_wait_at_a_boundary_is_no_step():
    pace = observed((10, 1000), (20, 1050))
    pace.restart(20)
    for look in ((20, 1050), (20, 9000), (21, 9005), (23, 9015)):
        pace.observe([view(*look)])
    assert pace.slowest_ns == 5 * MS


@pytest.mark.parametrize(
    "step_ms, spread_ms, want",
    [
        pytest.param(200, 2, 1, id="long steps: the next boundary"),
        pytest.param(40, 2, 2, id="one whole step between"),
        pytest.param(5, 2, 2, id="step longer than twice the spread"),
        pytest.param(2, 2, 4, id="as many as the node may need"),
        pytest.param(0.05, 25, WIDEST_MARGIN, id="never too many"),
    ],
)
def test_margin(step_ms, spread_ms, want):
    pace = observed((10, 1000), (20, 1000 + 10 * step_ms))
    pace.spread_ns = spread_ms * MS
    assert pace.margin(0) == want
    assert pace.margin(2) == 4 * want


def test_margin_before_anything_is_known():
    assert Pace().margin(0) == 2


def test_spread_grows_at_once_and_fades():
    pace = Pace()
    pace.took(10 * MS)
    assert pace.spread_ns == 10 * MS
    pace.took(2 * MS)
    assert pace.spread_ns == 9 * MS
    pace.took(3_600_000 * MS)
    assert pace.spread_ns == LONGEST_SPREAD_NS
