"""Guaranteed and opportunistic jobs under the policy `live`, by when they end."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.classes import PATIENCE_NS
from gandiva_slurm.policy.port import GUARANTEED, OPPORTUNISTIC, Cluster, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.live import LivePolicy
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from tests.live_world import LiveWorld
from tests.sim_scenes import ends_s

S = 10**9
QUANTUM_NS = 60 * S
Row = tuple[str, int, float, float]


def ends(*jobs: Row, beside: tuple[Row, ...] = (), job_class: str = GUARANTEED) -> list[float]:
    """When each of (user, GPUs, submitted at, length) ends on four GPUs; those `beside` are of the class."""
    rows = [*((row, GUARANTEED) for row in jobs), *((row, job_class) for row in beside)]
    specs = [
        Spec(n, str(n), user, size, round(at_s * S), round(length_s * S), job_class=kind)
        for n, ((user, size, at_s, length_s), kind) in enumerate(rows)
    ]
    order = sorted(range(len(specs)), key=lambda n: specs[n].submit_ns)
    scene = Scene([specs[n] for n in order], Cluster([("v100", 4)]), Homogeneous(), is_checked=True)
    found = dict(zip(order, ends_s(simulate(scene, LivePolicy(PolicySettings(QUANTUM_NS)))), strict=True))
    return [found[n] for n in range(len(specs))]


#: Users who ask for as much as their shares, and more: nobody is promoted while a guaranteed job lives.
MIX: tuple[Row, ...] = (("ann", 2, 30, 500), ("ben", 4, 100, 300), ("cat", 1, 400, 900), ("ann", 1, 700, 300))
OTHERS: tuple[Row, ...] = (("ann", 4, 0, 400), ("ben", 1, 0, 250), ("ben", 2, 20, 500), ("ann", 1, 350, 200))


def test_guaranteed_jobs_end_as_if_there_were_no_others() -> None:
    """Within the quantum by which turns are shifted; as equals of theirs the others would delay them."""
    alone = ends(*MIX)
    mixed = ends(*MIX, beside=OTHERS, job_class=OPPORTUNISTIC)
    for got, want in zip(mixed, alone, strict=False):
        assert abs(got - want) <= QUANTUM_NS / S, (alone, mixed)
    assert sum(mixed[:4]) <= sum(alone)
    work_s = sum(size * length_s for _, size, _, length_s in (*MIX, *OTHERS))
    assert max(mixed) <= 1.25 * work_s / 4, "the others have what is left idle, while it is"
    assert sum(ends(*MIX, beside=OTHERS)[:4]) > sum(alone) + 1000


def test_a_guaranteed_job_has_an_opportunistic_ones_gpu_at_once_and_gives_it_back() -> None:
    world = LiveWorld(("v100", 1))
    first = world.submit("ann", job_class=OPPORTUNISTIC)
    world.pass_time(1.5)
    assert list(world.plan.runs) == [first]
    second = world.submit("ben")
    world.pass_time(0.1)
    assert list(world.plan.runs) == [second], "in the middle of a quantum"
    world.pass_time(3)
    assert list(world.plan.runs) == [second]
    world.finish(second)
    assert list(world.plan.runs) == [first]
    assert world.tape.replay().first is None


def test_one_that_waited_long_is_promoted_and_takes_turns() -> None:
    """Two GPUs, two users of as many tickets: one for each."""
    world = LiveWorld(("v100", 2))
    first, _, second = world.submit("ann"), world.submit("ann"), world.submit("ben", job_class=OPPORTUNISTIC)
    waits = PATIENCE_NS / QUANTUM_NS
    world.pass_time(waits)
    assert world.got() == {"ann": 2 * waits, "ben": 0}
    world.pass_time(21)
    assert world.got()["ben"] == pytest.approx(20, abs=1)
    assert (
        world.policy.engine.jobs[second + 1].is_promoted
        and not world.policy.engine.jobs[first + 1].is_promoted
    )
    assert world.tape.replay().first is None


def test_a_guaranteed_span_parks_an_opportunistic_job_and_the_other_way_round_it_waits() -> None:
    for ours, theirs in ((OPPORTUNISTIC, GUARANTEED), (GUARANTEED, OPPORTUNISTIC)):
        world = LiveWorld(("v100", 2), ("v100", 2))
        small = [world.submit(f"user{n}", 2, job_class=ours) for n in range(2)]
        world.pass_time(1.5)
        assert sorted(world.plan.runs) == small
        span = world.submit("span", 4, job_class=theirs)
        world.pass_time(0.1)
        assert sorted(world.plan.runs) == ([span] if theirs == GUARANTEED else small), "in mid-quantum"
        world.pass_time(2)
        assert sorted(world.plan.runs) == ([span] if theirs == GUARANTEED else small)
        assert world.tape.replay().first is None
