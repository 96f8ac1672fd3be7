"""A job that a node cannot restore from its image goes on from it on another one, while there is one."""

from __future__ import annotations

from gandiva_slurm.engine.lifecycle import draining, placing, unrestored
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import EngineSettings, EngineState
from gandiva_slurm.model import job as states
from gandiva_slurm.node.elsewhere import STARTED_ANEW
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

WHY = "this processor lacks avx512f"
DISK = "gandiva: a new disk"


def moved(
    unfit: tuple[str, ...], nodes: tuple[str, ...] = ("n1", "n2", "n3"), why: str = WHY
) -> tuple[FakeWorld, int]:
    """A job that moves by images, and leaves n1 for n2, the only node that is open.

    `unfit`: nodes that cannot restore it.
    """
    settings = EngineSettings(10 * SECOND_NS, slots_per_gpu=4)
    world = FakeWorld(dict.fromkeys(nodes, 1), settings, move_ns=SECOND_NS)
    world.drained = dict.fromkeys(nodes[1:], DISK)
    job = world.submit()
    world.frameworks[job] = "image"
    world.unfit = {(job, name): why for name in unfit}
    world.run(5)
    assert world.engine.jobs[job].nodes == ("n1",)
    world.drained = {name: DISK for name in nodes if name != "n2"}
    world.run(20)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.job.restart == 1, "it can go nowhere else"
    return world, job


def test_it_goes_on_on_the_next_node_and_none_is_tried_twice() -> None:
    world, job = moved(unfit=("n2",))
    world.drained = {"n1": DISK}
    world.run(30)
    record = world.engine.jobs[job]
    assert record.nodes == ("n3",) and record.state in states.SLICED and record.job.restart == 2
    assert [*unrestored.told(record)] == [f"n2 could not restore it from its image: {WHY}"]
    world.drained = {"n1": DISK, "n3": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == () and record.code == "Unfit", "n2 is no place for it, though it is open"
    world.drained = {"n3": DISK}
    world.run(30)
    assert world.engine.jobs[job].nodes == ("n1",)


def test_a_node_whose_gandivad_was_started_anew_is_a_place_again_once_it_trains() -> None:
    world, job = moved(unfit=("n2",), why=STARTED_ANEW)
    world.drained = {"n1": DISK}
    world.run(30)
    record = world.engine.jobs[job]
    assert record.nodes == ("n3",) and record.travels.unfit == {} and record.travels.unfit_once == ()
    world.unfit.clear()
    world.drained = {"n1": DISK, "n3": DISK}
    world.run(60)
    assert world.engine.jobs[job].nodes == ("n2",)


def test_each_node_in_turn_until_one_can() -> None:
    world, job = moved(unfit=("n2", "n3"))
    world.drained = {"n1": DISK}
    world.run(30)
    assert world.engine.jobs[job].nodes == ("n3",)
    world.drained = {}
    world.run(100)
    record = world.engine.jobs[job]
    assert record.nodes == ("n1",) and {*record.travels.unfit} == {"n2", "n3"}
    told = next(line for line in record.story if line.code == "Unrestored")
    assert WHY in told.text and "another node" in told.text
    assert not record.travels.failures, "no failure of a move: the next one may come at once"


def test_where_no_other_node_takes_jobs_it_stays_until_its_node_has_it_begin_anew() -> None:
    world, job = moved(unfit=("n2",), nodes=("n1", "n2"))
    record = world.engine.jobs[job]
    assert record.travels.unfit == {"n2": WHY} and not record.travels.is_moving
    restart = record.job.restart
    del world.unfit[job, "n2"]  # it begins anew, and trains
    world.run(5)
    record = world.engine.jobs[job]
    assert (record.nodes, record.job.restart, record.travels.unfit) == (("n2",), restart, {})


def on_card() -> tuple[FakeWorld, int]:
    """A job that moves by images of a GPU program: of the other nodes the K80 is free, the V100 is not."""
    settings = EngineSettings(10 * SECOND_NS, slots_per_gpu=4)
    world = FakeWorld(dict.fromkeys(("n1", "n2", "n3"), 1), settings, move_ns=SECOND_NS)
    world.types = {"n2": "k80"}
    world.drained = {"n2": DISK, "n3": DISK}
    job = world.submit()
    world.frameworks[job] = "image"
    world.keeps_type = {job}
    world.run(5)
    world.drained = {"n1": DISK, "n3": DISK}
    world.run(60)
    return world, job


def test_a_gpu_program_goes_on_on_gpus_of_its_type_alone() -> None:
    world, job = on_card()
    record = world.engine.jobs[job]
    assert record.nodes == () or record.nodes == ("n1",), "the K80 is no place for it"
    assert [*unrestored.told(record)] == ["it is moved by an image of its processes, to other v100s alone"]
    world.drained = {"n1": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == ("n3",) and record.travels.failures == 0
    # One that has begun anew, and is in no image, goes anywhere.
    world.keeps_type.clear()
    world.drained = {"n1": DISK, "n3": DISK}
    world.run(60)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.travels.kept_type == ""


def test_a_gpu_program_stays_on_a_drained_node_while_no_other_of_its_type_takes_jobs() -> None:
    world, job = on_card()
    world.drained = {}
    world.run(60)
    (home,) = world.engine.jobs[job].nodes
    other = {"n1": "n3", "n3": "n1"}[home]
    world.drained = {home: DISK, other: "no disk"}
    world.run(30)
    at = Cycle(world.engine.state, world.engine.settings, world.now_ns)
    assert draining.why_stays(at, world.engine.jobs[job]) == "no other v100 takes jobs now"
    assert world.engine.jobs[job].nodes == (home,)
    world.drained = {home: DISK}
    world.run(60)
    assert world.engine.jobs[job].nodes == (other,)


def test_a_gpu_program_whose_type_is_gone_may_be_started_anywhere() -> None:
    world, job = on_card()
    state, record = world.engine.state, world.engine.jobs[job]
    at = Cycle(state, world.engine.settings, world.now_ns)
    assert placing.closed_nodes(at, record) == {"n2"}
    del state.nodes["n1"], state.nodes["n3"]
    assert placing.closed_nodes(at, record) == frozenset()


def leaving(unfit: tuple[str, ...], nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> tuple[FakeWorld, int]:
    """One that has just left n2, to go on on another node, and has no place yet."""
    world, job = moved(unfit, nodes)
    world.drained = {"n1": DISK}
    for _ in range(20):
        world.cycle()
        if world.engine.jobs[job].state in (states.HELD, states.REQUEUED):
            break
    assert world.engine.jobs[job].nodes == () and world.engine.jobs[job].travels.unfit == {"n2": WHY}
    return world, job


def test_it_waits_for_a_node_that_is_down_and_says_so() -> None:
    world, job = leaving(unfit=("n2",))
    world.lose_node("n3")
    world.run(30)
    record = world.engine.jobs[job]
    assert (record.state, record.code) == (states.HELD, "Unfit")
    assert f"can restore it from its image: n2 ({WHY})" in record.text
    world.restore_node("n3")
    world.run(30)
    assert world.engine.jobs[job].nodes == ("n3",)


def test_where_there_is_no_other_node_any_more_it_is_started_anywhere() -> None:
    world, job = leaving(unfit=("n2",))
    world.lose_node("n3")
    world.engine.jobs[job].travels.unfit |= {"n1": WHY, "n3": WHY}
    world.run(10)
    assert world.engine.jobs[job].nodes == ("n2",)


def test_an_owner_that_requeues_it_has_all_nodes_open() -> None:
    """Its image is deleted then; where it is not, it is tried once more."""
    world, job = leaving(unfit=("n2",))
    world.run(30)
    assert world.engine.jobs[job].nodes == ("n3",)
    world.unfit.clear()
    world.drained = {"n1": DISK, "n3": DISK}
    world.requeue(job)
    world.run(30)
    assert world.engine.jobs[job].nodes == ("n2",)


def test_a_requeue_that_slurm_refuses_is_no_loop() -> None:
    world, job = moved(unfit=("n2",))
    world.drained = {"n1": DISK}
    world.refuse_requeues = True
    world.run(200)
    record = world.engine.jobs[job]
    assert record.nodes == ("n2",) and record.state in states.SLICED, "its node has it begin anew"
    assert record.travels.failures == 1 and len(record.travels.moved_ns) == 2


def test_what_is_known_of_nodes_outlives_the_controller() -> None:
    world, job = moved(unfit=("n2",), nodes=("n1", "n2"))
    state = EngineState.from_json(world.engine.state.to_json())
    assert state.jobs[job].travels.unfit == {"n2": WHY}
