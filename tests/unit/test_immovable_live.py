"""Nine unmodified trainings of three users on four GPUs, through the engine: six end, three remain."""

from __future__ import annotations

from collections import Counter

import pytest

from gandiva_slurm.engine.state.records import EngineSettings
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

#: Seconds: a quantum, a move as the policy is told, and Slurm's own steps of one: requeue, rest, start.
QUANTUM_S, MOVE_S, STEPS_S = 1, 5, 10


def three_that_remain(rigid: int) -> tuple[FakeWorld, list[int]]:
    """Let six end, so that three remain on the fewest GPUs; of the three this number cannot be moved."""
    settings = EngineSettings(QUANTUM_S * SECOND_NS, 4)
    world = FakeWorld({"n1": 4}, settings, move_ns=MOVE_S * SECOND_NS)
    nine = [world.submit(f"user{number % 3 + 1}") for number in range(9)]
    world.rigid.update(nine)
    world.run(60)
    crowd = Counter(gpu_of(world, job) for job in nine).most_common()
    rank = [gpu for gpu, _ in crowd]
    left = sorted(nine, key=lambda job: rank.index(gpu_of(world, job)))[:3]
    assert gpu_of(world, left[0]) == gpu_of(world, left[1])
    world.rigid.difference_update(left[rigid:])
    for job in nine:
        if job not in left:
            world.finish(job)
    return world, left


def gpu_of(world: FakeWorld, job_id: int) -> tuple[int, ...]:
    (gpus,) = world.engine.jobs[job_id].places.values()
    return gpus


@pytest.mark.parametrize("rigid", [0, 1, 2])
def test_each_of_three_has_a_gpu_of_its_own_when_those_that_share_one_can_be_moved(rigid: int) -> None:
    world, left = three_that_remain(0)
    world.rigid.update(left[:1] if rigid == 1 else left[2:] if rigid == 2 else ())
    world.run(2 * QUANTUM_S + MOVE_S + STEPS_S)
    assert world.engine.jobs.keys() >= {*left}
    assert len({gpu_of(world, job) for job in left}) == 3
    assert {*left} <= {*world.running()}


def test_where_none_can_be_moved_all_get_on_by_turns_where_they_are() -> None:
    world, left = three_that_remain(3)
    homes, ran = [gpu_of(world, job) for job in left], set[int]()
    for _ in range(6):
        world.run(QUANTUM_S)
        ran.update(world.running())
    assert [gpu_of(world, job) for job in left] == homes and ran >= {*left}
