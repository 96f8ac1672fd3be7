"""What a job's mini-batches take, by the page of its rank: the median and the slowest in a hundred."""

import pytest

from gandiva_slurm.client.rank import Rank
from gandiva_slurm.controller import views
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.gauge import ALONE, LEAST_STEPS, PACKED, UNKNOWN, Gauge, percentiles
from gandiva_slurm.node.pages import Page
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import Resident
from tests.park_harness import map_words

MS = 1_000_000


def stamps(*took_ms, begin=10**9):
    """Boundaries that follow each other so, and none in the rest of the page's ring."""
    found = [begin]
    for ms in took_ms:
        found.append(found[-1] + ms * MS)
    return [*found, *(0 for _ in range(8))]


def test_the_median_and_the_slowest_in_a_hundred():
    assert percentiles(stamps(*[10] * 98, 50, 50), 1, 10**12) == (10 * MS, 50 * MS)
    assert percentiles(reversed(stamps(*[10] * 100)), 1, 10**12) == (10 * MS, 10 * MS)


@pytest.mark.parametrize("count", [0, 1, LEAST_STEPS - 1])
def test_of_few_nothing_is_told(count):
    assert percentiles(stamps(*[10] * count), 1, 10**12) == UNKNOWN


def test_what_was_before_or_is_to_come_does_not_count():
    """A rank may write anything; it is told of nothing but times that have been."""
    ring = stamps(*[900] * 30, *[10] * 40)
    since = sorted(ring)[-41]
    assert percentiles([*ring, 2**64 - 1, 2**63], since, 10**12) == (10 * MS, 10 * MS)


def test_alone_and_beside_a_mate_are_told_apart_and_kept():
    gauge = Gauge()
    gauge.look(0, 10**9, ALONE)
    gauge.look_at_steps(stamps(*[10] * 40), 10**12)
    gauge.look(40, 5 * 10**9, PACKED)
    gauge.look_at_steps(stamps(*[10] * 40), 10**12)
    assert (gauge.steps_alone, gauge.steps_packed) == ((10 * MS, 10 * MS), UNKNOWN)
    gauge.look_at_steps(stamps(*[12] * 40, begin=5 * 10**9), 10**12)
    gauge.look(80, 9 * 10**9, "")
    gauge.look_at_steps(stamps(*[99] * 40, begin=9 * 10**9), 10**12)
    assert (gauge.steps_alone, gauge.steps_packed) == ((10 * MS, 10 * MS), (12 * MS, 12 * MS))


def test_a_rank_writes_when_its_newest_boundaries_were():
    page = Page.make(JobKey(1, 0), 0, 1, 0)
    rank = Rank("")
    rank.words = map_words(page.fd, wire.PAGE_BYTES)
    for _ in range(wire.STAMPS + 40):
        rank.boundary()
    found = page.stamps()
    assert len(found) == wire.STAMPS and min(found) > 0
    assert max(found) == page.read()[wire.W_LAST_NS]
    assert found.index(max(found)) == rank.seq % wire.STAMPS
    page.close()


def test_why_says_what_a_mini_batch_takes_and_the_slowest():
    facts = dict.fromkeys(("registered_ns", "since_ns", "suspends", "reaims", "off_boundary", "parked_ns"), 0)
    seen = Resident(
        job_id=1, restart=0, state="RUNNING", gpus=(0,), world=1, ranks=1, steps=90, rate=40.0, reason="",
        detail="", mate=7, step_alone_ns=(20 * MS, 21 * MS), step_packed_ns=(20_500_000, 34 * MS), **facts,
    )  # fmt: skip
    told = [line for line in views._told(seen, "") if line.startswith("a mini-batch")]
    assert told == [
        "a mini-batch takes 20 ms alone, 21 ms at the 99th percentile",
        "a mini-batch takes 20.5 ms beside job 7, 34 ms at the 99th percentile",
    ]
    times = views._step_times(seen)
    assert (times["step_p99_ms"], times["packed_step_p50_ms"]) == (21.0, 20.5)
