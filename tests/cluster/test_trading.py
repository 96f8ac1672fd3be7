"""Users trade GPU time on a real cluster of two GPU types, and what they traded outlives gandivactld."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, said, wait_for
from tests.cluster.test_policy import TRAINING, USERS
from tests.slow import soak

#: by user: milliseconds of a step on n1 (v100) and on n2 (k80): a V100 is worth 1.2, 2 and 6 K80s
STEPS_MS = {"user1": (50, 60), "user2": (30, 60), "user3": (10, 60)}
#: Jobs of each user, one GPU each: half as many again as GPUs, so that all have room.
TASKS = 2


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """A node of two V100s and one of two K80s; a move is taken for half a second."""
    settings = {"policy": "gandiva_market", "moves": {"cost_s": 0.5}}
    with own_cluster("trading", "v100:1x2,k80:1x2", 1.0, **settings) as made:
        for user in USERS:
            made.path(f"/home/{user}/{TRAINING.name}").write_text(TRAINING.read_text())
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    """At the end all jobs have ended and the books are whole."""
    with mended(Fleet(cluster)) as made:
        yield made


def traded(fleet: Fleet, book: str) -> dict[str, dict[str, float]]:
    """What `gandiva share` tells of trades, by user and type, in seconds."""
    return {row["user"]: row[book] for row in fleet.ask("share", "-a")["users"]}


def tasks(fleet: Fleet) -> dict[int, str]:
    """Whose each job is."""
    return {row["job_id"]: row["user"] for row in fleet.ask("queue")["jobs"] if row["state"] != "ENDED"}


@pytest.mark.timeout(900)
@soak("2 minutes of trades by measured rates; in virtual time tests/sim/test_market.py has them")
def test_fast_gpus_go_to_whom_they_help_and_the_ledger_outlives_the_controller(fleet: Fleet) -> None:
    for user, (fast, slow_ms) in STEPS_MS.items():
        fleet.submit(
            user,
            f'export OUT=~\n[ "$SLURMD_NODENAME" = n1 ] && ms={fast} || ms={slow_ms}\n'
            f"exec python {TRAINING.name} $ms 1000000",
            f"--array=1-{TASKS}",
        )
    wait_for(
        lambda: traded(fleet, "traded_in").get("user3", {}).get("v100", 0) > 10,
        lambda: f"user3 to have bought V100s: {fleet.ask('share', '-a')}",
        300,
    )
    came, went = (traded(fleet, book) for book in ("traded_in", "traded_out"))
    assert went["user3"]["k80"] > 10
    assert went["user1"]["v100"] > 0 and came["user1"]["k80"] > went["user1"]["v100"], "above its worth"
    mine = next(job for job, user in tasks(fleet).items() if user == "user3")
    evidence = fleet.ask("why", str(mine))["evidence"]
    assert any(line.startswith("trade: ") and "user3" in line for line in evidence), evidence
    assert "TradedIn" in said(fleet.mini, "share", "-a")
    fleet.mini.kill("gandivactld")
    fleet.start_dead()

    def is_kept() -> bool:
        again = traded(fleet, "traded_in").get("user3", {})
        return again.get("v100", 0) >= came["user3"]["v100"]

    wait_for(is_kept, lambda: f"the next controller to know it: {fleet.ask('share', '-a')}", 60)
    for job, user in tasks(fleet).items():
        fleet.home(user, f"stop.{job}").touch()
    wait_for(lambda: not tasks(fleet), lambda: f"all to end: {fleet.ask('queue')}", 120)
