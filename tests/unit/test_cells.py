"""Cells and VCs: HiveD's demonstration, buddies, opportunistic gangs, bad nodes, pins, restarts."""

from __future__ import annotations

import pytest

from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.policy.virtual_clusters.cells import LEAF
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.gangs import (
    ALLOCATED,
    BEING_PREEMPTED,
    BIND,
    PREEMPT,
    PREEMPTING,
    WAIT,
    Answer,
    CellRequest,
    RequestError,
)
from gandiva_slurm.policy.virtual_clusters.site import CellGrant, CellKind, CellSpec, CellsSpec, VcSpec

KINDS = {
    "switch": CellKind("v100", 2),
    "socket": CellKind("switch", 2),
    "node": CellKind("socket", 2, is_node=True),
    "rack": CellKind("node", 2),
    "big": CellKind("v100", 16, is_node=True),
}


def nodes(kind: str, count: int) -> list[CellSpec]:
    return [CellSpec(kind, f"n{number}") for number in range(count)]


def owns(*grants: tuple[str, str, int], pins: tuple[str, ...] = ()) -> VcSpec:
    return VcSpec(tuple(CellGrant(*grant) for grant in grants), pins)


def cluster_of(cells: list[CellSpec], **vcs: VcSpec) -> CellCluster:
    return CellCluster(CellsSpec(KINDS, cells, vcs))


def run(cluster: CellCluster, name: str, vc: str, *members: int, priority: int = 0, **more) -> Answer:
    """Ask, and take a BIND."""
    request = CellRequest(name, vc, members, priority, **more)
    answer = cluster.ask(request)
    if answer.kind == BIND and answer.deed is not None:
        cluster.allocate(request, answer.deed)
    return answer


def places(answer: Answer) -> list[tuple[str, tuple[int, ...]]]:
    assert answer.deed is not None, answer
    return [(member.node, member.gpus) for member in answer.deed.members]


def test_sixteen_small_jobs_of_one_vc_leave_the_other_vc_its_node():
    cluster = cluster_of(nodes("big", 2), vc1=owns(("big", "big", 1)), vc2=owns(("big", "big", 1)))
    used = {places(run(cluster, f"g{number}", "vc1", 1))[0][0] for number in range(16)}
    assert len(used) == 1
    answer = run(cluster, "wide", "vc2", 16)
    assert answer.kind == BIND
    assert places(answer)[0][0] not in used
    assert run(cluster, "more", "vc1", 1).kind == WAIT, "a VC gets no more than its cells"


def test_cells_split_for_a_small_request_and_merge_when_it_ends():
    cluster = cluster_of([CellSpec("rack", children=tuple(nodes("", 2)))], vc=owns(("rack", "switch", 3)))
    stock = cluster.ledgers["rack"].stock
    assert places(run(cluster, "small", "vc", 2)) == [("n0", (0, 1))]
    assert [len(cells) for cells in stock.free[1:]] == [0, 1, 1, 1, 0]
    cluster.delete("small")
    assert [len(cells) for cells in stock.free[1:]] == [0, 0, 0, 0, 1]


def test_gpus_of_a_member_are_as_near_as_they_can_be():
    cluster = cluster_of(nodes("node", 1), vc=owns(("node", "node", 1)))
    assert places(run(cluster, "one", "vc", 1)) == [("n0", (0,))]
    assert places(run(cluster, "two", "vc", 2)) == [("n0", (2, 3))], "a whole switch, not 1 and 2"
    assert places(run(cluster, "four", "vc", 4)) == [("n0", (4, 5, 6, 7))]


def test_all_members_of_a_gang_are_placed_or_none():
    cluster = cluster_of(nodes("node", 2), vc=owns(("node", "node", 2)))
    assert run(cluster, "three", "vc", 8, 8, 1).kind == WAIT
    assert not cluster.gangs
    answer = run(cluster, "two", "vc", 8, 4)
    assert [len(gpus) for _, gpus in places(answer)] == [4, 8]
    assert len({node for node, _ in places(answer)}) == 2


def test_an_opportunistic_gang_uses_any_free_cell_away_from_guaranteed_ones():
    cluster = cluster_of(nodes("node", 2), vc1=owns(("node", "node", 1)), vc2=owns(("node", "node", 1)))
    own = places(run(cluster, "own", "vc1", 1))[0][0]
    assert places(run(cluster, "chance", "vc1", 4, priority=-1))[0][0] != own
    assert places(run(cluster, "chance2", "vc1", 4, priority=-1))[0][0] != own, "packed among themselves"
    assert places(run(cluster, "chance3", "vc1", 4, priority=-1))[0][0] == own


def test_a_guaranteed_gang_takes_the_cell_with_the_fewest_opportunistic_gpus():
    cluster = cluster_of(nodes("node", 3), vc1=owns(("node", "node", 1)), vc2=owns(("node", "node", 1)))
    for number, size in enumerate((8, 6, 7)):
        run(cluster, f"chance{number}", "vc2", size, priority=-1)
    by_node = {gang.gpus()[0].nodes[0]: name for name, gang in cluster.gangs.items()}
    answer = run(cluster, "own", "vc1", 8)
    assert (answer.kind, answer.victims) == (PREEMPT, ("chance1",))
    assert by_node[places(answer)[0][0]] == "chance1"


def test_a_preemption_goes_through_all_its_states():
    cluster = cluster_of(nodes("node", 1), vc=owns(("node", "node", 1)))
    run(cluster, "low", "vc", 4, 2, priority=1)
    answer = run(cluster, "high", "vc", 8, priority=2)
    assert (answer.kind, answer.victims) == (PREEMPT, ("low",))
    low, high = cluster.gangs["low"], cluster.gangs["high"]
    assert (low.state, high.state) == (BEING_PREEMPTED, PREEMPTING)
    assert sorted({gpu.state for gpu in high.gpus()}) == ["reserved", "reserving"]
    assert run(cluster, "other", "vc", 1, priority=1).kind == WAIT, "what is promised is not given twice"
    assert run(cluster, "high", "vc", 8, priority=2).kind == PREEMPT
    cluster.delete("low")
    assert {gpu.state for gpu in high.gpus()} == {"reserved"}
    assert run(cluster, "high", "vc", 8, priority=2).kind == BIND
    assert (high.state, {gpu.state for gpu in high.gpus()}) == (ALLOCATED, {"used"})
    cluster.delete("high")
    assert {gpu.state for gpu in cluster.chains["node"].cells[LEAF]} == {"free"}


def test_a_preemption_that_is_withdrawn_gives_the_victims_their_gpus_back():
    cluster = cluster_of(nodes("node", 1), vc=owns(("node", "node", 1)))
    run(cluster, "low", "vc", 4, priority=1)
    run(cluster, "high", "vc", 8, priority=2)
    cluster.delete("high")
    assert cluster.gangs["low"].state == ALLOCATED
    assert {gpu.priority for gpu in cluster.gangs["low"].gpus()} == {1}


def test_a_gang_that_may_be_demoted_runs_on_by_chance():
    cluster = cluster_of(nodes("node", 2), vc1=owns(("node", "node", 1)), vc2=owns(("node", "node", 1)))
    run(cluster, "low", "vc1", 8, priority=1, can_demote=True)
    answer = run(cluster, "high", "vc1", 8, priority=2)
    assert answer.kind == BIND
    low = cluster.gangs["low"]
    assert (low.demoted_by, low.virtual, {gpu.priority for gpu in low.gpus()}) == ("high", None, {-1})
    assert run(cluster, "theirs", "vc2", 8).victims == ("low",), "VC 2's promise stands"


def test_no_bad_node_is_bound_while_a_healthy_one_is_free():
    cluster = cluster_of(nodes("node", 4), vc=owns(("node", "node", 3)))
    cluster.set_bad("n1")
    answers = [run(cluster, f"g{number}", "vc", 8) for number in range(3)]
    assert {places(answer)[0][0] for answer in answers} == {"n0", "n2", "n3"}
    cluster.delete("g0")
    for node in list(cluster.nodes):
        cluster.set_bad(node)
    answer = run(cluster, "late", "vc", 1)
    assert answer.kind == WAIT
    assert "bad node" in answer.reason
    freed = places(answers[0])[0][0]
    cluster.set_healthy(freed)
    assert places(run(cluster, "late", "vc", 1))[0][0] == freed


def test_a_pinned_cell_is_its_vcs_alone():
    cells = [CellSpec("rack", children=(CellSpec(name="n0", pin="mine"), CellSpec(name="n1")))]
    cluster = cluster_of(cells, vc1=owns(pins=("mine",)), vc2=owns(("rack", "node", 1)))
    assert places(run(cluster, "theirs", "vc2", 8)) == [("n1", tuple(range(8)))]
    assert run(cluster, "more", "vc2", 1).kind == WAIT
    assert places(run(cluster, "own", "vc1", 8, pin="mine")) == [("n0", tuple(range(8)))]
    assert run(cluster, "again", "vc1", 1, pin="mine").kind == WAIT
    cluster.delete("own")
    assert run(cluster, "after", "vc1", 1, pin="mine").kind == BIND
    with pytest.raises(RequestError, match="no pinned cell mine"):
        run(cluster, "no", "vc2", 1, pin="mine")


def test_allocated_gangs_come_back_from_their_deeds():
    cluster = cluster_of(nodes("node", 2), vc1=owns(("node", "node", 1)), vc2=owns(("node", "node", 1)))
    before = {
        "a": places(run(cluster, "a", "vc1", 2)),
        "b": places(run(cluster, "b", "vc2", 4)),
        "c": places(run(cluster, "c", "vc2", 2, priority=-1)),
    }
    run(cluster, "waiting", "vc1", 8, priority=5)
    vcs = {"vc1": owns(("node", "node", 1)), "vc2": owns(("node", "node", 1))}
    again = cluster.reconfigured(CellsSpec(KINDS, nodes("node", 2), vcs))
    after = {name: [(m.node, m.gpus) for m in gang.deed.members] for name, gang in again.gangs.items()}
    assert after == before
    assert not any(gang.demoted_by for gang in again.gangs.values())
    assert {gpu.priority for gpu in again.gangs["c"].gpus()} == {-1}


def test_a_gang_whose_vc_lost_its_cells_is_demoted_and_the_new_promise_stands():
    cluster = cluster_of(nodes("node", 2), vc1=owns(("node", "node", 2)), vc2=owns())
    run(cluster, "first", "vc1", 8)
    run(cluster, "second", "vc1", 8)
    vcs = {"vc1": owns(("node", "node", 1)), "vc2": owns(("node", "node", 1))}
    changed = cluster.reconfigured(CellsSpec(KINDS, nodes("node", 2), vcs))
    assert [bool(gang.demoted_by) for gang in changed.gangs.values()] == [False, True]
    assert run(changed, "theirs", "vc2", 8).victims == ("second",)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (CellRequest("g", "nobody", (1,)), "no VC nobody"),
        (CellRequest("g", "vc", ()), "at least"),
        (CellRequest("g", "vc", (0,)), "at least"),
        (CellRequest("g", "vc", (1,), priority=1001), "1001 is not in"),
        (CellRequest("g", "vc", (1,), priority=-2), "-2 is not in"),
        (CellRequest("g", "vc", (1,), gpu_type="k80"), "no k80"),
        (CellRequest("g", "vc", (1,), priority=-1, pin="p"), "cannot use pinned"),
    ],
)
def test_requests_that_could_never_be_granted_are_refused(request_, text):
    cluster = cluster_of(nodes("node", 1), vc=owns(("node", "node", 1)))
    with pytest.raises(RequestError, match=text):
        cluster.ask(request_)


@pytest.mark.parametrize(
    ("vcs", "text"),
    [
        ({"a": owns(("node", "node", 2)), "b": owns(("node", "switch", 1))}, "VCs own 1 switch of node, 0"),
        ({"a": owns(("node", "rack", 1))}, "owns rack of node: there is none"),
        ({"a": owns(("rack", "node", 1))}, "owns node of rack: there is none"),
        ({"a": owns(pins=("p",))}, "pinned cell p: there is none"),
    ],
)
def test_promises_that_do_not_fit_the_cluster_are_refused(vcs, text):
    with pytest.raises(ConfigError, match=text):
        cluster_of(nodes("node", 2), **vcs)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (CellSpec("node"), "has no name"),
        (CellSpec("switch", "n0"), "holds no node"),
        (CellSpec("rack", children=(CellSpec(name="n0"),)), "has 2 children, 1 are listed"),
    ],
)
def test_cells_that_contradict_their_kinds_are_refused(cell, text):
    with pytest.raises(ConfigError, match=text):
        cluster_of([cell])
