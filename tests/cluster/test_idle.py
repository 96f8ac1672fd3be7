"""A job that holds a GPU and does nothing with it, on a real mini cluster whose NVML is a stand-in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.carded import CardFleet, card_cluster
from tests.cluster.fleet import mended, wait_for
from tests.device.conftest import library as library
from tests.slow import soak

pytestmark = [pytest.mark.local, soak("60 s; unit/test_idleness has it without Slurm")]

#: What sleeps has no client, and is not waited for any longer.
CLIENT_WAIT_S = 10
IDLE = {"tell_after_s": 10, "park_after_s": 10}


@pytest.fixture(scope="module")
def cluster(slurm_here: None, library: Path) -> Iterator[MiniCluster]:
    with card_cluster("idle", library, 2.0, client_wait_s=CLIENT_WAIT_S, idle=IDLE) as made:
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[CardFleet]:
    with mended(CardFleet(cluster)) as made:
        yield made


def reason(fleet: CardFleet, job: int) -> str:
    """REASON of its row of the queue."""
    return next((row["reason"] for row in fleet.ask("queue")["jobs"] if row["job_id"] == job), "")


def share(fleet: CardFleet, job: int) -> float:
    """Its part of the node's GPU time in the last minute."""
    return next((row["share"] or 0.0 for row in fleet.ask("queue")["jobs"] if row["job_id"] == job), 0.0)


def test_it_is_told_then_all_others_go_before_it(fleet):
    """No page of it says anything: what NVML sees is enough."""
    sleeper = fleet.submit("user1", "exec sleep 600")
    wait_for(lambda: reason(fleet, sleeper) == "IdleGpus", "the idle job to be told of", 60)
    assert "one mini-batch on them takes this back" in fleet.why(sleeper)
    wait_for(lambda: reason(fleet, sleeper) == "IdleParked", "it to be set behind", 60)
    other = fleet.hold("user2", "works", 1 << 20)
    wait_for(lambda: fleet.count("grant", other), "the other to have the GPU", 60)
    granted = fleet.count("grant", sleeper)
    wait_for(lambda: share(fleet, other) > 0.9, "the other to have the GPU alone", 120)
    assert fleet.count("grant", sleeper) <= granted + 1
    assert "has only what all others leave" in fleet.why(sleeper)
    fleet.stop("user2", "works")
    fleet.wait_ended(other, "COMPLETED")
    fleet.mini.exec(["scancel", str(sleeper)])
