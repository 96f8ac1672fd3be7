"""engine.engine: jobs of several nodes, from their place to their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import HoldAgain, Start
from gandiva_slurm.model.ids import JobKey
from tests.builders import SECOND_NS, TICKET, a_job, a_node, an_association_tree
from tests.fake_world import FakeWorld, an_engine, starts

NOW_NS = 2_000_000 * SECOND_NS
RUNNING, SUSPENDED = states.RUNNING, states.SUSPENDED
SUSPENDING, RESUMING = states.SUSPENDING, states.RESUMING


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld({"n1": 4, "n2": 4, "n3": 4})


def running_span(world: FakeWorld) -> int:
    job_id = world.submit(gpus=4, span=2)
    world.run(3)
    assert world.state_of(job_id) == RUNNING
    return job_id


# its place


def test_span_starts_on_its_nodes_and_each_knows_its_part(world: FakeWorld) -> None:
    job_id = world.submit(gpus=4, span=2)
    (start,) = world.cycle()
    assert isinstance(start, Start)
    assert start.places == (("n1", (0, 1)), ("n2", (0, 1)))
    assert start.text.startswith("released to start on n1,n2, GPUs 0,1 of each")
    assert world.cycle() == []
    record = world.engine.jobs[job_id]
    assert (record.state, record.nodes, record.job.nodes) == (RUNNING, ("n1", "n2"), ("n1", "n2"))
    for node in ("n1", "n2"):
        (place,) = world.engine.plan_jobs(node)
        assert (place.key, place.gpus, place.tickets) == (JobKey(job_id, 0), (0, 1), 50 * TICKET)
        assert place.span == (("n1", (0, 1)), ("n2", (0, 1)))
    assert world.engine.plan_jobs("n3") == ()
    assert world.run(120) == [], "settled: nothing acts any more"


def test_plan_of_a_one_node_job_names_no_span(world: FakeWorld) -> None:
    world.submit(gpus=2)
    world.run(3)
    assert [place.span for place in world.engine.plan_jobs("n1")] == [()]


def test_parts_get_the_jobs_tickets_and_no_more() -> None:
    world = FakeWorld({"n1": 4, "n2": 4, "n3": 4}, users=("user1",))
    span = world.submit("user1", 3, span=3, tickets=100)
    single = world.submit("user1", 1, tickets=100)
    world.run(3)
    tickets: dict[int, list[int]] = {span: [], single: []}
    for node in world.nodes:
        for place in world.engine.plan_jobs(node):
            tickets[place.key.job_id].append(place.tickets)
    assert sum(tickets[span]) == sum(tickets[single]) == 50 * TICKET
    assert max(tickets[span]) - min(tickets[span]) <= 1


def test_all_its_nodes_are_of_one_type() -> None:
    nodes = [a_node("n1"), a_node("n2", gpu_type="k80"), a_node("n3", gpu_type="k80"), a_node("n4")]
    engine = an_engine()
    jobs = [a_job(1, gpus=4, span=2), a_job(2, "user2", gpus=4, span=2, types=("k80",))]
    actions = engine.handle([*map(ev.NodeSeen, nodes), *map(ev.JobSeen, jobs), ev.CycleTick()], NOW_NS)
    assert {start.key.job_id: start.nodes for start in starts(actions)} == {1: ("n1", "n4"), 2: ("n2", "n3")}


def test_nodes_are_named_in_slurms_order() -> None:
    engine = an_engine()
    events = [ev.NodeSeen(a_node(name)) for name in ("n10", "n9")]
    actions = engine.handle([*events, ev.JobSeen(a_job(1, gpus=2, span=2)), ev.CycleTick()], NOW_NS)
    assert starts(actions)[0].nodes == ("n9", "n10")


def test_where_slurm_started_it_counts(world: FakeWorld) -> None:
    """An operator changed its nodes meanwhile: the parts that are where they were keep their GPUs."""
    job_id = world.submit(gpus=4, span=2)
    world.ignore_starts = True
    world.cycle()
    moved = replace(world.jobs[job_id], state="RUNNING", nodes=("n2", "n3"))
    world.engine.handle([ev.JobSeen(moved)], world.now_ns)
    assert world.engine.jobs[job_id].places == {"n2": (0, 1), "n3": ()}
    assert world.engine.plan_jobs("n2") == (), "planned whole or not at all"


# who waits, and why


def test_each_waiting_span_has_its_reason() -> None:
    kinds = {"n1": "v100", "n2": "v100", "k1": "k80", "k2": "k80"}
    nodes = [a_node(name, 2, gpu_type=kind, memory_mib=9000) for name, kind in kinds.items()]
    nodes[3] = replace(nodes[3], state=frozenset({"DRAIN"}), reason="disk")
    jobs = [
        a_job(1, gpus=3, span=3),
        a_job(2, gpus=6, span=2),
        a_job(3, gpus=2, span=2, types=("k80",)),
        a_job(4, gpus=2, span=2, node_count=1),
        a_job(5, gpus=2, span=2, memory_mib=99_999),
    ]
    engine = an_engine()
    engine.handle([*map(ev.NodeSeen, nodes), *map(ev.JobSeen, jobs), ev.CycleTick()], NOW_NS)
    assert {job_id: record.text for job_id, record in engine.jobs.items()} == {
        1: "asks for 3 nodes of one GPU type with 1 GPU(s) on each; large enough: 2",
        2: "asks for 3 GPUs on a node, the largest that may take it has 2",
        3: "fewer than 2 nodes of one type that could take it are in service",
        4: "Slurm has it for 1 node(s), it was submitted for 2",
        5: "asks for 99999 MiB of memory on a node, the largest that may take it has 9000",
    }
    assert engine.jobs[3].evidence == ("k2: DRAIN (disk)",)


def test_a_span_waits_until_enough_nodes_of_one_type_have_room(world: FakeWorld) -> None:
    fill = [world.submit("user2", 4, memory_mib=200_000) for _ in range(2)]
    world.rigid.update(fill)
    world.run(3)
    span = world.submit(gpus=2, span=2, memory_mib=100_000)
    world.run(2)
    record = world.engine.jobs[span]
    assert record.code == "NoFreeMemory"
    assert record.text.startswith("fewer than 2 nodes of one type that could take it have 100000 MiB")
    assert record.evidence == tuple(f"n{n}: 200000 of 256000 MiB taken" for n in (1, 2))
    world.finish(fill[0])
    world.run(3)
    assert world.engine.jobs[span].places == {"n1": (0,), "n3": (0,)}


def test_slots_of_each_node_are_evidence() -> None:
    world = FakeWorld({"n1": 1, "n2": 1})
    for _ in range(3):
        world.rigid.add(world.submit(gpus=2, span=2))
        world.run(130)
    last = world.submit(gpus=2, span=2)
    world.run(3)
    record = world.engine.jobs[last]
    assert record.code == "NoFreeSlots"
    assert record.evidence == tuple(f"{n}: a slot that it may have on 0 of 1 GPU(s)" for n in ("n1", "n2"))


# starting


def test_start_of_a_span_that_is_late_frees_all_its_nodes(world: FakeWorld) -> None:
    job_id = world.submit(gpus=4, span=2)
    world.ignore_starts = True
    world.cycle()
    actions = world.run(61)
    assert [type(action) for action in actions] == [HoldAgain]
    assert world.engine.jobs[job_id].text.startswith("Slurm did not start it on n1,n2: not started in time")
    assert world.engine.plan_jobs("n1") == world.engine.plan_jobs("n2") == ()


def test_one_node_lost_while_starting_takes_the_whole_place_back(world: FakeWorld) -> None:
    job_id = world.submit(gpus=4, span=2)
    world.ignore_starts = True
    world.cycle()
    world.down.add("n2")
    world.cycle()
    assert world.engine.jobs[job_id].text == "n2 went down before the job started there"
    world.ignore_starts = False
    world.run(3)
    assert world.jobs[job_id].nodes == ("n1", "n3")


# on its nodes


@pytest.mark.parametrize(
    ("before", "said", "state"),
    [
        (RUNNING, (RUNNING, RUNNING), RUNNING),
        (RUNNING, (SUSPENDING, RUNNING), SUSPENDING),
        (RUNNING, (SUSPENDED, RUNNING), SUSPENDING),
        (RUNNING, (SUSPENDED, SUSPENDING), SUSPENDING),
        (RUNNING, (SUSPENDED, SUSPENDED), SUSPENDED),
        (SUSPENDED, (RUNNING, SUSPENDED), RESUMING),
        (SUSPENDED, (RUNNING, RESUMING), RESUMING),
        (SUSPENDED, (RUNNING, RUNNING), RUNNING),
    ],
)
def test_state_of_a_span_is_that_of_all_its_parts_or_the_moving_one(
    world: FakeWorld, before: str, said: tuple[str, str], state: str
) -> None:
    job_id = running_span(world)
    key = JobKey(job_id, 0)
    for states_now in ((before, before), said):
        for node, word in zip(("n1", "n2"), states_now, strict=True):
            world.procs[node, key].state = word
        world.cycle()
    assert world.state_of(job_id) == state


def test_the_part_that_keeps_the_job_back_gives_the_reason(world: FakeWorld) -> None:
    job_id = running_span(world)
    world.procs["n2", JobKey(job_id, 0)].reason = "WarmingUp"
    world.cycle()
    assert (world.state_of(job_id), world.code_of(job_id)) == (RUNNING, "WarmingUp")


def test_node_that_is_down_is_named(world: FakeWorld) -> None:
    job_id = running_span(world)
    world.down.add("n2")
    world.mute.add("n2")
    world.run(5)
    record = world.engine.jobs[job_id]
    assert record.code == "NodeDown"
    assert "its node n2 is down" in record.text
    assert len([line for line in record.story if (line.code, line.to) == ("NodeDown", RUNNING)]) == 1
    world.lose_node("n2", processes_live_on=True)
    world.run(5)
    assert world.jobs[job_id].nodes == ("n1", "n3")
    assert world.state_of(job_id) == RUNNING


def test_requeued_span_is_fenced_wherever_it_lives_on(world: FakeWorld) -> None:
    job_id = running_span(world)
    world.mute |= {"n1", "n2"}
    world.requeue(job_id, lingers=True)
    world.down |= {"n1", "n2"}
    world.nodes["n4"] = 4
    world.plans["n4"] = {}
    world.run(5)
    assert world.jobs[job_id].nodes == ("n3", "n4")
    assert world.engine.fences("n1") == world.engine.fences("n2") == (JobKey(job_id, 0),)
    world.mute.clear()
    world.run(3)
    assert {node for node, _ in world.procs} == {"n3", "n4"}


def test_part_on_a_node_that_is_not_the_jobs_is_fenced(world: FakeWorld) -> None:
    job_id = running_span(world)
    stray = ev.ResidentSeen("n3", JobKey(job_id, 0), RUNNING, (0, 1), "", "")
    world.engine.handle([stray, ev.CycleTick()], world.now_ns)
    actions = world.engine.handle([ev.CycleTick()], world.now_ns + 60 * SECOND_NS)
    assert [action.code for action in actions] == ["Elsewhere"]
    assert world.engine.fences("n1") == world.engine.fences("n2") == ()
    assert world.engine.fences("n3") == (JobKey(job_id, 0),)


def test_finished_span_frees_its_place_on_all_nodes(world: FakeWorld) -> None:
    job_id = running_span(world)
    world.finish(job_id)
    world.cycle()
    assert world.engine.jobs[job_id].places == {}
    assert all(world.engine.plan_jobs(node) == () for node in world.nodes)


# a restarted controller


@pytest.mark.parametrize("keep_journal", [True, False])
def test_restarted_controller_finds_a_span_as_it_was(keep_journal: bool) -> None:
    world = FakeWorld({"n1": 2, "n2": 4, "n3": 4})
    world.submit("user2", 1)
    world.run(2)
    span = world.submit(gpus=4, span=2)
    world.run(3)
    places = world.engine.jobs[span].places
    assert places == {"n2": (0, 1), "n3": (0, 1)}
    plans = [world.engine.plan_jobs(node) for node in world.nodes]
    world.restart_controller(keep_journal)
    world.run(10)
    assert world.engine.jobs[span].places == places
    assert [world.engine.plan_jobs(node) for node in world.nodes] == plans


def test_span_is_planned_once_all_its_nodes_have_told_their_gpus(world: FakeWorld) -> None:
    job_id = running_span(world)
    world.restart_controller(keep_journal=False)
    world.mute.add("n2")
    world.cycle()
    record = world.engine.jobs[job_id]
    assert (record.places, record.code) == ({"n1": (0, 1), "n2": ()}, "Unbound")
    assert world.engine.plan_jobs("n1") == ()
    world.run(6)
    assert record.places == {"n1": (0, 1), "n2": (0, 1)}, "assigned, for n2 says nothing"
    assert len(world.engine.plan_jobs("n1")) == 1


def test_tickets_of_a_poor_user_reach_every_part() -> None:
    """At least one part of a ticket on each node, whatever there is to split."""
    engine = an_engine()
    tree = an_association_tree(user1=0, user2=10**9)
    nodes = [ev.NodeSeen(a_node(name)) for name in ("n1", "n2")]
    jobs = [ev.JobSeen(a_job(1, gpus=2, span=2)), ev.JobSeen(a_job(2, "user2"))]
    engine.handle([ev.SharesSeen(tree), *nodes, *jobs, ev.CycleTick()], NOW_NS)
    parts = [place.tickets for node in ("n1", "n2") for place in engine.plan_jobs(node) if place.span]
    assert parts == [1, 1]
