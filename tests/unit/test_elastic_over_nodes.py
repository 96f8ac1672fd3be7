"""The policy's part of growing over two nodes: where to, how far, and what is kept."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.elastic import Elastic
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import NODE, Cluster, JobView, View

TURN_NS = 60 * 10**9


def grown(shape: list[tuple[str, int]], job: JobView, waiting: tuple[JobView, ...] = ()) -> tuple[int, ...]:
    """What a job gets that runs on its GPUs' first `size`, when all others have been idle for a turn."""
    elastic, runs = Elastic(TURN_NS), {job.job_id: job.gpus}
    for now_ns in (TURN_NS, 2 * TURN_NS):
        runs = {job.job_id: job.gpus[: max(job.size, 1)]}
        elastic.grow(View(now_ns, Cluster(shape), {job.job_id: job}, Learnt()), runs, set(), waiting)
    return runs[job.job_id]


def a_job(gpus: tuple[int, ...], size: int = 1, most: int = 8, **fields: object) -> JobView:
    more = {"min_size": 1, "max_size": most, "max_nodes": 2, "cell": NODE, **fields}
    return JobView(1, "user1", size, 0, gpus=gpus, **more)  # type: ignore[arg-type]


ONE_EACH, TWO_EACH = [("v100", 1), ("v100", 1)], [("v100", 2), ("v100", 2)]


@pytest.mark.parametrize(
    ("shape", "job", "want"),
    [
        (ONE_EACH, a_job((0,)), (0, 1)),
        (ONE_EACH, a_job((1,)), (0, 1)),
        (ONE_EACH, a_job((0,), max_nodes=1), (0,)),
        (ONE_EACH, a_job((0,), most=1), (0,)),
        (ONE_EACH, a_job((0,), size=2), (0,)),
        (TWO_EACH, a_job((0,), most=4), (0, 1)),
        (TWO_EACH, a_job((0, 1), size=2, most=4), (0, 1, 2, 3)),
        (TWO_EACH, a_job((0, 1), size=2, most=3), (0, 1)),
        ([("v100", 1), ("k80", 1)], a_job((0,)), (0,)),
        ([("v100", 2), ("v100", 1)], a_job((0, 1), size=2), (0, 1)),
        ([("v100", 1), ("v100", 4), ("v100", 2)], a_job((0,)), (0, 5)),
        (ONE_EACH, a_job((0,), hosts=frozenset({0})), (0,)),
        ([("v100", 1)] * 3, a_job((0, 1)), (0, 1)),
    ],
    ids=[
        "the other node's", "the first node's", "one node asked", "one GPU at most", "began small",
        "at home first", "two each", "three at most", "another type", "a smaller node", "the tightest",
        "not its partition", "no third node",
    ],
)  # fmt: skip
def test_where_and_how_far(shape: list[tuple[str, int]], job: JobView, want: tuple[int, ...]) -> None:
    assert grown(shape, job) == want


def test_it_is_back_on_one_node_when_somebody_waits() -> None:
    waits = JobView(2, "user2", 1, 0)
    assert grown(TWO_EACH, a_job((0, 1, 2, 3), size=2), (waits,)) == (0, 1)
    assert grown(TWO_EACH, a_job((0, 1, 2, 3), size=2)) == (0, 1, 2, 3)


@pytest.mark.parametrize(("rate", "want"), [(1.01, (0,)), (1.5, (0, 1))], ids=["no gain", "a gain"])
def test_what_is_known_of_its_rates_decides(rate: float, want: tuple[int, ...]) -> None:
    rates = Learnt()
    rates.learn_alone(("m", 1, "v100", True), 1.0, 1.0)
    rates.learn_alone(("m", 2, "v100", False), rate, 1.0)
    job, runs = a_job((0, 1), model="m"), {1: (0,)}
    Elastic(TURN_NS).grow(View(0, Cluster(ONE_EACH), {1: job}, rates), runs, set(), ())
    assert runs[1] == want
