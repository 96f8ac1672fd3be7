"""What gandivactld decided on a real Slurm is decided again from its journal, while it runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, wait_for

SLEEP = "srun sleep 600"


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of two types."""
    with own_cluster("replay", "v100:1x2,k80:1x1", 0.5) as made:
        yield made


def replayed(fleet: Fleet) -> dict[str, Any]:
    """What `gandiva replay` says of the journal of the running controller."""
    path = str(fleet.mini.at.spool / "gandivactld" / "journal.sqlite")
    told: dict[str, Any] = json.loads(fleet.mini.exec(["gandiva", "replay", path, "--json", "-"]).stdout)
    return told


def test_a_real_run_is_decided_again(fleet: Fleet) -> None:
    """Starts, a gang, a job its owner holds, a requeue, cancelled jobs, and a controller killed amid that."""
    jobs = [fleet.submit(f"user{n % 3 + 1}", SLEEP) for n in range(4)]
    waiting = fleet.submit("user1", SLEEP, "--hold")
    gang = fleet.submit("user2", SLEEP, gpus=2)
    for job in (*jobs, gang):
        fleet.wait_running(job)
    fleet.mini.kill("gandivactld")
    fleet.mini.exec(["scancel", str(jobs[0])])
    fleet.mini.start_daemon("gandivactld")
    fleet.mini.exec(["scontrol", "requeue", str(jobs[1])])
    show = ["scontrol", "show", "job", str(jobs[1])]
    wait_for(lambda: "Restarts=1 " in fleet.mini.exec(show).stdout, "the requeue")
    fleet.wait_running(jobs[1])
    fleet.mini.exec(["scancel", str(waiting), str(gang)])
    fleet.wait_ended(gang)
    seen = wait_for(lambda: (told := replayed(fleet))["segments"] >= 2 and told, "two lives")
    assert seen["first"] is None and seen["different"] == 0
    assert seen["equal"] >= len(jobs) + 2 and seen["cycles"] > 8
