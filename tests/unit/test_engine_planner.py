"""engine.planner: which running jobs move, when, and what is told of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.moving import told
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action, Requeue
from gandiva_slurm.policy.faster import guess_rates, other_types, typical_gains
from gandiva_slurm.policy.moves import Resident
from gandiva_slurm.policy.placement import Need, NodeGpus, Place
from gandiva_slurm.policy.shares import Leaf
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld, ruled

HOUR_S = 3600


def moves(actions: list[Action]) -> list[int]:
    """The jobs requeued to be moved."""
    return [action.key.job_id for action in actions if isinstance(action, Requeue)]


def crowd(world: FakeWorld, users: int = 3) -> None:
    """Two jobs on each GPU; then those end that ran on all but the first GPU of n1."""
    total = sum(world.nodes.values())
    for n in range(2 * total):
        world.submit(f"user{n % users + 1}")
        world.cycle()
    world.run(10)
    for job_id, record in [*world.engine.jobs.items()]:
        if record.places != {"n1": (0,)}:
            world.finish(job_id)
    world.run(2)
    assert len(world.running()) == 2


# balance


def test_job_moves_to_an_idle_gpu_of_its_own_node_when_it_has_run_long_enough() -> None:
    world = ruled({"n1": 2})
    crowd(world)
    assert moves(world.run(1780, dt_s=10)) == []
    assert len(moves(world.run(60))) == 1
    world.run(30)
    gpus = sorted(record.places["n1"] for record in world.engine.jobs.values() if record.places)
    assert gpus == [(0,), (1,)]
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == [], "and then nothing moves any more"


def test_reason_of_a_move_says_what_it_is_worth() -> None:
    world = ruled({"n1": 1, "n2": 1})
    crowd(world)
    world.run(1840, dt_s=10)
    (moved,) = [record for record in world.engine.jobs.values() if record.job.restart]
    line = next(line for line in moved.story if line.code == "Leaving")
    assert "GPU 0 of n1 carries 200 tickets, GPU 0 of n2 would carry 100 with it" in line.text


def test_missed_place_is_told_with_what_speaks_against_it() -> None:
    world = ruled({"n1": 1, "n2": 1})
    crowd(world)
    record = next(record for record in world.engine.jobs.values() if record.places)
    (line,) = told(record, world.now_ns)
    assert line == (
        "not moved: GPU 0 of n1 carries 200 tickets, GPU 0 of n2 would carry 100 with it; "
        "but it has run for less than 1800 s since it was started or moved"
    )


@pytest.mark.parametrize("what", ("never", "requeue", "rigid", "off"))
def test_job_that_cannot_be_moved_stays(what: str) -> None:
    world = ruled({"n1": 1, "n2": 1}, EngineSettings(moves=what != "off"))
    crowd(world)
    for job_id in world.running():
        job = world.jobs[job_id]
        assert job.options is not None
        if what == "never":
            world.jobs[job_id] = replace(job, options=replace(job.options, migrate="never"))
        if what == "requeue":
            world.jobs[job_id] = replace(job, requeue=False)
        if what == "rigid":
            world.rigid.add(job_id)
    assert moves(world.run(2 * HOUR_S, dt_s=20)) == []
    record = world.engine.jobs[world.running()[0]]
    words = {"never": "--gandiva-migrate=never", "requeue": "requeue", "rigid": "attach()", "off": ""}
    assert words[what] in record.travels.missed


def test_small_differences_move_nobody() -> None:
    world = ruled({"n1": 4, "n2": 4})
    for n in range(20):
        world.submit(f"user{n % 3 + 1}", tickets=100 + n)
        world.cycle()
    assert moves(world.run(3 * HOUR_S, dt_s=20)) == []


def test_move_that_fails_is_not_tried_again_soon() -> None:
    world = ruled({"n1": 1, "n2": 1}, EngineSettings(move_deadline_ns=60 * SECOND_NS))
    crowd(world)
    world.saves_badly |= set(world.running())
    world.run(HOUR_S, dt_s=10)
    begun = [len(record.travels.moved_ns) for record in world.engine.jobs.values()]
    assert 2 <= sum(begun) <= 3
    assert all(record.state in states.SLICED for record in world.engine.jobs.values() if record.places)


def test_moves_are_few_at_once() -> None:
    world = ruled({f"n{n}": 2 for n in range(8)})
    for n in range(32):
        world.submit(f"user{n % 3 + 1}")
        world.cycle()
    for job_id, record in [*world.engine.jobs.items()]:
        if record.nodes[0] >= "n4":
            world.finish(job_id)
    most = total = 0
    for _ in range(700):
        total += len(moves(world.cycle(4.0)))
        most = max(most, sum(record.travels.is_moving for record in world.engine.jobs.values()))
    assert (most, total) == (1, 8), "one of sixteen GPUs at once; in the end one job on each GPU"
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == []


def sit_beside(world: FakeWorld, job_id: int) -> None:
    """Somebody who cannot move comes to a job's GPU; all the others are idle."""
    guests = set()
    while not any(world.engine.jobs[n].places == world.engine.jobs[job_id].places for n in guests):
        guests.add(world.submit("user2"))
        world.rigid |= guests
        world.run(3)
    for other in world.running():
        is_beside = world.engine.jobs[other].places == world.engine.jobs[job_id].places
        if not is_beside or (other != job_id and other not in guests):
            world.finish(other)


@pytest.mark.parametrize("most", (1, 2))
def test_job_is_not_moved_more_often_than_it_may(most: int) -> None:
    settings = EngineSettings(min_run_ns=60 * SECOND_NS, restart_cost_ns=SECOND_NS, moves_per_hour=most)
    world = ruled({"n1": 1, "n2": 1}, settings)
    world.submit()
    world.run(5)
    times = 0
    for _ in range(4):
        sit_beside(world, 1)
        times += len(moves(world.run(150)))
    assert times == most
    assert f"it was moved {most} times within the last hour" in world.engine.jobs[1].travels.missed
    assert moves(world.run(HOUR_S, dt_s=10)) == [1], "in the next hour it may"


# making room


def half_full() -> FakeWorld:
    """On each node one GPU is full: a gang of two has room on neither, unless somebody moves."""
    world = ruled({"n1": 2, "n2": 2})
    for n in range(16):
        world.submit(f"guest{n}")
        world.cycle()
    world.run(10)
    for name, gpu in (("n1", 0), ("n2", 0)):
        there = [j for j, record in world.engine.jobs.items() if record.places.get(name) == (gpu,)]
        world.finish(there[0])
    world.run(1800, dt_s=10)
    return world


def test_no_room_is_made_for_an_opportunistic_gang() -> None:
    world = half_full()
    gang = world.submit("boss", gpus=2, job_class="opportunistic")
    assert moves(world.run(200, dt_s=5)) == [] and world.code_of(gang) == "NoFreeSlots"


def test_room_is_made_for_a_gang_that_fits_nowhere_whole() -> None:
    world = half_full()
    gang = world.submit("boss", gpus=2)
    world.run(60)
    record = world.engine.jobs[gang]
    assert record.code == "NoFreeSlots", "a place may fall free by itself"
    actions = world.cycle()
    assert (record.state, record.code) == (states.HELD, "MakingRoom")
    assert len(record.target) == 1
    actions += world.run(60)
    assert len(moves(actions)) == 1
    assert record.state == states.RUNNING
    assert all(other.state in states.SLICED for other in world.engine.jobs.values() if other.places)


def test_gang_is_told_who_is_in_its_way() -> None:
    world = ruled({"n1": 2, "n2": 2})
    for n in range(16):
        world.submit(f"guest{n}")
        world.cycle()
    world.run(10)
    for name, gpu in (("n1", 0), ("n2", 0)):
        there = [j for j, record in world.engine.jobs.items() if record.places.get(name) == (gpu,)]
        world.finish(there[0])
    gang = world.submit("boss", gpus=2)
    world.run(63)
    record = world.engine.jobs[gang]
    assert record.code == "NoFreeSlots"
    (line,) = told(record, world.now_ns)
    assert "would have room if job(s)" in line
    assert "must not move now: it has run for less than 1800 s" in line


def test_who_makes_room_stays_when_the_gang_is_cancelled() -> None:
    world = ruled({"n1": 2, "n2": 2})
    for n in range(16):
        world.submit(f"guest{n}")
        world.cycle()
    world.run(10)
    for name, gpu in (("n1", 0), ("n2", 0)):
        there = [j for j, record in world.engine.jobs.items() if record.places.get(name) == (gpu,)]
        world.finish(there[0])
    world.run(1800, dt_s=10)
    world.rigid |= set(world.running())
    world.engine.settings = replace(world.settings, min_run_ns=0)
    gang = world.submit("boss", gpus=2)
    world.run(61)
    for sighting in world.engine.state.sightings.values():
        sighting.measured = replace(sighting.measured, is_movable=True)
    world.cycle(reports=False)
    assert world.code_of(gang) == "MakingRoom"
    world.finish(gang, "CANCELLED")
    world.run(5)
    codes = [line.code for record in world.engine.jobs.values() for line in record.story]
    assert codes.count("MoveOff") == 1
    assert moves(world.run(60)) == []


# faster types


def mixed() -> FakeWorld:
    """A slow GPU and a fast one; two jobs alike, of which the one on the fast GPU ends."""
    world = ruled({"n1": 1, "n2": 1})
    world.types, world.rates = {"n1": "k80", "n2": "v100"}, {"k80": 1.0, "v100": 3.0}
    for _ in range(2):
        job_id = world.submit()
        world.jobs[job_id] = replace(world.jobs[job_id], name="resnet")
        world.cycle()
    world.run(5)
    return world


def test_idle_type_is_tried_by_a_job_that_has_run_long_enough() -> None:
    """What was known of its kind is forgotten with the last of it: it goes to see, on a guess."""
    world = mixed()
    world.finish(2)
    assert moves(world.run(1780, dt_s=10)) == [], "it has not run long enough"
    assert moves(world.run(120, dt_s=10)) == [1]
    line = next(line for line in world.engine.jobs[1].story if line.code == "Leaving")
    assert "1.5 mini-batches a second on v100, as is guessed of others, 1 on k80" in line.text
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == [], "and stays, as it is faster"


def test_job_moves_to_the_faster_type_while_its_kind_is_known() -> None:
    world = mixed()
    world.engine.settings = replace(world.settings, min_run_ns=300 * SECOND_NS)
    world.finish(2)
    assert moves(world.run(600, dt_s=10)) == [1]
    record = world.engine.jobs[1]
    assert record.nodes == ("n2",)
    line = next(line for line in record.story if line.code == "Leaving")
    assert "3 mini-batches a second on v100, 1 on k80" in line.text
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == [], "and never back"


def test_job_moves_on_a_guess_where_others_gain_and_is_measured_there() -> None:
    world = ruled({"n1": 2, "n2": 1})
    world.types, world.rates = {"n1": "k80", "n2": "v100"}, {"k80": 1.0, "v100": 3.0}
    world.engine.settings = replace(world.settings, min_run_ns=300 * SECOND_NS)
    for name in ("lstm", "resnet", "resnet"):
        job_id = world.submit()
        world.jobs[job_id] = replace(world.jobs[job_id], name=name)
        world.cycle()
    world.rigid |= {3}
    world.run(5)
    assert [world.engine.jobs[job_id].nodes for job_id in (1, 2, 3)] == [("n1",), ("n2",), ("n1",)]
    world.finish(2)
    assert moves(world.run(600, dt_s=10)) == [1]
    record = world.engine.jobs[1]
    assert record.nodes == ("n2",)
    line = next(line for line in record.story if line.code == "Leaving")
    assert "3 mini-batches a second on v100, as is guessed of others, 1 on k80" in line.text
    assert record.travels.rates == {"k80": 1.0, "v100": 3.0}


def test_type_that_was_tried_and_is_slower_is_left_once() -> None:
    """Whole GPUs: to the K80 on a guess, and back; then both are known."""
    world = ruled({"n1": 1}, EngineSettings(min_run_ns=300 * SECOND_NS))
    world.types, world.rates = {"n1": "v100", "n2": "k80"}, {"k80": 1.0, "v100": 3.0}
    world.submit()
    world.run(5)
    world.nodes["n2"] = 1
    for per_node in (world.plans, world.leaving, world.told):
        per_node["n2"] = type(per_node["n1"])()
    assert moves(world.run(2000, dt_s=10)) == [1, 1]
    assert world.engine.jobs[1].nodes == ("n1",)
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == []


def test_what_is_known_of_other_types_and_what_is_guessed() -> None:
    need = Need(1, Leaf("a", "user1"), 1, 100, (1,))
    place = Place((NodeGpus("n1", (0,)),))
    own = Resident(need, place, "k80", rates={"k80": 2.0, "p100": 5.0}, guesses={"v100": 3.0})
    assert other_types(own) == {"p100": 2.5, "v100": 1.5}
    assert other_types(replace(own, rates={"p100": 5.0})) == {}, "its own type is the unknown one"


def test_guess_is_by_namesakes_then_by_the_median_gain_then_by_hope() -> None:
    gains = typical_gains([{"k80": 1.0, "v100": 2.0}, {"k80": 1.0, "v100": 8.0}, {"k80": 2.0, "v100": 6.0}])
    assert gains == {("k80", "v100"): 3.0, ("v100", "k80"): 1 / 3}
    kinds = ("k80", "p100", "v100")
    assert guess_rates({"k80": 2.0}, "k80", kinds, gains, {}) == {"p100": 3.0, "v100": 6.0}
    assert guess_rates({"k80": 2.0}, "k80", kinds, gains, {"v100": 4.0}) == {"p100": 3.0, "v100": 4.0}
    assert guess_rates({"k80": 2.0, "v100": 1.0}, "k80", kinds[::2], gains, {}) == {}
    assert guess_rates({"v100": 2.0}, "k80", kinds, gains, {}) == {}, "nothing before it was measured here"


# exchange


def two_apart(settings: EngineSettings) -> FakeWorld:
    """One on a K80 that gains much by a V100, and one on a V100 that gains little; all GPUs are taken."""
    world = ruled({"n1": 1, "n2": 1}, settings)
    world.types = {"n1": "k80", "n2": "v100"}
    world.own_rates = {1: {"k80": 1.0, "v100": 5.0}, 2: {"k80": 1.0, "v100": 1.2}}
    for job_id, user in ((1, "user1"), (2, "user2")):
        world.submit(user)
        world.jobs[job_id] = replace(world.jobs[job_id], name=f"model{job_id}")
        world.cycle()
    world.run(5)
    assert [world.engine.jobs[n].nodes for n in (1, 2)] == [("n1",), ("n2",)]
    return world


def test_two_change_places_when_they_have_run_long_enough_and_no_more_then() -> None:
    world = two_apart(EngineSettings(min_run_ns=300 * SECOND_NS))
    assert moves(world.run(250, dt_s=10)) == []
    assert sorted(moves(world.run(400, dt_s=10))) == [1, 2], "one move at a time is allowed: this is one"
    for job_id, node in ((1, "n2"), (2, "n1")):
        record = world.engine.jobs[job_id]
        assert record.nodes == (node,)
        line = next(line for line in record.story if line.code == "Exchanging")
        assert "times as fast on v100 as on k80" in line.text
    assert moves(world.run(4 * HOUR_S, dt_s=20)) == [], "and then nothing moves any more"


def test_one_who_may_not_move_is_not_exchanged() -> None:
    world = two_apart(EngineSettings(min_run_ns=300 * SECOND_NS))
    world.rigid.add(2)
    assert moves(world.run(HOUR_S, dt_s=10)) == []


def test_when_one_of_two_cannot_save_itself_nobody_waits_for_ever() -> None:
    settings = EngineSettings(min_run_ns=300 * SECOND_NS, move_deadline_ns=60 * SECOND_NS)
    world = two_apart(settings)
    world.saves_badly.add(2)
    world.run(HOUR_S, dt_s=10)
    assert all(record.state in states.SLICED for record in world.engine.jobs.values())
    assert world.engine.jobs[2].nodes == ("n2",)
