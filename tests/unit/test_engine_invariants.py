"""engine.invariants: each one finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine import invariants
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.records import Sighting
from gandiva_slurm.engine.state.story import StoryLine
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import Reason
from tests.builders import SECOND_NS, a_gang, a_job, a_node
from tests.fake_world import an_engine
from tests.records import Held

NOW_NS = 2_000_000 * SECOND_NS


def held(job_id: int, gpus: tuple[int, ...], t0: int, t1: int, restart: int = 0) -> Held:
    """A hold, times in seconds."""
    return Held(job_id, restart, f"user{job_id}", gpus, t0 * SECOND_NS, t1 * SECOND_NS)


@pytest.fixture
def engine() -> Engine:
    """Two jobs that run: 1 on GPUs 0 and 1, 2 on GPU 2."""
    engine = an_engine()
    jobs = [a_job(1, gpus=2), a_job(2, "user2")]
    engine.handle([ev.NodeSeen(a_node()), *map(ev.JobSeen, jobs), ev.CycleTick()], NOW_NS)
    running = [replace(job, state="RUNNING", nodes=("n1",)) for job in jobs]
    engine.handle([*map(ev.JobSeen, running), ev.CycleTick()], NOW_NS + SECOND_NS)
    assert invariants.violations(engine) == []
    return engine


def only(found: list[str], *words: str) -> None:
    """Exactly one violation, which names these."""
    assert len(found) == 1, found
    assert all(word in found[0] for word in words), found


def test_place_without_state_is_found(engine: Engine) -> None:
    engine.state.jobs[1].places = {}
    assert invariants.places_follow_states(engine.state) != []


def test_job_without_reason_is_found(engine: Engine) -> None:
    engine.state.jobs[2].reason = Reason("", "")
    only(invariants.places_follow_states(engine.state), "2.0", "no reason")


@pytest.mark.parametrize("gpus", [(0,), (0, 0), (3, 4), (0, 1, 2)])
def test_split_gang_is_found(engine: Engine, gpus: tuple[int, ...]) -> None:
    engine.state.jobs[1].places["n1"] = gpus
    only(invariants.gangs_are_whole(engine.state), "1.0", str(gpus))


@pytest.fixture
def spanning() -> Engine:
    """A job of two nodes that is being started on n1 and n2; k1 is of another type."""
    engine = an_engine()
    nodes = [a_node("n1"), a_node("n2"), a_node("k1", gpu_type="k80")]
    events = [*map(ev.NodeSeen, nodes), ev.JobSeen(a_job(1, gpus=2, span=2)), ev.CycleTick()]
    engine.handle(events, NOW_NS)
    assert engine.jobs[1].state == states.STARTING
    assert invariants.violations(engine) == []
    return engine


def test_gang_without_one_of_its_nodes_is_found(spanning: Engine) -> None:
    del spanning.state.jobs[1].places["n2"]
    only(invariants.gangs_are_whole(spanning.state), "1.0 starts on ('n1',)", "asked for 2 nodes")


def test_gang_of_two_types_is_found(spanning: Engine) -> None:
    spanning.state.jobs[1].places = {"n1": (0,), "k1": (0,)}
    only(invariants.gangs_are_whole(spanning.state), "1.0 starts on ('n1', 'k1')")


def test_gang_that_is_not_where_slurm_has_it_is_found(spanning: Engine) -> None:
    record = spanning.state.jobs[1]
    record.state, record.job = states.RUNNING, replace(record.job, state="RUNNING", nodes=("n1",))
    only(invariants.gangs_are_whole(spanning.state), "1.0 is on ('n1', 'n2'), Slurm has it on ('n1',)")


def test_part_without_a_plan_is_found(spanning: Engine) -> None:
    spanning._placements = {"n1": spanning.plan_jobs("n1")}
    found = invariants.tickets_are_conserved(spanning)
    assert found[0] == "job 1.0 is planned on ['n1'], its nodes are ('n1', 'n2')"


def test_tickets_doubled_by_parts_are_found(spanning: Engine) -> None:
    whole = {
        node: (replace(place, tickets=2 * place.tickets),)
        for node in ("n1", "n2")
        for place in spanning.plan_jobs(node)
    }
    spanning._placements = whole
    only(invariants.tickets_are_conserved(spanning), "user1")


def test_overfull_gpu_is_found(engine: Engine) -> None:
    engine.state.jobs[2].places["n1"] = (0,)
    only(invariants.slots_are_bounded(engine.state, 1), "GPU 0 of n1 has 2 residents")
    assert invariants.slots_are_bounded(engine.state, 2) == []


def test_tickets_made_from_nothing_are_found(engine: Engine) -> None:
    (first, *rest) = engine.plan_jobs("n1")
    engine._placements = {"n1": (replace(first, tickets=first.tickets + 1), *rest)}
    only(invariants.tickets_are_conserved(engine), "user1")


def test_fence_against_what_runs_is_found(engine: Engine) -> None:
    engine.state.sightings["n1", JobKey(1, 0)] = Sighting(is_fenced=True)
    only(invariants.nothing_running_is_fenced(engine.state), "1.0 runs on n1")


def test_story_with_a_hole_is_found(engine: Engine) -> None:
    engine.state.jobs[1].story.append(StoryLine(1.0, states.HELD, states.SUSPENDED, "X", "x"))
    assert len(invariants.stories_follow_the_table(engine.state)) == 2


def test_lost_jobs_are_found(engine: Engine) -> None:
    assert invariants.no_job_is_lost(engine.state, {1: 0, 2: 0}) == []
    only(invariants.no_job_is_lost(engine.state, {1: 0, 2: 0, 3: 0}), "3 is in Slurm")
    only(invariants.no_job_is_lost(engine.state, {1: 0}), "2 is known")
    only(invariants.no_job_is_lost(engine.state, {1: 0, 2: 5}), "2.0", "restart 5")


def test_unsound_rounds_are_found() -> None:
    gangs = [a_gang(1, "a", (0, 1)), a_gang(2, "b", (1,))]
    one, two, three = JobKey(1, 0), JobKey(2, 0), JobKey(3, 0)
    assert invariants.round_is_sound(gangs, 2, [one]) == []
    only(invariants.round_is_sound(gangs, 2, [one, two]), "GPU 1")
    only(invariants.round_is_sound(gangs, 2, [three]), "3.0")
    only(invariants.round_is_sound(gangs, 1, [one]), "GPU 1")
    assert len(invariants.round_is_sound(gangs, 2, [two, two])) == 2


def test_falling_pass_is_found() -> None:
    only(invariants.passes_never_fall({"a": 5, "b": 1}, {"a": 4, "c": 0}), "a", "from 5 to 4")


def test_gpu_held_twice_is_found() -> None:
    good = [held(1, (0, 1), 0, 5), held(2, (0,), 5, 7), held(3, (1,), 6, 9)]
    assert invariants.no_gpu_held_twice(good) == []
    only(
        invariants.no_gpu_held_twice([*good, held(4, (0,), 6, 8)]),
        "GPU 0",
        "job 4.0",
        "job 2.0",
        "1000.000 ms",
    )
    only(invariants.no_gpu_held_twice([held(1, (0,), 5, 4)]), "job 1.0")


def test_two_incarnations_at_once_are_found() -> None:
    first, second = held(1, (0,), 0, 10), held(1, (0,), 8, 20, restart=1)
    only(invariants.one_incarnation_at_a_time({"n1": [first], "n2": [second]}), "job 1", "0 on n1", "1 on n2")
    later = replace(second, t0_ns=10 * SECOND_NS)
    assert invariants.one_incarnation_at_a_time({"n1": [first], "n2": [later]}) == []


def test_seconds_not_charged_or_charged_twice_are_found() -> None:
    holds = [held(1, (0, 1), 0, 5), held(2, (0,), 5, 7)]
    right = {"user1": 10 * SECOND_NS, "user2": 2 * SECOND_NS}
    assert invariants.every_gpu_second_is_charged_once(holds, right) == []
    only(invariants.every_gpu_second_is_charged_once(holds, {"user1": 10 * SECOND_NS}), "user2")
    only(invariants.every_gpu_second_is_charged_once(holds, right | {"user3": 1}), "user3")
    assert invariants.every_gpu_second_is_charged_once(holds, right | {"user3": 1}, tolerance_ns=1) == []


def test_park_without_end_is_found() -> None:
    parks = {JobKey(1, 0): [5, 9], JobKey(2, 0): []}
    assert invariants.parks_are_bounded(parks, 9) == []
    only(invariants.parks_are_bounded(parks, 8), "1.0")
