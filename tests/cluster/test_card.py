"""Trainings that do not fit on one card together take turns on a real mini cluster, its card simulated."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.carded import CONTEXT, GIB, LIVE, TOTAL, WORK, CardFleet, alone, alone_ahead, card_cluster
from tests.cluster.fleet import mended, wait_for
from tests.device.conftest import library as library
from tests.slow import soak

pytestmark = pytest.mark.local

QUANTUM_S, QUEUED_S = 2.0, 3.0
#: What is left of a parked training above its context: a segment for what is small.
LEFT = 1 << 21
KEEPS = re.compile(r"of GPU 0's 3072 MiB job (?P<job>\d+) keeps (?P<mib>\d+) MiB")
LONG = [soak("4 min; 2 turns each in make test"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(slurm_here: None, library: Path) -> Iterator[MiniCluster]:
    with card_cluster("card", library, QUANTUM_S) as made:
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[CardFleet]:
    with mended(CardFleet(cluster)) as made:
        yield made


@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=LONG)])
def test_two_that_do_not_fit_together_take_turns(fleet, library, tmp_path, turns):
    assert 2 * (LIVE + WORK + CONTEXT) > TOTAL > LIVE + WORK + 2 * CONTEXT
    names = {"user1": f"one{turns}", "user2": f"two{turns}"}
    jobs = {user: fleet.fill(user, name) for user, name in names.items()}
    wait_for(lambda: fleet.are_there(jobs.values()), "both to begin", 60)
    fleet.wait_suspends(jobs.values(), turns, deadline_s=30.0 + 15.0 * turns)
    # Of one that is parked, its context: 95 % of what it has above that are gone, and more.
    least = wait_for(lambda: len(used := fleet.used()) == 2 and min(used), "both to have a context", 30)
    assert CONTEXT <= least <= CONTEXT + LEFT
    ended = {user: fleet.losses(user, name) for user, name in names.items()}
    for job in jobs.values():
        fleet.wait_ended(job, "COMPLETED")
    short, long = sorted(ended.values(), key=len)
    assert len(short) > turns
    want = alone(library, tmp_path, len(long))
    assert long == want and short == want[: len(short)], "to the last bit"
    assert not any(event["event"] == "unrestored" for event in fleet.events())


@soak("60 s; tests/device/test_park.py has one such park")
def test_a_park_behind_three_seconds_of_queued_work_succeeds(fleet, library, tmp_path):
    """Each of its turns ends while its card still computes; then the other has all of the card."""
    ahead, other = fleet.run_ahead("user1", "ahead", QUEUED_S), fleet.fill("user2", "beside")
    wait_for(lambda: fleet.are_there([ahead, other]), "both to begin", 60)
    fleet.wait_suspends([ahead, other], 2, deadline_s=45)
    least = wait_for(lambda: len(used := fleet.used()) == 2 and min(used), "both to have a context", 30)
    assert CONTEXT <= least <= CONTEXT + LEFT
    parks = [event for event in fleet.events() if event["event"] == "parked" and event["job"] == ahead]
    assert not any(park["frozen"] or park["off_boundary"] for park in parks), "none was stopped in mid-step"
    assert fleet.losses("user2", "beside")
    losses = fleet.losses("user1", "ahead")
    for job in (ahead, other):
        fleet.wait_ended(job, "COMPLETED")
    assert len(losses) > 2 and losses == alone_ahead(library, tmp_path, len(losses)), "to the last bit"


def test_one_that_keeps_its_memory_has_the_other_wait_and_why_tells(fleet):
    held = 3 * GIB // 2
    keeper = fleet.hold("user1", "keeper", held)
    wait_for(lambda: fleet.are_there([keeper]), "the keeper to begin", 60)
    wait_for(lambda: max(fleet.used(), default=0) > held, "the keeper to take its memory", 60)
    other = fleet.fill("user2", "other")
    said = wait_for(
        lambda: KEEPS.search(fleet.why(other)), lambda: f"the other to lack room: {fleet.why(other)}", 60
    )
    assert int(said["job"]) == keeper and int(said["mib"]) << 20 >= held + CONTEXT
    assert "what it needs is not known yet" in fleet.why(other)
    assert not fleet.count("grant", other), "it would have run out of memory"
    fleet.stop("user1", "keeper")
    fleet.wait_ended(keeper, "COMPLETED")
    wait_for(lambda: fleet.count("grant", other), "the other to begin", 60)
    assert fleet.losses("user2", "other")
    fleet.wait_ended(other, "COMPLETED")
