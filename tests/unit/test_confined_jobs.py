"""Policies put jobs on nodes that these may use: partitions, drained nodes, and what they were moved from."""

from __future__ import annotations

import random

import pytest

from gandiva_slurm.policy.port import NODE, Cluster, JobView, PolicySettings, View
from gandiva_slurm.policy.registry import make_policy, policy_names
from gandiva_slurm.policy.soundness import fault_of
from tests.slurm_world import Speeds

S = 10**9
#: It binds cells, and cells know no partitions: a cluster with several of them refuses its plans.
BLIND = ("hived",)
CLUSTER = Cluster([("v100", 4), ("v100", 4), ("k80", 4), ("k80", 4)])


def jobs_of(draw: random.Random) -> dict[int, JobView]:
    """Jobs of two virtual clusters, half of them in a partition of two nodes or in one of three."""
    found = {}
    for n in range(12):
        size = draw.choice((1, 1, 2, 4))
        found[n] = JobView(
            n, f"user{n % 3}", size, n * S, model=f"m{n % 4}", min_size=size, max_size=size, cell=NODE,
            vc=f"vc{n % 2}", hosts=draw.choice((None, frozenset({1, 2}), frozenset({0, 1, 3}))),
            length_ns=900 * S, left_ns=900 * S, can_pack=False,
        )  # fmt: skip
    return found


@pytest.mark.parametrize("name", [name for name in policy_names() if name not in BLIND])
def test_no_job_is_put_where_it_may_not_be(name: str) -> None:
    """Jobs come one by one, run for some minutes, and end; each plan is one that a cluster takes."""
    for seed in range(8):
        draw = random.Random(seed)
        policy, _ = make_policy(name, PolicySettings(60 * S))
        coming, here = jobs_of(draw), dict[int, JobView]()
        ran = set[int]()
        for minute in range(60):
            if coming and minute % 2 == 0:
                here |= dict([coming.popitem()])
            view = View(minute * 60 * S + 1, CLUSTER, dict(sorted(here.items())), Speeds())
            plan = policy.decide(view)
            assert fault_of(view, plan) == "", (name, seed, minute)
            for job_id, job in here.items():
                job.gpus, job.is_running = plan.runs.get(job_id, job.gpus), job_id in plan.runs
                job.held_ns += 60 * S * len(job.gpus) * job.is_running
            ran |= plan.runs.keys()
            if minute > 20:  # the first that has run ends
                here.pop(next((job_id for job_id in here if job_id in ran), -1), None)
        assert len(ran) == 12, "and all have run"
