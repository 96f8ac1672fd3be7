"""What an elastic job has grown into it keeps while it is saved and started anew, until others need it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import EngineSettings
from gandiva_slurm.model import job as states
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

QUANTUM_S = 5
#: A turn of idleness, a save and a start, and much more.
GROWN_S, LONG_S = 90, 600


def a_world(nodes: dict[str, int], min_run_s: int = 0) -> FakeWorld:
    """Moves cost next to nothing; a job stays `min_run_s` where it was started."""
    told = EngineSettings(QUANTUM_S * SECOND_NS, slots_per_gpu=2, min_run_ns=min_run_s * SECOND_NS)
    return FakeWorld(nodes, told, move_ns=SECOND_NS)


def resizes(world: FakeWorld, job_id: int) -> list[str]:
    """What its story says of its sizes, in order."""
    return [line.code for line in world.engine.jobs[job_id].story if line.code in ("Growing", "Shrinking")]


@pytest.mark.parametrize("min_run_s", [0, 30], ids=["moved at any time", "kept where it was started"])
def test_what_has_grown_stays_so_while_nobody_waits(min_run_s: int) -> None:
    world = a_world({"a": 2}, min_run_s)
    job = world.submit(elastic="1-2")
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing"], "once, and for good"
    assert world.engine.jobs[job].places == {"a": (0, 1)} and world.state_of(job) == states.RUNNING


def test_it_stays_grown_when_gandivactld_begins_anew() -> None:
    world = a_world({"a": 2})
    job = world.submit(elastic="1-2")
    world.run(GROWN_S)
    world.restart_controller(keep_journal=True)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing"]


@pytest.mark.parametrize("min_run_s", [0, 30], ids=["moved at any time", "kept where it was started"])
def test_it_gives_back_what_another_needs_and_grows_again_after_it(min_run_s: int) -> None:
    world = a_world({"a": 2}, min_run_s)
    job = world.submit(elastic="1-2")
    world.run(GROWN_S)
    other = world.submit("user2")
    world.run(GROWN_S)
    homes = (world.engine.jobs[job].places, world.engine.jobs[other].places)
    assert sorted(gpus for home in homes for gpus in home.values()) == [(0,), (1,)]
    world.finish(other)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing", "Shrinking", "Growing"]


def test_it_grows_over_two_nodes_where_its_own_has_no_gpu_left_and_comes_back() -> None:
    world = a_world({"a": 1, "b": 1})
    job = world.submit(elastic="1-4", max_nodes=2)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing"] and world.state_of(job) == states.RUNNING
    assert world.engine.jobs[job].places == {"a": (0,), "b": (0,)}
    assert world.jobs[job].nodes == ("a", "b") and world.asked_gpus[job] == 2
    other = world.submit("user2")
    world.run(GROWN_S)
    homes = [world.engine.jobs[each].places for each in (job, other)]
    assert sorted(name for home in homes for name in home) == ["a", "b"]
    assert resizes(world, job) == ["Growing", "Shrinking"]
    world.finish(other)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing", "Shrinking", "Growing"]


def grown_over_two(gpus: int = 1) -> tuple[FakeWorld, int]:
    """Two nodes of `gpus` GPUs, and a job that has grown over both."""
    world = a_world({"a": gpus, "b": gpus})
    job = world.submit(elastic="1-4", gpus=gpus, max_nodes=2)
    world.run(GROWN_S)
    assert len(world.engine.jobs[job].places) == 2 and world.state_of(job) == states.RUNNING
    return world, job


def test_it_grows_on_its_own_node_first() -> None:
    world = a_world({"a": 2, "b": 2})
    job = world.submit(elastic="1-4", max_nodes=2)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing", "Growing"]
    assert world.engine.jobs[job].places == {"a": (0, 1), "b": (0, 1)}


@pytest.mark.parametrize(
    ("nodes", "fields"),
    [
        ({"a": 1, "b": 1}, {"elastic": "1-4"}),
        ({"a": 1, "b": 1}, {"elastic": "1-1", "max_nodes": 2}),
        ({"a": 2, "b": 1}, {"elastic": "1-4", "gpus": 2, "max_nodes": 2}),
        ({"a": 2, "b": 2}, {"elastic": "1-3", "gpus": 2, "max_nodes": 2}),
        ({"a": 1, "b": 1}, {"elastic": "1-4", "max_nodes": 2, "migrate": "never"}),
    ],
    ids=["one node asked", "one GPU at most", "a smaller node", "three GPUs at most", "never moved"],
)
def test_it_stays_on_one_node_where_it_may_not_have_two_alike(
    nodes: dict[str, int], fields: dict[str, object]
) -> None:
    world = a_world(nodes)
    job = world.submit(**fields)
    world.run(LONG_S)
    assert len(world.engine.jobs[job].places) == 1 and resizes(world, job) == []


def test_it_has_no_node_without_memory_for_it() -> None:
    world = a_world({"a": 1, "b": 1})
    big = world.submit(memory_mib=200_000)
    world.rigid.add(big)
    world.run(QUANTUM_S)
    job = world.submit(elastic="1-4", max_nodes=2, memory_mib=100_000)
    world.run(GROWN_S)
    assert len(world.engine.jobs[job].places) == 1 and resizes(world, job) == []


def codes_after(seconds: int) -> list[str]:
    """The resizes of a job that may have both nodes of one GPU, so long after its submission."""
    world = a_world({"a": 1, "b": 1})
    job = world.submit(elastic="1-4", max_nodes=2)
    world.run(seconds)
    return resizes(world, job) if seconds else []


@pytest.mark.parametrize("keep", [True, False], ids=["with its journal", "without"])
def test_nothing_is_lost_where_gandivactld_begins_anew_in_any_step_of_it(keep: bool) -> None:
    """It is killed after each cycle of the growth in turn; at last the job is on both nodes."""
    begins = next(second for second in range(GROWN_S) if codes_after(second) == ["Growing"])
    for killed in range(begins - 1, begins + 7):
        world = a_world({"a": 1, "b": 1})
        job = world.submit(elastic="1-4", max_nodes=2)
        world.run(killed)
        world.restart_controller(keep)
        world.run(GROWN_S)
        assert world.state_of(job) == states.RUNNING and len(world.engine.jobs[job].places) == 2, killed


def test_a_lost_node_brings_it_back_to_one() -> None:
    world, job = grown_over_two()
    world.lose_node("b")
    world.run(LONG_S)
    assert world.engine.jobs[job].places == {"a": (0,)} and world.state_of(job) == states.RUNNING
    world.restore_node("b")
    world.run(LONG_S)
    assert len(world.engine.jobs[job].places) == 2


def test_one_that_can_go_on_with_as_many_ranks_alone_gets_both_nodes_again() -> None:
    world, job = grown_over_two(2)
    world.one_size.add(job)
    world.run(QUANTUM_S)
    world.requeue(job)
    world.run(GROWN_S)
    assert world.engine.jobs[job].places == {"a": (0, 1), "b": (0, 1)}
    assert world.state_of(job) == states.RUNNING and world.asked_gpus[job] == 4


def test_what_is_no_faster_on_two_nodes_is_given_back() -> None:
    world = a_world({"a": 1, "b": 1})
    world.rates = {"v100": 3.0}
    job = world.submit(elastic="1-4", max_nodes=2)
    world.run(LONG_S)
    assert resizes(world, job) == ["Growing", "Shrinking"], "as fast as on one, and not tried again"


def test_it_keeps_its_memory_on_a_node_whatever_slurm_tells_of_it_while_it_waits() -> None:
    """Slurm 22.05 shows one node's memory as that of both, and the half of that is on each."""
    world = a_world({"a": 1, "b": 1})
    job = world.submit(elastic="1-4", max_nodes=2, memory_mib=1000)
    world.run(GROWN_S)
    world.requeue(job)
    world.jobs[job] = replace(world.jobs[job], memory_mib=500)
    world.cycle()
    assert world.engine.jobs[job].job.memory_mib == 1000
