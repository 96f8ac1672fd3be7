"""The demo's workload and its like in virtual time: production engine and policy, a fake Slurm between.

Shares are counted from the GPU time that nodes tell of each job.
"""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.shares.associations import entitled_shares
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

QUANTUM_NS = SECOND_NS


class Cluster:
    """Slurm, controller and nodes in virtual time; every park is on time."""

    def __init__(self, nodes: dict[str, int], users: tuple[str, ...] = ("user1", "user2", "user3")) -> None:
        self.world = FakeWorld(nodes, EngineSettings(QUANTUM_NS), users, move_ns=SECOND_NS)
        self._before: dict[str, float] = {}

    def run(self, seconds: int) -> Cluster:
        """A cycle and a quantum each second."""
        self.world.run(seconds)
        return self

    def count(self) -> None:
        """Count GPU time from now on."""
        self._before = self._held()

    def got(self) -> dict[str, float]:
        """GPU-seconds of each user since `count`."""
        return {user: held - self._before.get(user, 0.0) for user, held in self._held().items()}

    def _held(self) -> dict[str, float]:
        seconds = dict.fromkeys(self.world.users, 0.0)
        for record in self.world.engine.jobs.values():
            seconds[record.job.user] += record.held_ns / SECOND_NS
        return seconds


def assert_fair(got: dict[str, float], want: dict[str, float]) -> None:
    """Within 5 % of the entitlement, of what is left by moves: a tenth of all at most."""
    part = sum(got.values()) / sum(want.values())
    assert 0.9 <= part <= 1.01, f"{got}, entitled {want}"
    for user, seconds in want.items():
        assert got[user] == pytest.approx(seconds * part, rel=0.05), f"{got}, entitled {want}"


def test_demo_workload_is_shared_by_users() -> None:
    """4 GPUs, equal tickets: a 2-GPU job, four 1-GPU jobs, and later a 4-GPU gang of a third user."""
    cluster = Cluster({"n1": 4})
    world = cluster.world
    world.submit("user1", 2)
    cluster.run(2)
    for _ in range(4):
        world.submit("user2", 1)
        cluster.run(1)
    cluster.run(1)
    cluster.count()
    cluster.run(60)
    got = cluster.got()
    assert_fair(got, {"user1": 120, "user2": 120})
    gang = world.submit("user3", 4)
    cluster.run(3)
    cluster.count()
    cluster.run(60)
    assert_fair(cluster.got(), {"user1": 80, "user2": 80, "user3": 80})
    world.finish(gang)
    cluster.run(3)
    cluster.count()
    cluster.run(20)
    assert_fair(cluster.got(), {"user1": 40, "user2": 40})


@pytest.mark.parametrize("order", [(1, 10, 100), (100, 10, 1), (10, 100, 1)])
def test_users_of_one_ten_and_a_hundred_jobs(order: tuple[int, ...]) -> None:
    """All submitted at once, on 8 GPUs: entitled to 1, 3.5 and 3.5 GPUs, however many find a slot.

    The lone job gives a slice, now and then, to one at home on its GPU that was passed over in many.
    """
    cluster = Cluster({"n1": 8})
    counts = dict(zip(cluster.world.users, order, strict=True))
    for user, count in counts.items():
        for _ in range(count):
            cluster.world.submit(user, 1)
    cluster.run(50)
    cluster.count()
    cluster.run(50)
    want = entitled_shares(dict.fromkeys(counts, 1), counts, 8)
    got = cluster.got()
    alone = order.index(1)
    assert got.pop(f"user{alone + 1}") >= 0.9 * 50
    assert_fair(got, {user: float(want[user]) * 50 for user in got})


@pytest.mark.parametrize("slots", [2, 4])
def test_newcomer_is_taken_in_beside_a_flood(slots: int) -> None:
    """A user of a hundred jobs has filled the node; the next one has a GPU, and then a share, at once.

    Moves are dear, so turns are long: of the first one's jobs some make way in the middle of one.
    """
    world = FakeWorld({"n1": 4}, EngineSettings(QUANTUM_NS, slots))
    for _ in range(100):
        world.submit("user1", 1)
    world.run(30)
    late = [world.submit("user2", 1) for _ in range(4)]
    world.run(10)
    assert any(world.engine.jobs[job_id].held_ns for job_id in late)
    cluster = Cluster({})
    cluster.world = world
    world.run(10)
    cluster.count()
    cluster.run(60)
    assert_fair(cluster.got(), {"user1": 120, "user2": 120, "user3": 0})
    moves = sum(len(record.travels.moved_ns) for record in world.engine.jobs.values())
    assert moves == 2, "as many as its share of the node has GPUs"


def test_two_nodes_share_by_users_over_the_cluster() -> None:
    cluster = Cluster({"n1": 4, "n2": 4})
    cluster.world.submit("user1", 4)
    for _ in range(8):
        cluster.world.submit("user2", 1)
    cluster.world.submit("user3", 4)
    cluster.run(3)
    cluster.count()
    cluster.run(100)
    assert_fair(cluster.got(), dict.fromkeys(("user1", "user2", "user3"), 800 / 3))


def test_shares_go_on_after_a_restart_of_the_controller() -> None:
    cluster = Cluster({"n1": 4})
    cluster.world.submit("user1", 4)
    for _ in range(4):
        cluster.world.submit("user2", 1)
    cluster.run(5)
    cluster.count()
    cluster.run(20)
    cluster.world.restart_controller(keep_journal=True)
    cluster.run(20)
    assert_fair(cluster.got(), {"user1": 80, "user2": 80})


def test_node_loss_moves_its_jobs() -> None:
    cluster = Cluster({"n1": 4, "n2": 4})
    jobs = [cluster.world.submit("user1", 2) for _ in range(2)] + [cluster.world.submit("user2", 4)]
    cluster.run(10)
    lost = cluster.world.jobs[jobs[0]].nodes[0]
    cluster.world.lose_node(lost)
    cluster.run(20)
    assert all(lost not in cluster.world.jobs[job_id].nodes for job_id in jobs)
    assert all(cluster.world.state_of(job_id) in states.SLICED for job_id in jobs)
