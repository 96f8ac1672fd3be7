"""The central stride on random domains: whole gangs, no GPU twice, nobody starves, users get their shares."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime
from gandiva_slurm.slicing.domains import Places, Planned, find_domains, whole_jobs
from gandiva_slurm.slicing.starvation import PASSED_OVER
from gandiva_slurm.wire.messages import PlannedJob
from tests.span_world import QUANTUM_NS, SpanWorld

NODES = ("n1", "n2", "n3")
GPUS = 2
USERS = ("user1", "user2", "user3")


@st.composite
def places(draw: st.DrawFn) -> Places:
    """A local job, or a span of the same GPUs on two or three nodes."""
    nodes = draw(st.sampled_from([(n,) for n in NODES] + [NODES[:2], NODES[1:], NODES]))
    gpus = draw(st.sampled_from([(0,), (1,), (0, 1)]))
    return tuple((node, gpus) for node in nodes)


JOBS = st.lists(st.tuples(st.sampled_from(USERS), places()), min_size=2, max_size=9)


@settings(max_examples=40)
@given(jobs=JOBS, leaves=st.lists(st.integers(0, 8), max_size=3), stays=st.integers(0, 6))
def test_gangs_are_whole_and_no_gpu_is_held_twice_whatever_comes_and_goes(
    jobs: list[tuple[str, Places]], leaves: list[int], stays: int
) -> None:
    world = SpanWorld(dict.fromkeys(NODES, GPUS))
    keys = []
    for user, place in jobs:
        keys.append(world.submit(user, place))
        world.jobs[keys[-1]].stays_until = stays
        world.run(2)
    for index in leaves:
        if index < len(keys) and keys[index] in world.jobs:
            world.finish(keys[index])
            world.run(2)
    world.run(5)
    world.check()


@settings(max_examples=30)
@given(jobs=JOBS)
def test_everybody_runs_again_within_a_bound(jobs: list[tuple[str, Places]]) -> None:
    """A gang waits for its user's turn and his other jobs, and may be passed over so often."""
    world = SpanWorld(dict.fromkeys(NODES, GPUS))
    for user, place in jobs:
        world.submit(user, place)
    world.run(3 * PASSED_OVER)
    bound = (PASSED_OVER + 1) * len(jobs)
    assert all(job.longest_wait <= bound for job in world.jobs.values()), world.jobs
    assert all(job.held_ns for job in world.jobs.values() if job.plan.is_span) or len(jobs) > 2
    world.check()


@settings(max_examples=25)
@given(owners=st.lists(st.sampled_from(USERS), min_size=2, max_size=8), nodes=st.sampled_from([2, 3]))
def test_users_of_gangs_over_all_nodes_get_equal_parts(owners: list[str], nodes: int) -> None:
    """However many gangs each has: all want all GPUs, so that every round is one user's."""
    world = SpanWorld(dict.fromkeys(NODES[:nodes], GPUS))
    for user in owners:
        world.submit(user, tuple((node, (0, 1)) for node in NODES[:nodes]))
    rounds = 20 * len(set(owners))
    world.run(rounds)
    got = world.got()
    assert sum(got.values()) == rounds * GPUS * nodes, "no GPU is idle"
    want = rounds * GPUS * nodes / len(set(owners))
    assert all(abs(part - want) <= 0.05 * want for part in got.values()), got
    world.check()


@settings(max_examples=60)
@given(spans=st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1, max_size=3), max_size=7))
def test_domains_are_what_spans_join(spans: list[set[str]]) -> None:
    jobs = [
        Planned(JobKey(n, 0), "user1", 1, n, tuple((node, (0,)) for node in sorted(nodes)))
        for n, nodes in enumerate(spans)
    ]
    domains = find_domains(jobs)
    joined = [set(nodes) for nodes in spans if len(nodes) > 1]
    assert set().union(*domains) == set().union(*joined)
    assert sum(map(len, domains)) == len(set().union(*domains)), "each node is in one domain at most"
    for nodes in joined:
        assert sum(nodes <= domain for domain in domains) == 1
    for domain in domains:  # nothing is joined without a span across
        for node in domain:
            rest = domain - {node}
            assert any(node in nodes and nodes & rest for nodes in joined)


def test_parts_of_the_plans_are_put_together() -> None:
    span: Places = (("n1", (0, 1)), ("n2", (1, 2)))
    plans = {
        "n1": [PlannedJob(1, 0, "user1", 1, (0, 1), 300, 5, "g", span)],
        "n2": [
            PlannedJob(1, 0, "user1", 1, (1, 2), 299, 5, "g", span),
            PlannedJob(2, 0, "user2", 2, (0,), 7, 6),
        ],
    }
    assert whole_jobs(plans) == {
        JobKey(1, 0): Planned(JobKey(1, 0), "user1", 599, 5, span),
        JobKey(2, 0): Planned(JobKey(2, 0), "user2", 7, 6, (("n2", (0,)),)),
    }


def test_passes_survive_a_restart_of_a_nodes_counters() -> None:
    """A new boot counts from nothing: what it says is new, and no more than the time that has passed."""
    world = SpanWorld({"n1": 2, "n2": 2})
    world.submit("user1", (("n1", (0, 1)), ("n2", (0, 1))))
    world.submit("user2", (("n1", (0, 1)),))
    world.run(6)
    domain = world.central.domains[0]
    before, _ = domain.stride.passes()
    rows = world._rows("n1")
    world.now_ns += QUANTUM_NS
    domain.gather("n1", "another boot", rows, world._parts("n1"), world.now_ns)
    domain.decide({})
    after, _ = domain.stride.passes()
    most = {user: after[user] - before[user] for user in before}
    # Six quanta of counters, two since it was asked: no more is charged, and the slack of two clocks.
    passed = 2 * GPUS * QUANTUM_NS * 720_720 * 10**6 // 840_000
    assert all(0 <= rise <= 1.2 * passed for rise in most.values()), most


def test_number_that_slurm_uses_again_is_the_living_job() -> None:
    """Its former bearer is still listed as ended."""
    world = SpanWorld({"n1": 2, "n2": 2})
    world.submit("user1", (("n1", (0, 1)), ("n2", (0, 1))))
    local = world.submit("user2", (("n1", (0, 1)),))
    world.run(2)
    domain = world.central.domains[0]
    rows = world._rows("n1")
    rows.append(HeldTime(*local, "user3", (1,), 0, 0, words.ENDED))
    for listed in (rows, rows[::-1]):
        domain.gather("n1", "boot", listed, world._parts("n1"), world.now_ns)
        domain.decide({})
        assert [(gang.key, gang.user) for gang in domain.stride.gangs if gang.key == local] == [
            (local, "user2")
        ]
