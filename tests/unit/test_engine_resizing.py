"""engine.resizing: who grows into idle GPUs, who gives them back, who starts small; what is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.resizing import told
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.engine.sizes import gpus_of
from gandiva_slurm.engine.state import JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import ResidentSeen
from gandiva_slurm.model.measured import Measured
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld, ruled, starts

#: Long enough for a job that has run its least time to be resized, and to run again.
LONG_S = 60
SETTINGS = EngineSettings(
    min_run_ns=30 * SECOND_NS, moves_per_hour=20, restart_cost_ns=SECOND_NS, quantum_ns=10 * SECOND_NS
)


def a_world(gpus: int = 4, **changed: object) -> FakeWorld:
    return ruled({"n1": gpus}, replace(SETTINGS, **changed))


def record(world: FakeWorld, job_id: int) -> JobRecord:
    return world.engine.jobs[job_id]


def gpus(world: FakeWorld, job_id: int) -> tuple[int, ...]:
    """Where a job lives."""
    return record(world, job_id).places.get("n1", ())


def sizes(actions: list[Action], job_id: int) -> list[int]:
    """The sizes a job was started at."""
    return [start.gpus for start in starts(actions) if start.key.job_id == job_id]


def lines(world: FakeWorld, job_id: int, code: str) -> list[str]:
    return [line.text for line in record(world, job_id).story if line.code == code]


def grown(gpus_of_node: int = 4, **fields: object) -> tuple[FakeWorld, int]:
    """A job of two GPUs, elastic to four, that has grown to all of its node."""
    world = a_world(gpus_of_node)
    job_id = world.submit("user1", 2, elastic="1-4", **fields)
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == 4
    return world, job_id


def test_it_grows_into_gpus_that_have_been_idle_long_enough() -> None:
    world = a_world()
    job_id = world.submit("user1", 2, elastic="1-4")
    actions = world.run(29)
    assert sizes(actions, job_id) == [2] and len(gpus(world, job_id)) == 2
    actions = world.run(LONG_S - 29)
    assert sizes(actions, job_id) == [4] and gpus(world, job_id) == (0, 1, 2, 3)
    (why,) = lines(world, job_id, "Growing")
    assert "go on with more GPUs, on n1 GPU 0,1,2,3: 4 GPU(s) instead of 2: the others were idle for" in why
    assert world.jobs[job_id].restart == 1
    assert sizes(world.run(1800, dt_s=5), job_id) == [], "and then nothing happens any more"


@pytest.mark.parametrize(
    ("elastic", "size", "most"), [("", 2, 2), ("2-2", 2, 2), ("1-3", 2, 3), ("1-16", 1, 4), ("3-1", 2, 2)]
)
def test_it_has_no_more_than_it_says_and_its_node_has(elastic: str, size: int, most: int) -> None:
    world = a_world()
    job_id = world.submit("user1", size, elastic=elastic)
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == most


BARS = ("never", "requeue", "rigid", "one size", "off", "memory", "soon over", "shared")


@pytest.mark.parametrize("what", BARS)
def test_who_cannot_be_moved_or_gains_nothing_stays_as_he_is(what: str) -> None:
    world = a_world(moves=what != "off")
    job_id = world.submit("user1", 2, elastic="1-4", memory_mib=110_000 if what == "memory" else 0)
    if what == "memory":
        others = world.submit("user2", 1, memory_mib=110_000)
    job = world.jobs[job_id]
    if what == "never":
        world.jobs[job_id] = replace(job, options=replace(job.options, migrate="never"))
    if what == "requeue":
        world.jobs[job_id] = replace(job, requeue=False)
    if what == "rigid":
        world.rigid.add(job_id)
    if what == "one size":
        world.one_size.add(job_id)
    if what == "soon over":
        world.jobs[job_id] = replace(job, time_limit_s=31)
    if what == "shared":
        others = [world.submit("user2", 2, pack="never") for _ in range(2)]
        world.run(5)
        world.finish(next(other for other in others if gpus(world, other) != gpus(world, job_id)))
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == 2
    words = {
        "never": "--gandiva-migrate=never",
        "requeue": "requeue",
        "rigid": "attach()",
        "one size": "only",
    }
    assert words.get(what, "elastic: 1 to 4 GPUs") in "\n".join(told(record(world, job_id)))
    assert what != "memory" or gpus(world, others)


def test_whoever_comes_to_live_on_what_was_lent_gets_it() -> None:
    world, job_id = grown()
    newcomer = world.submit("user2", 1)
    actions = world.run(LONG_S)
    assert sizes(actions, job_id) == [3]
    assert set(gpus(world, job_id)).isdisjoint(gpus(world, newcomer))
    line = next(line for line in record(world, job_id).story if line.code == "Shrinking")
    assert "3 GPU(s) instead of 4: others need them" in line.text


def test_it_never_shrinks_below_its_size_by_what_was_lent() -> None:
    world, job_id = grown()
    others = [world.submit(f"user{n % 2 + 2}", 1) for n in range(4)]
    world.run(3 * LONG_S)
    assert len(gpus(world, job_id)) == 2
    assert all(world.state_of(other) in states.SLICED for other in others)
    for other in others:
        world.finish(other)
    assert record(world, job_id).travels.given_back >= 1
    before = world.now_ns
    while len(gpus(world, job_id)) < 4:
        world.cycle()
        assert world.now_ns - before < 600 * SECOND_NS
    assert world.now_ns - before >= 60 * SECOND_NS, "it waits twice as long once it had to give GPUs back"


def test_it_gives_back_while_somebody_waits_for_room() -> None:
    world = ruled({"n1": 4}, replace(SETTINGS, slots_per_gpu=1))
    job_id = world.submit("user1", 2, elastic="1-4")
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == 4
    gang = world.submit("user2", 2)
    world.cycle()
    assert world.code_of(gang) == "NoFreeSlots"
    world.run(LONG_S)
    assert (len(gpus(world, job_id)), len(gpus(world, gang))) == (2, 2)
    (line,) = [line for line in record(world, job_id).story if line.code == "Shrinking"]
    assert "2 GPU(s) instead of 4: others need them" in line.text


def test_a_size_that_brought_nothing_is_given_back_and_not_tried_again() -> None:
    world, job_id = grown()
    for size, rate in ((2, 10.0), (4, 10.1)):
        record(world, job_id).travels.size_rates[f"v100:{size}"] = rate
    actions = world.run(LONG_S)
    assert sizes(actions, job_id) == [2] or sizes(actions, job_id) == [3]
    (why,) = lines(world, job_id, "Shrinking")
    assert "more brought it nothing" in why


def test_rates_are_kept_by_size_and_types_compared_at_the_size_asked_for() -> None:
    world, job_id = grown()
    key, node_gpus = record(world, job_id).key, gpus(world, job_id)
    told = Measured(is_movable=True, rate_alone=7.0)
    seen = ResidentSeen("n1", key, states.RUNNING, node_gpus, "", "", measured=told)
    world.engine.handle([seen], world.now_ns)
    travels = record(world, job_id).travels
    assert travels.size_rates == {"v100:4": 7.0} and "v100" not in travels.rates


def test_it_starts_small_when_its_size_does_not_fit_and_grows_later() -> None:
    world = ruled({"n1": 4}, replace(SETTINGS, slots_per_gpu=1))
    first = world.submit("user2", 3)
    world.cycle()
    job_id = world.submit("user1", 2, elastic="1-2")
    rigid = world.submit("user1", 2)
    actions = world.run(5)
    assert sizes(actions, job_id) == [1] and gpus(world, job_id) == (3,)
    assert world.code_of(rigid) == "NoFreeSlots"
    world.finish(rigid, "CANCELLED")
    world.finish(first)
    assert sizes(world.run(LONG_S + 10), job_id) == [2]


def test_it_does_not_start_below_what_it_says() -> None:
    world = ruled({"n1": 4}, replace(SETTINGS, slots_per_gpu=1))
    world.submit("user2", 3)
    world.cycle()
    job_id = world.submit("user1", 4, elastic="2-4")
    world.run(5)
    assert world.code_of(job_id) == "NoFreeSlots"


def test_a_requeued_one_is_what_it_was_submitted_as() -> None:
    world, job_id = grown()
    world.requeue(job_id)
    actions = world.run(10)
    assert sizes(actions, job_id) == [2] and len(gpus(world, job_id)) == 2


def test_a_resize_that_cannot_be_saved_leaves_it_as_it_is() -> None:
    world = a_world(move_deadline_ns=10 * SECOND_NS)
    job_id = world.submit("user1", 2, elastic="1-4")
    world.saves_badly.add(job_id)
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == 2 and lines(world, job_id, "MoveFailed")


def test_one_that_saved_itself_for_its_size_only_stays_as_it_is() -> None:
    world = a_world()
    job_id = world.submit("user1", 2, elastic="1-4")
    world.cycle()
    while world.state_of(job_id) != states.CHECKPOINTING:
        world.cycle()
    world.one_size.add(job_id)
    world.run(10)
    assert (world.jobs[job_id].restart, len(gpus(world, job_id))) == (0, 2)
    assert "as many ranks as it has only" in lines(world, job_id, "MoveFailed")[0]


@pytest.mark.parametrize("is_rigid", (True, False))
def test_a_lost_node_leaves_it_the_size_at_which_it_can_go_on(is_rigid: bool) -> None:
    world, job_id = grown()
    if is_rigid:
        world.one_size.add(job_id)
    world.run(2)
    world.requeue(job_id)
    assert sizes(world.run(10), job_id) == [4 if is_rigid else 2]


@pytest.mark.parametrize("keep_journal", (True, False))
def test_sizes_survive_a_new_controller(keep_journal: bool) -> None:
    world, job_id = grown()
    world.restart_controller(keep_journal)
    world.run(10)
    assert (gpus_of(record(world, job_id)), len(gpus(world, job_id))) == (4, 4)
    assert "now 4" in next(told(record(world, job_id)))


@pytest.mark.parametrize("cut_s", (30, 31, 32, 33, 35))
def test_a_new_controller_takes_a_resize_on_where_it_stands(cut_s: int) -> None:
    world = a_world()
    job_id = world.submit("user1", 2, elastic="1-4")
    world.run(cut_s)
    world.restart_controller(keep_journal=True)
    world.run(LONG_S)
    assert len(gpus(world, job_id)) == 4


def test_what_is_remembered_goes_through_json() -> None:
    world, job_id = grown()
    data = json.loads(json.dumps(world.engine.to_json()))
    again = Engine.from_json(world.settings, data)
    assert again.jobs[job_id].travels == record(world, job_id).travels
