"""Virtual clusters of gandiva.yaml where a policy decides: cells are bound while they are in use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.lifecycle import owners
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import Cluster, JobView, PolicySettings, View
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.deal import spec_of
from gandiva_slurm.policy.virtual_clusters.gangs import BIND, WAIT, CellRequest
from tests.builders import SECOND_NS
from tests.fake_parts import REQUEUE_DELAY_S
from tests.fake_world import FakeWorld

QUANTUM_NS = 10 * SECOND_NS
Owned = dict[str, dict[str, int]]


def owned_by(cluster: Cluster, owned: Owned) -> dict[str, dict[str, int]]:
    """GPUs of each virtual cluster by type, as its cells have them."""
    cells = CellCluster(spec_of(cluster, owned))
    found: dict[str, dict[str, int]] = {}
    for name, vc in cells.vcs.items():
        for chain, roots in vc.roots.items():
            sizes = cells.chains[chain].sizes
            count = sum(len(own) * sizes[level] for level, own in enumerate(roots))
            kind = cells.chains[chain].gpu_type
            found.setdefault(name, {})[kind] = found.get(name, {}).get(kind, 0) + count
    return {name: {kind: n for kind, n in types.items() if n} for name, types in found.items()}


@pytest.mark.parametrize(
    ("owned", "want"),
    [
        ({"a": {"v100": 5}}, {"": {"v100": 13, "k80": 6}, "a": {"v100": 5}}),
        ({"a": {"v100": 18, "k80": 2}}, {"": {"k80": 4}, "a": {"v100": 18, "k80": 2}}),
        (
            {"a": {"v100": 12}, "b": {"v100": 12}, "c": {"v100": 1}},
            {"": {"k80": 6}, "a": {"v100": 12}, "b": {"v100": 6}},
        ),
        ({"a": {"tpu": 3}}, {"": {"v100": 18, "k80": 6}}),
    ],
)
def test_each_owns_what_is_said_and_those_named_last_what_is_left(owned: Owned, want: Owned) -> None:
    cluster = Cluster([("v100", 8), ("v100", 8), ("v100", 2), ("k80", 6)])
    assert owned_by(cluster, owned) == want


def test_a_rest_is_in_one_node_where_there_is_one_for_it() -> None:
    cluster = Cluster([("v100", 8), ("v100", 2)])
    cells = CellCluster(spec_of(cluster, {"a": {"v100": 2}, "b": {"v100": 4}}))
    both = (CellRequest("one", "a", (2,), gpu_type="v100"), CellRequest("four", "b", (4,), gpu_type="v100"))
    for request in both:
        answer = cells.ask(request)
        assert answer.kind == BIND and answer.deed is not None
        cells.allocate(request, answer.deed)
    more = CellRequest("more", "", (4,), gpu_type="v100")
    answer = cells.ask(more)
    assert answer.kind == BIND, "what nobody owns is one half of the large node"


def test_a_gang_is_bound_around_gpus_that_are_closed_to_it() -> None:
    cells = CellCluster(spec_of(Cluster([("v100", 2), ("v100", 2)]), {"a": {"v100": 2}}))
    request = CellRequest("g", "a", (2,))
    answer = cells.ask(request, closed={("n1", 1)})
    assert answer.kind == BIND and answer.deed is not None
    assert [member.node for member in answer.deed.members] == ["n2"]
    assert cells.ask(request, closed={("n1", 1), ("n2", 0)}).kind == WAIT
    assert cells.ask(request).kind == BIND, "and nothing is left of what was asked"


def test_a_gang_over_nodes_is_bound_to_as_many() -> None:
    """Both halves would fit into one node."""
    cells = CellCluster(spec_of(Cluster([("v100", 4)] * 3), {"a": {"v100": 8}}))
    answer = cells.ask(CellRequest("g", "a", (2, 2), is_apart=True))
    assert answer.kind == BIND and answer.deed is not None
    assert len({member.node for member in answer.deed.members}) == 2
    assert cells.ask(CellRequest("wide", "a", (2, 2, 2), is_apart=True)).kind == WAIT


def test_gpus_closed_to_one_are_left_for_its_own_on_another_node() -> None:
    """One of two halves of a node is taken; the other is closed to the next, which has a node besides."""
    cells = CellCluster(spec_of(Cluster([("v100", 4)] * 3), {"a": {"v100": 8}}))
    first = CellRequest("first", "a", (2,))
    answer = cells.ask(first, closed={(f"n{node}", n) for node in (2, 3) for n in range(4)})
    assert answer.deed is not None and answer.deed.members[0].node == "n1"
    cells.allocate(first, answer.deed)
    answer = cells.ask(CellRequest("next", "a", (2,)), closed={("n1", n) for n in range(4)})
    assert answer.kind == BIND and answer.deed is not None and answer.deed.members[0].node != "n1"


def test_nodes_without_gpus_own_nothing() -> None:
    cluster = Cluster([("v100", 4), ("v100", 0), ("", 0)])
    assert owned_by(cluster, {"a": {"v100": 2}}) == {"": {"v100": 2}, "a": {"v100": 2}}
    policy = gandiva_fair.make(PolicySettings(QUANTUM_NS))
    view = View(0, cluster, {1: JobView(1, "u", 1, 0, vc="a")}, Learnt(), vcs={"a": {"v100": 2}})
    assert policy.decide(view).runs.keys() == {1}


def led(owned: Owned, nodes: dict[str, int]) -> FakeWorld:
    told = PolicySettings(QUANTUM_NS)
    settings = EngineSettings(QUANTUM_NS, virtual_clusters=owned)
    return FakeWorld(nodes, settings, make_policy=lambda: gandiva_fair.make(told))


ONE_EACH: Owned = {"a": {"v100": 1}, "b": {"v100": 1}}


def on(world: FakeWorld) -> set[int]:
    return set(world.engine.state.on)


def test_a_job_borrows_gpus_and_their_owner_has_them_at_once() -> None:
    world = led(ONE_EACH, {"n1": 2})
    gang = world.submit("user1", 2, vc="a")
    world.run(5)
    assert on(world) == {gang}
    owner = world.submit("user2", vc="b")
    world.run(3)
    assert on(world) == {owner}, "in the middle of a quantum"
    world.run(60)
    assert on(world) == {owner}
    world.finish(owner)
    world.run(3)
    assert on(world) == {gang}


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_a_lost_node_is_taken_first_from_what_nobody_owns(lost: str) -> None:
    world = led({"a": {"v100": 1}}, {"n1": 1, "n2": 1})
    free, owner = world.submit("user1"), world.submit("user2", vc="a")
    world.run(5)
    assert on(world) == {free, owner}
    world.lose_node(lost)
    world.run(REQUEUE_DELAY_S + 10)
    for _ in range(40):
        world.run(1)
        assert on(world) == {owner}
    world.restore_node(lost)
    world.run(40)
    assert on(world) == {free, owner}


def test_an_owner_that_comes_while_a_node_is_down_has_what_is_left_at_once() -> None:
    world = led({"a": {"v100": 2}}, {"n1": 2, "n2": 2})
    free = [world.submit("user1") for _ in range(2)]
    world.run(5)
    assert on(world) == {*free}
    (there,) = {node for job in free for node in world.engine.jobs[job].nodes}
    world.lose_node("n1" if there == "n2" else "n2")
    world.run(25)
    assert on(world) == {*free}, "its owner wants nothing"
    owner = world.submit("user2", vc="a")
    world.run(3)
    assert owner in on(world), "in the middle of a quantum"
    world.run(10)
    assert owner in on(world) and len(on(world)) == 2, "they take turns on the GPU that is left"
    world.finish(owner)
    world.run(15)
    assert on(world) == {*free}


def test_a_gang_has_a_half_of_a_node_for_itself_while_single_jobs_of_others_share_the_other() -> None:
    world = led({"a": {"v100": 2}, "b": {"v100": 2}}, {"n1": 4})
    first = world.submit("user1", vc="a")
    world.run(3)
    gang = world.submit("user2", 2, vc="b")
    world.run(3)
    second = world.submit("user1", vc="a")
    world.run(3)
    assert on(world) == {first, gang, second}
    places = [world.engine.jobs[job].places["n1"] for job in (first, gang, second)]
    assert places == [(0,), (2, 3), (1,)], "GPUs 1 and 2 are of two cells"


@pytest.mark.parametrize("lost", ["n1", "n2", "n3"])
def test_owners_are_bound_around_a_node_that_is_down(lost: str) -> None:
    world = led({"a": {"v100": 2}, "b": {"v100": 2}}, {"n1": 2, "n2": 2, "n3": 2})
    gangs = {world.submit("user1", 2, vc="a"), world.submit("user2", 2, vc="b")}
    free = world.submit("user3", 2)
    world.run(5)
    assert on(world) == {*gangs, free}
    world.lose_node(lost)
    world.run(REQUEUE_DELAY_S + 10)
    assert on(world) == gangs
    world.restore_node(lost)
    world.run(30)
    assert on(world) == {*gangs, free}


def test_turns_are_taken_among_the_jobs_of_one() -> None:
    world = led({"a": {"v100": 1}}, {"n1": 2})
    jobs = [world.submit(f"user{n}", vc="a") for n in (1, 2)]
    free = world.submit("user3")
    seen: dict[int, int] = {}
    for _ in range(200):
        world.run(1)
        for job in on(world):
            seen[job] = seen.get(job, 0) + 1
    assert seen[free] > 180, "what nobody owns is its own"
    assert abs(seen[jobs[0]] - seen[jobs[1]]) < 25 and sum(seen[job] for job in jobs) > 180


def test_parts_are_those_of_the_file() -> None:
    world = led({"a": {"v100": 3}, "b": {"v100": 1}}, {"n1": 4})
    mine = {world.submit("user1", vc="a") for _ in range(3)}
    others = {world.submit("user2", vc="b") for _ in range(3)}
    world.run(5)
    for _ in range(60):
        world.run(1)
        assert mine <= on(world) and len(on(world) & others) == 1


def test_a_name_that_nobody_configured_waits_and_says_so() -> None:
    world = led(ONE_EACH, {"n1": 2})
    job = world.submit("user1", vc="c")
    world.run(5)
    record = world.engine.jobs[job]
    assert (record.state, record.code) == (states.HELD, "NoSuchVc")


def test_other_sizes_hold_at_once_and_no_job_is_started_again() -> None:
    world = led(ONE_EACH, {"n1": 2})
    jobs = [world.submit("user1", vc="a"), world.submit("user2", vc="b")]
    world.run(5)
    assert on(world) == {*jobs}
    world.settings = replace(world.settings, virtual_clusters={"a": {"v100": 2}, "b": {"v100": 0}})
    world.engine.settings = world.settings
    gang = world.submit("user3", 2, vc="a")
    world.run(40)
    assert jobs[1] not in on(world) or gang not in on(world)
    world.settings = replace(world.settings, virtual_clusters={})
    world.engine.settings = world.settings
    world.run(60)
    assert {world.jobs[job].restart for job in (*jobs, gang)} == {0}


def test_why_says_what_it_draws_from() -> None:
    world = led({"a": {"v100": 1, "k80": 2}}, {"n1": 2})
    own, other = world.submit("user1", vc="a"), world.submit("user2")
    world.run(3)
    engine = world.engine
    said = [[*owners.told(engine.jobs[job], engine.settings)] for job in (own, other)]
    assert said == [
        ["draws its GPUs from virtual cluster a: 1 v100, 2 k80"],
        ["draws its GPUs from what no virtual cluster owns"],
    ]
