"""Plans through the engine in virtual time: jobs come, end, are of many kinds; nodes fail and return."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.slow import DRAWN, drawn
from tests.slurm_world import SmallWorld

NODES = (("v100", 2), ("v100", 4), ("k80", 4))
USERS = st.sampled_from(("ann", "bob", "cyd"))
BOUNDED = settings(
    max_examples=drawn(40), stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


class SlurmWorldMachine(RuleBasedStateMachine):
    """Plans are checked, and made twice, whenever one is asked for (SmallWorld.ask)."""

    @initialize(shape=st.lists(st.sampled_from(NODES), min_size=1, max_size=4))
    def begin(self, shape: list[tuple[str, int]]) -> None:
        self.world = SmallWorld(*shape, tickets={"ann": 2})

    @rule(
        user=USERS, size=st.sampled_from((1, 1, 2, 4, 8)), priority=st.sampled_from((0, 50, 100)),
        types=st.sampled_from(((), (), ("v100",))), model=st.sampled_from(("", "a", "b")),
        vc=st.sampled_from(("", "", "", "x", "y")),
    )  # fmt: skip
    def submit(
        self, user: str, size: int, priority: int, types: tuple[str, ...], model: str, vc: str
    ) -> None:
        self.world.submit(user, size, priority=priority, gpu_types=types, model=model, vc=vc)

    @rule(quanta=st.sampled_from((0.001, 0.3, 1.0, 4.0, 35.0)))
    def pass_time(self, quanta: float) -> None:
        self.world.pass_time(quanta)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), priority=st.sampled_from((0, 100)))
    def change_priority(self, data: st.DataObject, priority: int) -> None:
        self.world.jobs[data.draw(st.sampled_from([*self.world.jobs]))].priority = priority

    @precondition(lambda self: self.world.plan.runs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.world.finish(data.draw(st.sampled_from([*self.world.plan.runs])))

    @rule(data=st.data(), is_down=st.booleans())
    def fail_or_mend(self, data: st.DataObject, is_down: bool) -> None:
        host = data.draw(st.integers(0, len(self.world.cluster.hosts) - 1))
        self.world.set_down(host, is_down)

    def teardown(self) -> None:
        """Once all is well, each job that fits gets its turns and ends; the whole is decided again."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for host in sorted(world.down):
            world.set_down(host, False)
        held = dict(world.held_ns)
        for _ in range(40 * len(world.jobs)):
            world.pass_time(1)
            for job_id in [job for job in world.jobs if world.held_ns[job] - held[job] > 0]:
                world.finish(job_id)
        assert [job.size for job in world.jobs.values() if self._fits(job.size, job.gpu_types)] == []
        tally = world.tape.replay()
        assert tally.first is None

    def _fits(self, size: int, types: tuple[str, ...]) -> bool:
        hosts = [host for host in self.world.cluster.hosts if not types or host.gpu_type in types]
        for kind in {host.gpu_type for host in hosts}:
            gpus = [len(host.gpus) for host in hosts if host.gpu_type == kind]
            if any(size % n == 0 and sum(g * n >= size for g in gpus) >= n for n in range(1, size + 1)):
                return True
        return False


SlurmWorldMachine.TestCase.settings = BOUNDED
TestSlurmWorld = DRAWN(SlurmWorldMachine.TestCase)


@DRAWN
@settings(max_examples=drawn(25))
@given(
    counts=st.dictionaries(USERS, st.integers(1, 2), min_size=2),
    tickets=st.fixed_dictionaries({user: st.integers(1, 3) for user in ("ann", "bob", "cyd")}),
    size=st.sampled_from((1, 4)),
)
def test_users_get_gpu_time_by_their_tickets(
    counts: dict[str, int], tickets: dict[str, int], size: int
) -> None:
    """Jobs of a whole node: on a part of it they keep to their GPUs, and shares to who is there."""
    world = SmallWorld(("v100", size), tickets=tickets)
    for user, count in counts.items():
        for _ in range(count):
            world.submit(user, size)
    world.pass_time(2)
    before = world.got()
    world.pass_time(60)
    whole = sum(tickets[user] for user in counts)
    for user in counts:
        got = (world.got()[user] - before[user]) / size
        assert got == pytest.approx(60 * tickets[user] / whole, rel=0.03, abs=2.01)
