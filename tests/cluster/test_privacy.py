"""Slurm's PrivateData, its operators and coordinators, as gandivactld has them from a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("private", "v100:1x1", 2.0) as made:
        conf = made.at.etc / "slurm.conf"
        conf.write_text(f"{conf.read_text()}\nPrivateData=jobs,usage\n")
        made.exec(["scontrol", "reconfigure"])
        yield made


def test_a_user_sees_its_own_jobs_and_a_coordinator_those_of_its_account(fleet: Fleet) -> None:
    fleet.mini.exec(["sacctmgr", "-i", "add", "coordinator", "account=research", "names=user2"])
    job = fleet.train("user1", "one")
    fleet.wait_running(job)

    def seen_by(user: str) -> set[int]:
        said = fleet.mini.exec(["gandiva", "queue", "--json"], user=user).stdout
        return {row["job_id"] for row in json.loads(said)["jobs"]}

    assert [seen_by(user) for user in ("user1", "user2", "user3")] == [{job}, {job}, set()]
