"""engine.engine: a restarted controller, the journal, tickets and stories."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Note
from gandiva_slurm.model.job import IllegalTransition
from gandiva_slurm.model.reason import because
from tests.builders import ACCOUNT, SECOND_NS, TICKET
from tests.fake_world import FakeWorld, an_engine, as_configured

NOW_NS = 2_000_000 * SECOND_NS


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld({"n1": 4})


# recovery


@pytest.mark.parametrize("keep_journal", [True, False])
def test_restarted_controller_finds_everything_as_it_was(keep_journal: bool) -> None:
    world = FakeWorld({"n1": 4, "n2": 2})
    jobs = [
        world.submit("user1", 2),
        world.submit("user2", 4),
        world.submit("user3", 1),
        world.submit("user3", 9),
    ]
    world.run(4)
    before = {job_id: (record.state, record.places) for job_id, record in world.engine.jobs.items()}
    plans = [world.engine.plan_jobs(node) for node in ("n1", "n2")]
    world.restart_controller(keep_journal)
    actions = world.run(10)
    assert [action for action in actions if not isinstance(action, Note)] == []
    after = {job_id: (record.state, record.places) for job_id, record in world.engine.jobs.items()}
    assert after == before
    assert sorted(after) == jobs
    assert [world.engine.plan_jobs(node) for node in ("n1", "n2")] == plans


def test_running_job_of_a_silent_node_is_given_gpus_after_a_while(world: FakeWorld) -> None:
    job_id = world.submit(gpus=2)
    world.run(3)
    world.restart_controller(keep_journal=False)
    world.procs.clear()
    world.cycle()
    assert world.engine.jobs[job_id].places == {"n1": ()}
    assert world.code_of(job_id) == "Unbound"
    world.run(6)
    assert world.engine.jobs[job_id].places == {"n1": (0, 1)}


def test_running_jobs_of_a_silent_node_are_given_gpus_of_their_own(world: FakeWorld) -> None:
    jobs = [world.submit(f"user{n}") for n in (1, 2)]
    world.run(3)
    world.jobs = {job_id: replace(job, nodes=("n1",)) for job_id, job in world.jobs.items()}
    world.restart_controller(keep_journal=False)
    world.procs.clear()
    world.run(7)
    assert sorted(world.engine.jobs[job_id].places["n1"] for job_id in jobs) == [(0,), (1,)]


def test_job_gone_while_the_controller_was_away_is_ended(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    del world.jobs[job_id]
    world.procs.clear()
    world.restart_controller(keep_journal=True)
    world.cycle()
    assert world.engine.jobs[job_id].text == "finished: gone from Slurm"


def test_journal_of_another_schema_is_refused() -> None:
    data = an_engine().to_json() | {"schema": 99}
    with pytest.raises(ValueError, match="schema 99, 2 expected"):
        Engine.from_json(EngineSettings(), data, as_configured(EngineSettings()))


def test_journal_keeps_every_field(world: FakeWorld) -> None:
    world.submit(gpus=2, types=("v100", "p100"), array_job_id=7, array_task_id=0)
    world.submit(dependency="afterok:1")
    world.run(3)
    data = json.loads(json.dumps(world.engine.to_json()))
    again = Engine.from_json(world.settings, data, world.leader())
    again.state.has_read_slurm = True
    assert again.state == world.engine.state


# tickets


def test_tickets_follow_shares_and_weights() -> None:
    world = FakeWorld({"n1": 4})
    world.submit("user1", 1, tickets=300)
    world.submit("user1", 1, tickets=100)
    world.submit("user2", 1)
    world.run(3)
    tickets = {place.key.job_id: place.tickets for place in world.engine.plan_jobs("n1")}
    assert tickets == {1: 75 * TICKET, 2: 25 * TICKET, 3: 100 * TICKET}
    shares = world.engine.tickets()
    assert {user: share.tickets for user, share in shares.items()} == {
        "user1": 100,
        "user2": 100,
        "user3": 100,
    }
    assert sum(share.norm_share for share in shares.values()) == 1
    assert shares["user1"].account == ACCOUNT


def test_waiting_jobs_hold_no_tickets(world: FakeWorld) -> None:
    """A user's tickets lie on the jobs that have a place, all of them."""
    world.submit()
    for _ in range(5):
        world.submit(gpus=9)
    world.run(3)
    assert [place.tickets for place in world.engine.plan_jobs("n1")] == [100 * TICKET]


def test_illegal_move_carries_the_jobs_story(world: FakeWorld) -> None:
    job_id = world.submit()
    world.run(3)
    with pytest.raises(IllegalTransition, match="HELD -> STARTING Starting: released to start on n1"):
        world.engine.jobs[job_id].move(states.STARTING, because("Adopted", node="n1"), world.now_ns)
