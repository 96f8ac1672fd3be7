"""Gangs over nodes in virtual time: shares by users, whole gangs, nobody starves, whatever comes and goes."""

from __future__ import annotations

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.starvation import PASSED_OVER
from tests.span_world import FREEZE_BOUND_NS, QUANTUM_NS, REFUSAL_BOUND_NS, SpanWorld

TWO = {"n1": 2, "n2": 2}


def span(*nodes: str, gpus: tuple[int, ...] = (0, 1)) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((node, gpus) for node in nodes)


def alone(node: str, *gpus: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ((node, gpus),)


def assert_fair(got: dict[str, float], want: dict[str, float]) -> None:
    """Within 5 % of the entitlement."""
    assert got.keys() == want.keys()
    for user, gpu_quanta in want.items():
        assert got[user] == pytest.approx(gpu_quanta, rel=0.05), f"{got}, entitled {want}"


def demo() -> SpanWorld:
    """A gang of 2 x 2 GPUs beside four jobs of one GPU, three users."""
    world = SpanWorld(TWO)
    world.submit("user1", span("n1", "n2"))
    for n, node in enumerate(("n1", "n2")):
        world.submit("user2", alone(node, n))
        world.submit("user3", alone(node, 1 - n))
    return world


def test_gang_over_two_nodes_beside_four_single_jobs() -> None:
    world = demo().run(3)
    since_ns = world.now_ns
    world.run(60)
    assert_fair(world.got(since_ns), {"user1": 80, "user2": 80, "user3": 80})
    assert max(job.longest_wait for job in world.jobs.values()) <= 3
    world.check()


def test_two_users_and_single_jobs_of_whole_nodes() -> None:
    world = SpanWorld(TWO)
    world.submit("user1", span("n1", "n2"))
    world.submit("user2", alone("n1", 0, 1))
    world.submit("user2", alone("n2", 0, 1))
    world.run(60)
    assert_fair(world.got(), {"user1": 120, "user2": 120})
    world.check()


def test_a_user_of_many_single_jobs_does_not_push_the_gang_out() -> None:
    world = SpanWorld(TWO)
    world.submit("user1", span("n1", "n2"))
    for n in range(20):
        world.submit("user2", alone(("n1", "n2")[n % 2], n // 2 % 2))
    world.run(4)
    since_ns = world.now_ns
    world.run(60)
    assert_fair(world.got(since_ns), {"user1": 120, "user2": 120})
    waits = [job.longest_wait for job in world.jobs.values() if job.plan.is_span]
    assert max(waits) <= 3
    world.check()


def test_gang_of_half_the_gpus_leaves_the_others_running() -> None:
    """One GPU of each node: the two jobs on the other GPUs never stop."""
    world = SpanWorld(TWO)
    gang = world.submit("user1", span("n1", "n2", gpus=(0,)))
    beside = [world.submit("user2", alone(node, 1)) for node in TWO]
    for node in TWO:
        world.submit("user3", alone(node, 0))
    world.run(40)
    assert all(world.jobs[key].longest_wait == 0 for key in beside)
    assert world.jobs[gang].held_ns == pytest.approx(20e9, rel=0.1)
    world.check()


def test_two_gangs_that_overlap_on_a_node_of_three() -> None:
    world = SpanWorld({"n1": 2, "n2": 2, "n3": 2})
    world.submit("user1", span("n1", "n2"))
    world.submit("user2", span("n2", "n3"))
    for node in ("n1", "n2", "n3"):
        world.submit("user3", alone(node, 0, 1))
    world.run(3)
    since_ns = world.now_ns
    world.run(90)
    assert len(world.central.domains) == 1
    got = world.got(since_ns)
    # The job between the gangs never fits while its user is served beside them: it goes first after a while,
    # and in that round nobody but its user can use the other nodes.
    assert 180 <= got.pop("user3") <= 180 * 1.07
    assert_fair(got, {"user1": 180, "user2": 180})
    assert max(job.longest_wait for job in world.jobs.values()) <= PASSED_OVER + 2
    world.check()


def test_three_users_over_three_nodes_get_equal_parts_where_all_could_use_them() -> None:
    nodes = ("n1", "n2", "n3")
    world = SpanWorld(dict.fromkeys(nodes, 2))
    world.submit("user1", span(*nodes))
    world.submit("user2", span(*nodes))
    for node in nodes:
        world.submit("user3", alone(node, 0, 1))
    world.run(90)
    assert_fair(world.got(), {"user1": 180, "user2": 180, "user3": 180})
    world.check()


def test_arrivals_and_departures() -> None:
    world = SpanWorld(TWO)
    local = [world.submit("user2", alone(node, 0, 1)) for node in TWO]
    world.run(20)
    assert world.central.domains == [] and world.got() == {"user2": 80}
    gang = world.submit("user1", span("n1", "n2"))
    world.run(3)
    since_ns = world.now_ns
    world.run(40)
    assert_fair(world.got(since_ns), {"user1": 80, "user2": 80})
    late = world.submit("user3", span("n1", "n2"))
    world.run(3)
    since_ns = world.now_ns
    world.run(60)
    assert_fair(world.got(since_ns), {"user1": 80, "user2": 80, "user3": 80})
    world.finish(gang)
    world.finish(local[0])
    world.run(3)
    since_ns = world.now_ns
    world.run(40)
    # user2 has one node's job left: a third of the time is the gang's, and both have held as much.
    assert_fair(world.got(since_ns), {"user2": 160 / 3, "user3": 160 / 3})
    world.finish(late)
    world.run(2)
    assert world.central.domains == []
    world.check()


def test_a_gang_that_cannot_be_parked_yet_is_charged_and_pays_back() -> None:
    world = SpanWorld(TWO)
    gang = world.submit("user1", span("n1", "n2"))
    world.jobs[gang].stays_until = 12
    for node in TWO:
        world.submit("user2", alone(node, 0, 1))
    world.run(12)
    assert world.jobs[gang].held_ns >= 11e9, "it stays while it starts up"
    world.run(88)
    assert_fair(world.got(), {"user1": 200, "user2": 200})
    world.check()


def test_a_node_that_is_silent_keeps_what_it_has() -> None:
    world = demo().run(4)
    (gang,) = [key for key, job in world.jobs.items() if job.plan.is_span]
    while not world.jobs[gang].is_on:
        world.run(1)
    world.silent.add("n2")
    for _ in range(10):
        world.run(1)
        assert world.jobs[gang].is_on
    world.silent.clear()
    world.run(30)
    assert world.jobs[gang].longest_wait >= 15, "it pays for what it held meanwhile"
    world.check()


def test_domains_split_and_join_without_losing_anybody() -> None:
    nodes = ("n1", "n2", "n3", "n4")
    world = SpanWorld(dict.fromkeys(nodes, 1))
    left, right = span("n1", "n2", gpus=(0,)), span("n3", "n4", gpus=(0,))
    gangs = [world.submit(f"user{n}", places) for n, places in enumerate((left, right, left, right))]
    world.run(20)
    assert len(world.central.domains) == 2
    bridge = world.submit("user9", span(*nodes, gpus=(0,)))
    world.run(30)
    assert len(world.central.domains) == 1
    assert all(world.jobs[key].longest_wait <= 4 for key in gangs)
    world.finish(bridge)
    world.run(20)
    assert len(world.central.domains) == 2
    assert {key: world.jobs[key].plan.user for key in gangs} == {
        JobKey(n + 1, 0): f"user{n}" for n in range(4)
    }
    assert all(world.jobs[key].longest_wait <= 4 for key in gangs)
    world.check()


def times_off_and_on(world: SpanWorld, key: JobKey) -> list[tuple[int, int]]:
    """How long it was frozen and how long it held then, in quanta, each time."""
    turns = [at // QUANTUM_NS for at in world.jobs[key].turns]
    off, on, then = turns[1::2], turns[2::2], turns[3::2]
    return [(on[n] - off[n], then[n] - on[n]) for n in range(len(then))]


def test_a_gang_that_refuses_to_park_is_frozen_on_all_its_nodes_and_others_get_turns() -> None:
    world = SpanWorld(TWO)
    gang = world.submit("user1", span("n1", "n2"))
    world.jobs[gang].refuses = True
    others = [world.submit("user2", alone(node, 0, 1)) for node in TWO]
    world.run(20)
    assert world.jobs[gang].turns[1] >= REFUSAL_BOUND_NS, "it is borne so long"
    since_ns = world.now_ns
    world.run(300)
    assert len(times_off_and_on(world, gang)) > 5
    for off, on in times_off_and_on(world, gang):
        assert off <= FREEZE_BOUND_NS // QUANTUM_NS and on >= off
    got = world.got(since_ns)
    assert 0.85 < got["user1"] / got["user2"] < 1.15
    assert all(world.jobs[key].longest_wait <= FREEZE_BOUND_NS // QUANTUM_NS + 5 for key in others)
    world.check()


def test_two_gangs_that_both_refuse_take_turns_within_the_bound_of_a_freeze() -> None:
    world = SpanWorld(TWO)
    gangs = [world.submit(user, span("n1", "n2")) for user in ("user1", "user2")]
    for key in gangs:
        world.jobs[key].refuses = True
    world.run(300)
    for key in gangs:
        found = times_off_and_on(world, key)
        assert len(found) > 3 and all(off <= FREEZE_BOUND_NS // QUANTUM_NS for off, _ in found)
    assert 0.85 < world.got()["user1"] / world.got()["user2"] < 1.15
    world.check()


def test_a_gang_that_parks_after_all_is_not_frozen_any_more() -> None:
    world = SpanWorld(TWO)
    gang = world.submit("user1", span("n1", "n2"))
    world.jobs[gang].refuses = True
    world.submit("user2", span("n1", "n2"))
    world.run(60)
    assert world.jobs[gang].turns[1:]
    world.jobs[gang].refuses = False
    while not world.jobs[gang].is_on:
        world.run(1)
    world.run(60)
    assert not world.jobs[gang].is_frozen
    since_ns = world.now_ns
    world.run(60)
    assert_fair(world.got(since_ns), {"user1": 120, "user2": 120})


def test_who_refuses_while_nobody_waits_is_left_alone() -> None:
    world = SpanWorld(TWO)
    gang = world.submit("user1", span("n1", "n2", gpus=(0,)))
    world.jobs[gang].refuses = True
    for node in TWO:
        world.submit("user2", alone(node, 1))
    world.run(60)
    assert world.jobs[gang].longest_wait == 0
    world.check()
