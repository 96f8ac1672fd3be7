"""What a plan may ask of its node, and what is impossible, also where the signature is good."""

from dataclasses import replace

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.node.planning import check_plan
from gandiva_slurm.wire.messages import NodePlan, PlannedJob

JOB = PlannedJob(1, 0, "user1", 61001, (0, 3), 10, 1)
PLAN = NodePlan("n1", 1, 1, 10**9, 4, (JOB,), (), "", 0)


def test_a_plan_of_this_node_is_possible():
    check_plan(PLAN, "n1")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": "n2"}, "the plan is n2's"),
        ({"quantum_ns": 0}, "impossible"),
        ({"gpus": -1}, "impossible"),
        ({"gpus": 1 << 62}, "impossible"),
        ({"gpus": 3}, "given GPUs"),
        ({"jobs": (replace(JOB, gpus=()),)}, "given GPUs"),
        ({"jobs": (replace(JOB, gpus=(0, 0)),)}, "given GPUs"),
        ({"jobs": (replace(JOB, gpus=(-1, 0)),)}, "given GPUs"),
        ({"jobs": (replace(JOB, tickets=0),)}, "tickets"),
    ],
)
def test_what_is_impossible_is_refused(change, why):
    """A count without end would ask for as much memory."""
    with pytest.raises(PeerError, match=why):
        check_plan(replace(PLAN, **change), "n1")
