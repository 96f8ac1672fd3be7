"""Virtual clusters, live: GPUs have owners, whose guaranteed jobs come first there (ADR 0035)."""

from __future__ import annotations

import json
from dataclasses import replace

from gandiva_slurm.engine import owners
from gandiva_slurm.engine.domains import whole_jobs
from gandiva_slurm.engine.invariants_owners import owners_come_first
from gandiva_slurm.engine.local import Gang, LocalStride
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.classes import PATIENCE_NS
from gandiva_slurm.policy.deal import Bay, deal, shortages
from gandiva_slurm.policy.placement import Board, Need, Site
from gandiva_slurm.policy.shares import Leaf
from tests.builders import ACCOUNT, SECOND_NS, TICKET, Slicer, a_gang, place_all
from tests.fake_world import FakeWorld, ruled

TWO = {"vision": {"v100": 8}, "nlp": {"v100": 4, "k80": 4}}


def bays(*gpus: int, down: tuple[int, ...] = (), gpu_type: str = "v100") -> list[Bay]:
    return [Bay(f"n{n}", gpu_type, count, n in down) for n, count in enumerate(gpus, 1)]


# the deal


def test_whole_nodes_are_dealt_first_then_halves() -> None:
    nodes = [*bays(8, 8), Bay("k1", "k80", 8)]
    assert deal(TWO, nodes) == {
        "n1": ("vision",) * 8,
        "n2": ("nlp",) * 4 + ("",) * 4,
        "k1": ("nlp",) * 4 + ("",) * 4,
    }
    assert deal(dict(reversed(TWO.items())), nodes) == deal(TWO, nodes), "the larger cell goes first"


def test_cells_are_halves_of_halves_and_leave_whole_ones_whole() -> None:
    found = deal({"a": {"v100": 3}, "b": {"v100": 1}, "c": {"v100": 6}}, bays(4, 6, 4))
    assert found == {"n1": ("a", "a", "a", "b"), "n2": ("c",) * 6, "n3": ("",) * 4}


def test_the_type_of_gpus_without_one_is_gpu() -> None:
    assert deal({"a": {"gpu": 2}}, bays(4, gpu_type="")) == {"n1": ("a", "a", "", "")}


def test_cells_of_a_node_that_is_down_are_dealt_again_and_nobody_elses() -> None:
    wanted = {"a": {"v100": 4}, "b": {"v100": 4}}
    before, after = deal(wanted, bays(4, 4, 4)), deal(wanted, bays(4, 4, 4, down=(1,)))
    assert before == {"n1": ("a",) * 4, "n2": ("b",) * 4, "n3": ("",) * 4}
    assert after == {"n1": ("",) * 4, "n2": ("b",) * 4, "n3": ("a",) * 4}
    none_left = deal({"a": {"v100": 4}, "b": {"v100": 6}}, bays(4, 4, 4, down=(1,)))
    assert none_left == {"n1": ("",) * 4, "n2": ("b",) * 4, "n3": ("b", "b", "a", "a")}


def test_more_than_there_is_goes_to_those_named_first_and_is_said() -> None:
    wanted = {"a": {"v100": 4}, "b": {"v100": 4, "h100": 1}}
    assert deal(wanted, bays(6)) == {"n1": ("a",) * 4 + ("b",) * 2}
    assert shortages(wanted, bays(6)) == [
        "a 4 + b 4 GPUs of type v100 are promised, the nodes have 6",
        "no node has GPUs of type h100 (b 1); known types: v100",
    ]
    assert shortages(wanted, [*bays(8), Bay("h", "h100", 1)]) == []


# places


def a_need(job_id: int, user: str, gpus: int = 1, vc: str = "", is_opportunistic: bool = False) -> Need:
    leaf = Leaf(ACCOUNT, user)
    return Need(job_id, leaf, gpus, 100, (job_id,), is_opportunistic=is_opportunistic, vc=vc)


def a_board(*owner: str, slots: int = 4) -> Board:
    tickets = {Leaf(ACCOUNT, user): 100 * TICKET for user in ("ann", "ben", "cat", "dan")}
    return Board([Site("n1", "v100", len(owner), slots, owners=owner)], tickets)


def gpus_of(board: Board, *needs: Need) -> dict[int, tuple[int, ...]]:
    return {job_id: place.parts[0].gpus for job_id, place in place_all(board, needs).items()}


def test_a_guaranteed_job_is_placed_on_its_own_gpus_and_an_opportunistic_one_on_any() -> None:
    board = a_board("a", "a", "b", "")
    assert gpus_of(board, a_need(1, "ann", vc="b"), a_need(2, "ben"), a_need(3, "cat", 2, "a")) == {
        1: (2,),
        2: (3,),
        3: (0, 1),
    }
    assert gpus_of(board, a_need(4, "ann", 2, "b")) == {}
    assert gpus_of(board, a_need(4, "ann", 2, "b", is_opportunistic=True)) == {4: (0, 1)}


def test_users_have_all_their_tickets_in_each_virtual_cluster() -> None:
    """What ann has in `a` makes her no heavier in `b`."""
    board = a_board("a", "b")
    gpus_of(board, *[a_need(n, "ann", vc="a") for n in (1, 2)], a_need(3, "ann", vc="b"))
    assert board.loads(board.sites["n1"]) == [board.load_of(a_need(3, "ann", vc="b"))] * 2


def test_no_borrower_takes_the_only_slot_of_an_owned_gpu() -> None:
    board = a_board("a", slots=1)
    assert gpus_of(board, a_need(1, "ann", is_opportunistic=True)) == {}
    assert gpus_of(board, a_need(2, "ben", vc="a")) == {2: (0,)}


# turns


def of(vc: str, gang: Gang, is_opportunistic: bool = False) -> Gang:
    return replace(gang, vc=vc, is_opportunistic=is_opportunistic)


def test_tickets_buy_turns_within_a_virtual_cluster() -> None:
    """Ann has GPU 1 of `b` to herself, and still half of GPU 0 of `a`."""
    node = Slicer(2)
    node.local.set_gangs(
        [
            of("a", a_gang(1, "ann", (0,))),
            of("a", a_gang(2, "ben", (0,))),
            of("b", a_gang(3, "ann", (1,))),
        ]
    )
    node.run(40)
    assert [node.by_job[n] // SECOND_NS for n in (1, 2, 3)] == [20, 20, 40]


def test_a_borrower_makes_way_for_the_owners_at_once_and_takes_turns_among_the_opportunistic() -> None:
    local = LocalStride(2, SECOND_NS)
    borrower, owner = of("b", a_gang(1, "ann", (0, 1)), True), of("a", a_gang(2, "ben", (0,)))
    local.set_gangs([borrower, owner])
    both = {borrower.key, owner.key}
    assert local.giving_way(both, (), (), {borrower.key}) == {borrower.key}
    assert local.choose(both, (), ()) == (owner.key,)
    assert local.groups == ("", "a", "\0spare")


def test_the_books_of_all_groups_are_read_again() -> None:
    node = Slicer(2)
    node.local.set_gangs([of("a", a_gang(1, "ann", (0,))), of("b", a_gang(2, "ann", (1,)), True)])
    data = json.loads(json.dumps(node.run(7).local.to_json()))
    again = LocalStride.from_json(data)
    assert again.to_json() == data and again.job_passes() == node.local.job_passes() != {}


# the engine


def a_world(
    virtual_clusters: dict[str, dict[str, int]], nodes: dict[str, int], **settings: int
) -> FakeWorld:
    return ruled(nodes, EngineSettings(virtual_clusters=virtual_clusters, **settings))  # type: ignore[arg-type]


def places(world: FakeWorld) -> dict[int, dict[str, tuple[int, ...]]]:
    return {job_id: record.places for job_id, record in world.engine.jobs.items()}


def told(world: FakeWorld, job_id: int) -> list[str]:
    engine = world.engine
    return [*owners.told(engine.jobs[job_id], engine.state, engine.settings, engine.decider is not None)]


ONE_EACH = {"a": {"v100": 1}, "b": {"v100": 1}}


def test_jobs_live_on_their_own_gpus_and_those_of_none_on_what_is_left() -> None:
    world = a_world(ONE_EACH, {"n1": 3})
    for vc in ("b", "", "a"):
        world.submit("user1", vc=vc)
    world.run(3)
    assert places(world) == {1: {"n1": (1,)}, 2: {"n1": (2,)}, 3: {"n1": (0,)}}
    assert told(world, 1) == [
        "draws its GPUs from virtual cluster b: 1 GPU(s), on n1 GPU 1",
        "is on GPUs of its own",
    ]
    assert told(world, 2)[0] == "draws its GPUs from what no virtual cluster owns: 1 GPU(s), on n1 GPU 2"
    plan = world.engine.plan_jobs("n1")
    assert {p.key.job_id: (p.tickets // TICKET, p.vc, p.is_opportunistic) for p in plan} == {
        1: (100, "b", False),
        2: (100, "", False),
        3: (100, "a", False),
    }
    assert whole_jobs({"n1": plan})[JobKey(1, 0)].group == "b"


def test_who_finds_no_slot_at_home_borrows_and_the_owner_is_on_at_once() -> None:
    world = a_world(ONE_EACH, {"n1": 2}, slots_per_gpu=2)
    for user in ("user1", "user2", "user3"):
        world.submit(user, vc="a")
    world.run(3)
    assert places(world) == {1: {"n1": (0,)}, 2: {"n1": (0,)}, 3: {"n1": (1,)}}
    assert [world.engine.jobs[n].is_opportunistic for n in (1, 2, 3)] == [False, False, True]
    assert told(world, 3)[1] == (
        "is on GPUs of virtual cluster b: opportunistic there, it makes way at once when their jobs want them"
    )
    owner = world.submit("user1", vc="b")
    world.run(3)
    assert places(world)[owner] == {"n1": (1,)} and not world.engine.jobs[owner].is_opportunistic
    waits = world.submit("user2", vc="b")
    world.run(3)
    assert world.code_of(waits) == "NoFreeSlots", "one slot of each GPU is the owners', not all"
    assert world.engine.jobs[waits].evidence == (
        "n1: 4 of 4 slots taken, a free one on 0 GPU(s) of virtual cluster b",
    )


def test_a_gang_larger_than_its_virtual_cluster_runs_by_chance() -> None:
    world = a_world({"a": {"v100": 2}}, {"n1": 4})
    gang = world.submit("user1", 4, vc="a")
    world.run(3)
    assert world.engine.jobs[gang].is_borrowing and world.state_of(gang) == states.RUNNING


def test_a_virtual_cluster_nobody_configured_is_held_with_a_sentence() -> None:
    world = a_world(ONE_EACH, {"n1": 2})
    job_id = world.submit("user1", vc="speech")
    world.run(3)
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.HELD, "NoSuchVc")
    assert record.text == "--gandiva-vc=speech: gandiva.yaml has no virtual cluster of that name"
    assert record.reason.next.startswith("cancel it (scancel 1) and name one of: a, b; or an operator")


def test_without_virtual_clusters_a_name_changes_nothing() -> None:
    world = ruled({"n1": 1})
    job_id = world.submit("user1", vc="vision")
    world.run(3)
    assert world.state_of(job_id) == states.RUNNING and not world.engine.jobs[job_id].vc
    assert told(world, job_id) == ["--gandiva-vc=vision: recorded; no virtual clusters are configured"]


def test_a_node_that_is_lost_is_made_good_where_gpus_are_left() -> None:
    world = a_world({"a": {"v100": 2}}, {"n1": 2, "n2": 2})
    own, other = world.submit("user1", 2, vc="a"), world.submit("user2", 2)
    world.run(3)
    assert places(world) == {own: {"n1": (0, 1)}, other: {"n2": (0, 1)}}
    world.lose_node("n1")
    world.run(30)
    assert places(world) == {own: {"n2": (0, 1)}, other: {"n2": (0, 1)}}
    assert [world.engine.jobs[n].is_opportunistic for n in (own, other)] == [False, True]
    world.restore_node("n1")
    world.run(30)
    assert [world.engine.jobs[n].is_opportunistic for n in (own, other)] == [True, False]


def test_one_parked_for_long_on_others_gpus_is_moved_home_in_its_turn_when_there_is_room() -> None:
    world = a_world(ONE_EACH, {"n1": 2}, slots_per_gpu=2, min_run_ns=60 * SECOND_NS)
    for user in ("user1", "user2", "user3"):
        world.submit(user, vc="a")
    world.run(30)
    world.submit("user1", vc="b")
    world.run(90, dt_s=10)
    world.procs["n1", JobKey(3, 0)].state = states.SUSPENDED
    world.finish(2)
    world.run(2 * PATIENCE_NS // SECOND_NS, dt_s=10)
    assert places(world)[3] == {"n1": (1,)} and world.state_of(3) == states.SUSPENDED
    world.procs["n1", JobKey(3, 0)].state = states.RUNNING
    world.run(60, dt_s=10)
    assert places(world)[3] == {"n1": (0,)} and not world.engine.jobs[3].is_opportunistic
    (line,) = [line for line in world.engine.jobs[3].story if line.code == "Leaving"]
    assert "virtual cluster a has room for it again, after 600 s without GPUs on others'" in line.text


def test_a_gang_over_nodes_is_moved_home_too() -> None:
    nodes = {f"n{n}": 1 for n in range(1, 5)}
    world = a_world({"a": {"v100": 2}, "b": {"v100": 2}}, nodes, slots_per_gpu=2, min_run_ns=60 * SECOND_NS)
    for user in ("user1", "user2", "user3"):
        world.submit(user, 2, span=2, vc="a")
    world.run(100, dt_s=10)
    assert places(world)[3] == {"n3": (0,), "n4": (0,)} and world.engine.jobs[3].is_borrowing
    for node in ("n3", "n4"):
        world.procs[node, JobKey(3, 0)].state = states.SUSPENDED
    world.finish(2)
    world.run(PATIENCE_NS // SECOND_NS, dt_s=10)
    for node in ("n3", "n4"):
        world.procs[node, JobKey(3, 0)].state = states.RUNNING
    world.run(60, dt_s=10)
    assert places(world)[3] == {"n1": (0,), "n2": (0,)} and not world.engine.jobs[3].is_opportunistic


def test_a_promoted_job_stays_behind_the_owners_on_their_gpus() -> None:
    world = a_world(ONE_EACH, {"n1": 2})
    world.submit("user1", vc="b")
    world.run(3)
    guest = world.submit("user2", vc="b", job_class="opportunistic")
    world.run(3)
    assert places(world)[guest] == {"n1": (0,)}
    world.procs["n1", JobKey(guest, 0)].state = states.SUSPENDED
    world.run(PATIENCE_NS // SECOND_NS + 20, dt_s=10)
    assert world.engine.jobs[guest].is_promoted and world.engine.jobs[guest].is_opportunistic


def test_an_elastic_job_grows_into_its_own_gpus_only() -> None:
    often = {"min_run_ns": 30 * SECOND_NS, "restart_cost_ns": SECOND_NS, "moves_per_hour": 20}
    world = a_world({"a": {"v100": 2}}, {"n1": 4}, quantum_ns=10 * SECOND_NS, **often)
    job_id = world.submit("user1", 1, vc="a", elastic="1-4")
    world.run(120)
    assert places(world)[job_id] == {"n1": (0, 1)}


def test_the_invariant_sees_a_borrower_that_is_not_marked_and_an_owner_left_out() -> None:
    world = a_world(ONE_EACH, {"n1": 2})
    world.submit("user1", vc="b")
    world.run(3)
    assert owners_come_first(world.engine) == []
    record = world.engine.jobs[1]
    record.places = {"n1": (0,)}
    (found,) = owners_come_first(world.engine)
    assert "job 1.0 of virtual cluster b is on {'n1': (0,)}, borrowing: False" in found
    record.places, record.state = {}, states.HELD
    record.reason = replace(record.reason, code="NoFreeSlots")
    (found,) = owners_come_first(world.engine)
    assert found == "job 1.0 waits for a slot; of virtual cluster b GPUs [1] of n1 are idle"
