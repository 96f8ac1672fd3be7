"""Slurm's PrivateData, its operators and coordinators, as gandivactld has them from a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, said, set_slurm, wait_for


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("private", "v100:1x1", 2.0) as made:
        set_slurm(made, PrivateData="jobs,usage")
        yield made


def test_a_user_sees_its_own_jobs_and_a_coordinator_those_of_its_account(fleet: Fleet) -> None:
    fleet.mini.exec(["sacctmgr", "-i", "add", "coordinator", "account=research", "names=user2"])
    job = fleet.train("user1", "one")
    fleet.wait_running(job)

    def seen_by(user: str) -> set[int]:
        return {row["job_id"] for row in json.loads(said(fleet.mini, "queue", "--json", user=user))["jobs"]}

    # Who coordinates what is read from Slurm's accounts, and kept for a minute: a slow machine may be late.
    users = ("user1", "user2", "user3")
    wait_for(lambda: [seen_by(user) for user in users] == [{job}, {job}, set()], "the rules to be known", 150)
    assert seen_by("user3") == set()
