"""engine.draining: what can be moved leaves a node drained for a reason of ours, the rest is named."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.lifecycle.draining import drain_of, drain_texts, told
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

WHY = "gandiva: a new disk"


def a_world(count: int = 2, nodes: dict[str, int] | None = None, **settings: object) -> FakeWorld:
    """Two nodes, and jobs of one GPU on them; what moves is measured to cost little."""
    made = EngineSettings(10 * SECOND_NS, slots_per_gpu=4, **settings)  # type: ignore[arg-type]
    world = FakeWorld(nodes or {"n1": 2, "n2": 2}, made, move_ns=SECOND_NS)
    for number in range(count):
        world.submit(f"user{number % 3 + 1}")
    world.run(5)
    return world


def now(world: FakeWorld) -> Cycle:
    return Cycle(world.engine.state, world.settings, world.now_ns)


def homes(world: FakeWorld) -> dict[int, tuple[str, ...]]:
    return {job_id: record.nodes for job_id, record in world.engine.jobs.items()}


def test_all_that_can_leaves_and_trains_elsewhere() -> None:
    world = a_world(4)
    there = [job_id for job_id, nodes in homes(world).items() if nodes == ("n1",)]
    assert there
    world.drained["n1"] = WHY
    world.cycle()
    record = world.engine.jobs[there[0]]
    assert (record.state, record.code) == (states.CHECKPOINTING, "Draining")
    assert record.text == f"saves itself in its next turn, to leave: n1 is drained ({WHY})"
    drain = drain_of(now(world), "n1")
    assert drain is not None and [*drain.leaving] == there and not drain.staying
    assert drain.text == "; ".join((f"{WHY}: job {there[0]} leaves", *(f"job {n} leaves" for n in there[1:])))
    world.run(60)
    assert set(homes(world).values()) == {("n2",)}
    assert {record.state for record in world.engine.jobs.values()} <= {*states.SLICED}
    assert drain_texts(now(world)) == {"n1": f"{WHY}: no job of Gandiva's is left there"}
    moves = {job_id: record.job.restart for job_id, record in world.engine.jobs.items()}
    world.run(600)
    assert moves == {job_id: record.job.restart for job_id, record in world.engine.jobs.items()}, "once"
    assert set(homes(world).values()) == {("n2",)}


def test_what_cannot_be_moved_runs_on_and_is_named() -> None:
    world = a_world(0)
    never, rigid = world.submit("user1", migrate="never"), world.submit("user2")
    world.rigid.add(rigid)
    world.run(5)
    where = homes(world)
    world.drained = dict.fromkeys(("n1", "n2"), WHY)
    world.run(30)
    assert homes(world) == where
    for job_id, why in ((never, "--gandiva-migrate=never"), (rigid, "it cannot save itself")):
        record = world.engine.jobs[job_id]
        (line,) = told(now(world), record)
        begin, _, rest = line.partition(": it ")
        assert begin == f"{record.nodes[0]} is drained ({WHY}), and it runs on there" and why in f"it {rest}"
        drain = drain_of(now(world), record.nodes[0])
        assert drain is not None and not drain.leaving and why in drain.staying[job_id]
        assert f"job {job_id} runs on (" in drain.text


@pytest.mark.parametrize("reason", ("", "bad disk", "not gandiva: a disk"))
def test_a_drain_for_another_reason_moves_nothing(reason: str) -> None:
    world = a_world(4)
    where = homes(world)
    world.drained["n1"] = reason
    world.run(60)
    assert homes(world) == where
    assert drain_texts(now(world)) == {}
    assert not any([*told(now(world), record)] for record in world.engine.jobs.values())


def test_bounds_on_moves_do_not_keep_it_and_moves_off_does() -> None:
    world = a_world(4, min_run_ns=3600 * SECOND_NS, moves_per_hour=1)
    world.drained["n1"] = WHY
    world.run(60)
    assert set(homes(world).values()) == {("n2",)}
    world = a_world(4, moves=False)
    where = homes(world)
    world.drained["n1"] = WHY
    world.run(60)
    assert homes(world) == where
    assert "gandiva.yaml has moves off" in drain_texts(now(world))["n1"]


def test_where_no_other_node_takes_it_it_waits_saved_and_comes_back_afterwards() -> None:
    world = a_world(1, nodes={"n1": 1})
    world.drained["n1"] = WHY
    world.run(60)
    assert world.state_of(1) == states.HELD and not world.running()
    world.drained.clear()
    world.run(30)
    assert world.state_of(1) == states.RUNNING and world.engine.jobs[1].job.restart == 1


def test_a_move_that_fails_goes_on_there_is_named_and_tried_again() -> None:
    world = a_world(1, move_deadline_ns=20 * SECOND_NS, failed_rest_ns=60 * SECOND_NS)
    (home,) = homes(world)[1]
    world.saves_badly.add(1)
    world.drained[home] = WHY
    world.run(40)
    assert homes(world)[1] == (home,) and world.state_of(1) == states.RUNNING
    assert "its last move failed not long ago" in drain_texts(now(world))[home]
    world.saves_badly.clear()
    world.run(120)
    assert homes(world)[1] not in ((), (home,)) and world.state_of(1) == states.RUNNING


@pytest.mark.parametrize(("checkpoint", "by"), [("self", "self"), ("signal:USR1@20", "signal")])
def test_one_that_saves_itself_without_its_ranks_leaves_by_that(checkpoint: str, by: str) -> None:
    world = a_world(0)
    job_id = world.submit(checkpoint=checkpoint)
    world.rigid.add(job_id)
    world.run(5)
    (home,) = homes(world)[job_id]
    world.on_signal = world.requeue
    world.drained[home] = WHY
    world.run(60)
    assert homes(world)[job_id] not in ((), (home,)) and world.engine.jobs[job_id].travels.by == by


def test_a_gang_over_a_node_that_is_drained_leaves_whole() -> None:
    world = a_world(0, nodes={"n1": 1, "n2": 1, "n3": 1})
    job_id = world.submit("user1", 2, span=2)
    world.run(5)
    gone, *_ = homes(world)[job_id]
    world.drained[gone] = WHY
    world.run(60)
    assert len(homes(world)[job_id]) == 2 and gone not in homes(world)[job_id]
