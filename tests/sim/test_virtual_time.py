"""The demo's workload and its like in virtual time: production engine and stride, a fake Slurm between.

Each node runs its own LocalStride from the plan it was sent, a quantum a second, and keeps its holds; shares
are counted from those holds alone.
"""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.invariants import (
    every_gpu_second_is_charged_once,
    no_gpu_held_twice,
    one_incarnation_at_a_time,
)
from gandiva_slurm.engine.local import Gang, LocalStride
from gandiva_slurm.engine.state import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.shares import entitled_shares
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.records import Held

QUANTUM_NS = SECOND_NS


class Cluster:
    """Slurm, controller and nodes in virtual time; every park is on time."""

    def __init__(self, nodes: dict[str, int], users: tuple[str, ...] = ("user1", "user2", "user3")) -> None:
        self.world = FakeWorld(nodes, EngineSettings(quantum_ns=QUANTUM_NS), users, make_policy=None)
        self.locals = {name: LocalStride(gpus, QUANTUM_NS) for name, gpus in nodes.items()}
        self.holds: dict[str, list[Held]] = {name: [] for name in nodes}
        self.charged: dict[str, int] = {}

    def run(self, seconds: int) -> Cluster:
        """A cycle and a quantum each second."""
        for _ in range(seconds):
            self.world.cycle()
            self.slice()
        return self

    def slice(self) -> None:
        """One quantum on each node."""
        for name, local in self.locals.items():
            self._follow_plan(name, local)
            mine = {key: proc for (where, key), proc in self.world.procs.items() if where == name}
            running = local.choose(list(mine), (), ())
            for key, proc in mine.items():
                proc.state = states.RUNNING if key in running else states.SUSPENDED
            for gang in local.gangs:
                if gang.key in running:
                    self._hold(name, local, gang)
            local.settle()

    def got(self, since_ns: int = 0) -> dict[str, float]:
        """GPU-seconds of each user from holds that began since then."""
        seconds = dict.fromkeys(self.world.users, 0.0)
        for holds in self.holds.values():
            for hold in holds:
                if hold.t0_ns >= since_ns:
                    seconds[hold.user] += (hold.t1_ns - hold.t0_ns) * len(hold.gpus) / SECOND_NS
        return seconds

    def check(self) -> None:
        """What must hold of the books."""
        for holds in self.holds.values():
            assert no_gpu_held_twice(holds) == []
        everything = [hold for holds in self.holds.values() for hold in holds]
        assert every_gpu_second_is_charged_once(everything, self.charged) == []
        assert one_incarnation_at_a_time(self.holds) == []

    def _follow_plan(self, name: str, local: LocalStride) -> None:
        plan = {place.key: place for place in self.world.engine.plan_jobs(name)}
        here = [key for (where, key) in self.world.procs if where == name]
        known = {gang.key: gang for gang in local.gangs}
        gangs = []
        for key in here:
            place, gpus = plan.get(key), self.world.procs[name, key].gpus
            if place is not None:
                gangs.append(Gang(key, place.user, place.tickets, gpus, place.submitted_ns))
            elif key in known:  # no plan names it any more, and it is not gone yet
                gangs.append(known[key])
        local.set_gangs(gangs)

    def _hold(self, name: str, local: LocalStride, gang: Gang) -> None:
        t0_ns = self.world.now_ns
        t1_ns = t0_ns + QUANTUM_NS
        local.charge(gang.key, t1_ns - t0_ns, 0)
        self.holds[name].append(Held(*gang.key, gang.user, gang.gpus, t0_ns, t1_ns))
        work = (t1_ns - t0_ns) * len(gang.gpus)
        self.charged[gang.user] = self.charged.get(gang.user, 0) + work


def assert_fair(got: dict[str, float], want: dict[str, float]) -> None:
    """Within 5 % of the entitlement."""
    for user, seconds in want.items():
        assert got[user] == pytest.approx(seconds, rel=0.05), f"{got}, entitled {want}"


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
    two_ns = world.now_ns + 1
    cluster.run(60)
    got = cluster.got(two_ns)
    assert_fair(got, {"user1": 120, "user2": 120})
    gang = world.submit("user3", 4)
    cluster.run(3)
    three_ns = world.now_ns + 1
    cluster.run(60)
    assert_fair(cluster.got(three_ns), {"user1": 80, "user2": 80, "user3": 80})
    by_job = [
        sum(h.job_id == job_id for h in cluster.holds["n1"] if h.t0_ns >= three_ns) for job_id in (2, 3, 4, 5)
    ]
    assert max(by_job) - min(by_job) <= 1, "inside user2 his four jobs are equals"
    world.finish(gang)
    cluster.run(3)
    last_ns = world.now_ns + 1
    cluster.run(20)
    assert_fair(cluster.got(last_ns), {"user1": 40, "user2": 40})
    cluster.check()


@pytest.mark.parametrize("order", [(1, 10, 100), (100, 10, 1), (10, 100, 1)])
def test_users_of_one_ten_and_a_hundred_jobs(order: tuple[int, ...]) -> None:
    """All submitted at once, on 8 GPUs: entitled to 1, 3.5 and 3.5 GPUs, however many find a slot."""
    cluster = Cluster({"n1": 8})
    counts = dict(zip(cluster.world.users, order, strict=True))
    for user, count in counts.items():
        for _ in range(count):
            cluster.world.submit(user, 1)
    cluster.run(3)
    since_ns = cluster.world.now_ns + 1
    cluster.run(50)
    want = entitled_shares(dict.fromkeys(counts, 1), counts, 8)
    assert_fair(cluster.got(since_ns), {user: float(gpus) * 50 for user, gpus in want.items()})
    cluster.check()


def test_newcomer_finds_a_slot_beside_a_flood() -> None:
    """A user of a hundred jobs has filled the node; the next one's jobs still find slots, and his share."""
    cluster = Cluster({"n1": 4})
    for _ in range(100):
        cluster.world.submit("user1", 1)
    cluster.run(30)
    for _ in range(4):
        cluster.world.submit("user2", 1)
    cluster.run(3)
    since_ns = cluster.world.now_ns + 1
    cluster.run(50)
    assert_fair(cluster.got(since_ns), {"user1": 100, "user2": 100})
    cluster.check()


def test_two_nodes_share_by_users_over_the_cluster() -> None:
    cluster = Cluster({"n1": 4, "n2": 4})
    cluster.world.submit("user1", 4)
    for _ in range(8):
        cluster.world.submit("user2", 1)
    cluster.world.submit("user3", 4)
    cluster.run(3)
    since_ns = cluster.world.now_ns + 1
    cluster.run(100)
    assert_fair(cluster.got(since_ns), dict.fromkeys(("user1", "user2", "user3"), 800 / 3))
    cluster.check()


def test_nodes_slice_on_while_the_controller_is_away_and_after_its_return() -> None:
    cluster = Cluster({"n1": 4})
    cluster.world.submit("user1", 4)
    for _ in range(4):
        cluster.world.submit("user2", 1)
    cluster.run(5)
    since_ns = cluster.world.now_ns + 1
    for _ in range(20):
        cluster.world.now_ns += SECOND_NS
        cluster.slice()
    cluster.world.restart_controller(keep_journal=True)
    for _ in range(20):
        assert cluster.world.cycle() == []
        cluster.slice()
    assert_fair(cluster.got(since_ns), {"user1": 80, "user2": 80})
    cluster.check()


def test_node_loss_moves_its_jobs_and_keeps_the_books_straight() -> None:
    cluster = Cluster({"n1": 4, "n2": 4})
    jobs = [cluster.world.submit("user1", 2) for _ in range(2)] + [cluster.world.submit("user2", 4)]
    cluster.run(10)
    lost = cluster.world.jobs[jobs[0]].nodes[0]
    cluster.world.lose_node(lost)
    cluster.run(20)
    assert all(lost not in cluster.world.jobs[job_id].nodes for job_id in jobs)
    assert all(cluster.world.state_of(job_id) in states.SLICED for job_id in jobs)
    cluster.check()


def test_nothing_acts_once_all_is_settled() -> None:
    """Stability rounds: slicing goes on, the slow clock does nothing."""
    cluster = Cluster({"n1": 4, "n2": 2})
    for n in range(12):
        cluster.world.submit(f"user{n % 3 + 1}", (1, 2, 4)[n % 3])
    cluster.run(10)
    plans = {name: cluster.world.engine.plan_jobs(name) for name in ("n1", "n2")}
    for _ in range(200):
        assert cluster.world.cycle() == []
        cluster.slice()
    assert {name: cluster.world.engine.plan_jobs(name) for name in ("n1", "n2")} == plans
    cluster.check()
