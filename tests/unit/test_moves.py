"""policy.balance, faster, clearing: who is proposed to move where, and who is left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gandiva_slurm.policy.moves import WORTH, is_worth_it
from gandiva_slurm.policy.placement import Need, NodeGpus, Place
from tests.moves_scene import HOUR_NS, Scene, a_leaf, a_site, moves

# balance


def test_crowded_job_goes_to_the_idle_gpu() -> None:
    scene = Scene(a_site("n1"), a_site("n2"))
    for gpu in (0, 0, 1):
        scene.job("n1", gpu)
    best = scene.even()[0]
    assert moves([best]) == [(1, (("n2", (0,)),))]
    assert best.gain_ns == HOUR_NS // 2, "half a GPU more for an hour"
    assert best.why[1] == "worth 1800 s to it within 3600 s, costs 60 s"


def test_even_loads_move_nobody() -> None:
    scene = Scene(a_site("n1"), a_site("n2"))
    for node in ("n1", "n2"):
        for gpu in (0, 0, 1, 1):
            scene.job(node, gpu)
    scene.job("n1", 0)
    assert scene.even() == [], "three against two: whoever moved would be the third there"


def test_few_tickets_move_away_from_many_and_not_the_other_way_round() -> None:
    scene = Scene(a_site("n1", 1), a_site("n2", 1))
    scene.job("n1", 0, tickets=1000)
    small = scene.job("n1", 0, tickets=10)
    assert [each.resident.need.job_id for each in scene.even()] == [small]


def test_gang_moves_whole_to_gpus_that_all_carry_less() -> None:
    scene = Scene(a_site("n1", 2), a_site("n2", 2), a_site("n3", 2))
    gang = scene.job("n1", 0, 1, tickets=200)
    for gpu in (0, 1):
        scene.job("n1", gpu, tickets=300)
    scene.job("n2", 0, tickets=300)
    assert (gang, (("n3", (0, 1)),)) in moves(scene.even())


def test_full_closed_or_wrong_nodes_are_no_better_place() -> None:
    scene = Scene(
        a_site("n1", 1),
        a_site("closed", 1, is_open=False),
        a_site("small", 1, memory_mib=10),
        a_site("other", 1, partitions=("debug",)),
        a_site("k80", 1, kind="k80"),
    )
    for _ in range(2):
        scene.job("n1", 0, memory_mib=100)
    for n, resident in enumerate(scene.residents):
        scene.residents[n] = replace(resident, need=replace(resident.need, partitions=("gandiva",)))
    assert scene.even() == []


def test_each_move_lowers_the_squares_of_the_loads_until_none_is_left() -> None:
    scene = Scene(a_site("n1", 2, slots=16), a_site("n2", 2, slots=16), a_site("n3", 1, slots=16))
    for n in range(12):
        scene.job("n1", n % 2, tickets=10 + 17 * n)
    energy: list[int] = []
    for _ in range(50):
        board = scene.board()
        energy.append(sum(load**2 for site in board.sites.values() for load in board.loads(site)))
        proposals = scene.even()
        if not proposals:
            break
        home, (place,) = proposals[0].resident, proposals[0].place.parts
        stay = scene.sites[home.place.nodes[0]].stays.pop(home.need.job_id)
        scene.sites[place.node].stays[home.need.job_id] = replace(stay, gpus=place.gpus)
        n = scene.residents.index(home)
        scene.residents[n] = replace(home, place=Place((place,)))
    assert 5 <= len(energy) < 20
    assert energy == sorted(energy, reverse=True)


def test_a_move_must_bring_more_than_it_costs() -> None:
    scene = Scene(a_site("n1", 1), a_site("n2", 1))
    for _ in range(2):
        scene.job("n1", 0)
    proposal = scene.even()[0]
    dear = replace(proposal.resident, cost_ns=proposal.gain_ns // WORTH + 1)
    assert is_worth_it(proposal.resident, proposal.gain_ns)
    assert not is_worth_it(dear, proposal.gain_ns)
    assert not is_worth_it(replace(dear, cost_ns=0), HOUR_NS // 21), "less than a twentieth of a GPU"


# faster types


def mixed(**fields: object) -> Scene:
    scene = Scene(a_site("n1", 1, kind="k80"), a_site("n2", 1))
    scene.job("n1", 0, **fields)
    return scene


def test_job_goes_to_the_type_on_which_it_was_measured_to_be_faster() -> None:
    scene = mixed(rates={"k80": 1.0, "v100": 3.0})
    (proposal,) = scene.faster()
    assert moves([proposal]) == [(1, (("n2", (0,)),))]
    assert proposal.gain_ns == 2 * HOUR_NS


def test_unknown_slower_or_hardly_faster_types_move_nobody() -> None:
    assert mixed(rates={"k80": 1.0}).faster() == []
    assert mixed(rates={"v100": 3.0}).faster() == [], "nor when its own type is the unknown one"
    assert mixed(rates={"k80": 1.0, "v100": 1.2}).faster() == []
    assert mixed(rates={"k80": 3.0, "v100": 1.0}).faster() == []


def test_nobody_pays_with_his_share_for_speed() -> None:
    scene = mixed(rates={"k80": 1.0, "v100": 3.0})
    scene.job("n2", 0)
    assert scene.faster() == []


def test_type_that_was_not_asked_for_is_not_taken() -> None:
    scene = mixed(rates={"k80": 1.0, "v100": 3.0})
    scene.residents = [replace(each, need=replace(each.need, types=("k80",))) for each in scene.residents]
    assert scene.faster() == []


def test_job_goes_to_a_slower_type_that_is_far_less_crowded() -> None:
    """A third of a V100 is less than a whole K80 at half its speed; half of one is not."""
    for others, want in ((2, [(1, (("n2", (0,)),))]), (1, [])):
        scene = Scene(a_site("n1", 1), a_site("n2", 1, kind="k80"))
        scene.job("n1", 0, rates={"v100": 1.0, "k80": 0.5})
        for _ in range(others):
            scene.job("n1", 0, rates={"v100": 1.0, "k80": 0.2})
        assert moves(scene.faster()) == want


# exchange


def apart(up: float, down: float, **fields: object) -> Scene:
    """A job on a K80 and one on a V100, and how many times as fast each is on the V100."""
    scene = Scene(a_site("n1", 1, kind="k80"), a_site("n2", 1))
    scene.job("n1", 0, rates={"k80": 1.0, "v100": up})
    scene.job("n2", 0, rates={"k80": 1.0, "v100": down}, **fields)
    return scene


def test_two_change_places_where_the_one_gains_more_than_the_other_loses() -> None:
    swap = apart(5.0, 1.5).swap()
    assert swap is not None
    assert moves([*swap]) == [(1, (("n2", (0,)),)), (2, (("n1", (0,)),))]
    assert swap.up.gain_ns == swap.down.gain_ns == round(HOUR_NS * (1 - 1 / 5 - (1 - 1 / 1.5)))
    assert "job 1 is 5 times as fast on v100 as on k80, job 2 1.5 times" in swap.up.why[0]


def test_nobody_changes_places_for_little() -> None:
    assert apart(3.0, 3.0).swap() is None
    assert apart(3.0, 2.5).swap() is None
    assert apart(1.5, 5.0).swap() is None
    assert apart(5.0, 1.5, horizon_ns=60 * 10**9).swap() is None, "nor for what costs more than it brings"
    assert apart(5.0, 1.5, bar="it was submitted with --gandiva-migrate=never").swap() is None


def test_a_guaranteed_job_makes_no_way_for_an_opportunistic_one() -> None:
    for up, down, is_done in ((True, False, False), (False, True, True), (True, True, True)):
        scene = Scene(a_site("n1", 1, kind="k80"), a_site("n2", 1))
        scene.job("n1", 0, rates={"k80": 1.0, "v100": 5.0}, is_opportunistic=up)
        scene.job("n2", 0, rates={"k80": 1.0, "v100": 1.5}, is_opportunistic=down)
        assert (scene.swap() is not None) == is_done, (up, down)


def test_of_two_classes_on_a_gpu_the_opportunistic_job_goes_to_the_idle_one() -> None:
    scene = Scene(a_site("n1", 2))
    scene.job("n1", 0)
    assert scene.even() == []
    spare = scene.job("n1", 0, is_opportunistic=True)
    assert moves(scene.even()) == [(spare, (("n1", (1,)),))]


def test_nobody_pays_with_his_share_in_an_exchange() -> None:
    """The one on the K80 has it alone, the V100 is shared by two: there he would have half of his time."""
    scene = apart(5.0, 1.5)
    scene.job("n2", 0, rates={"v100": 1.0})
    assert scene.swap() is None
    scene.job("n1", 0, rates={"k80": 1.0})
    assert scene.swap() is not None, "two on each"


def test_who_exchanges_finds_room_beside_the_other() -> None:
    scene = Scene(a_site("n1", 1, kind="k80", slots=1), a_site("n2", 1))
    scene.job("n1", 0, rates={"k80": 1.0, "v100": 5.0})
    scene.job("n2", 0, rates={"k80": 1.0, "v100": 1.5})
    assert scene.swap() is None


def test_after_all_exchanges_those_with_the_largest_gains_are_on_the_fast_type() -> None:
    scene = Scene(a_site("n1", 4, kind="k80"), a_site("n2", 4))
    for gpu, gains in enumerate((2.0, 7.0, 3.0, 6.0)):
        scene.job("n1", gpu, rates={"k80": 1.0, "v100": gains})
        scene.job("n2", gpu, rates={"k80": 1.0, "v100": gains + 0.5})
    swaps = 0
    while swap := scene.swap():
        scene.change(swap)
        swaps += 1
    fast = sorted(each.rates["v100"] for each in scene.residents if each.gpu_type == "v100")
    assert (swaps, fast) == (2, [6.0, 6.5, 7.0, 7.5])


@pytest.mark.parametrize("seed", range(12))
def test_moves_and_exchanges_come_to_an_end(seed: int) -> None:
    """All rates known, jobs wherever chance put them: however they are moved, it ends, and soon."""
    rng = random.Random(seed)
    kinds = ("k80", "p100", "v100")
    scene = Scene(*(a_site(f"n{n}", 4, kind=kinds[n % 3]) for n in range(6)))
    for _ in range(24):
        size, node = rng.choice((1, 1, 1, 2, 4)), rng.choice([*scene.sites.values()])
        rates = {kind: rng.choice((1.0, 1.2, 2.0, 5.0)) for kind in kinds}
        free = node.free_gpus(a_leaf(0))
        if len(free) >= size:
            tickets = rng.choice((50, 100, 150))
            scene.job(node.name, *rng.sample(free, size), tickets=tickets, rates=rates)
    for done in range(8 * len(scene.residents)):
        single = [
            each for each in (*scene.faster(), *scene.even()) if is_worth_it(each.resident, each.gain_ns)
        ]
        found = single[:1] or scene.swap()
        if not found:
            assert done > 3
            return
        scene.change(found)
    pytest.fail("they go on for ever")


# room for a gang


def a_gang(gpus: int, memory_mib: int = 0) -> Need:
    return Need(99, a_leaf(99), gpus, 100, (0, 99), memory_mib=memory_mib)


def test_cheapest_move_that_makes_room_is_found() -> None:
    scene = Scene(a_site("n1", slots=1), a_site("n2", slots=1))
    scene.job("n1", 0, cost_ns=90)
    cheap = scene.job("n2", 1, cost_ns=30)
    found = scene.clear(a_gang(2))
    assert found is not None
    assert [move.resident.need.job_id for move in found.moves] == [cheap]
    assert found.place.parts == (("n2", (0, 1)),)
    assert moves(list(found.moves)) == [(cheap, (("n1", (1,)),))]


def test_several_move_for_one_gang_or_none() -> None:
    scene = Scene(a_site("n1", 4, slots=1), a_site("n2", 4, slots=1))
    for node in ("n1", "n2"):
        for gpu in (0, 1):
            scene.job(node, gpu)
    found = scene.clear(a_gang(4))
    assert found is not None
    assert len(found.moves) == 2
    assert {move.resident.place.nodes[0] for move in found.moves} == {found.place.parts[0].node}
    scene.job("n1", 2)
    scene.job("n2", 2)
    assert scene.clear(a_gang(4)) is None, "three would have to move to one place"


def test_room_is_made_in_memory_too() -> None:
    scene = Scene(a_site("n1", memory_mib=1000), a_site("n2", memory_mib=500))
    scene.job("n1", 0, memory_mib=100)
    big = scene.job("n1", 1, memory_mib=400)
    found = scene.clear(a_gang(1, memory_mib=800))
    assert found is not None
    assert [move.resident.need.job_id for move in found.moves] == [big]


def test_who_must_not_move_is_named_and_taken_last() -> None:
    scene = Scene(a_site("n1", slots=1), a_site("n2", slots=1))
    barred = scene.job("n1", 0, bar="it is young")
    free = scene.job("n2", 1)
    found = scene.clear(a_gang(2))
    assert found is not None
    assert [move.resident.need.job_id for move in found.moves] == [free]
    scene.residents[1] = replace(scene.residents[1], bar="it is young, too")
    found = scene.clear(a_gang(2))
    assert found is not None
    assert [each.need.job_id for each in found.bars] == [barred]


def test_nobody_makes_room_at_a_great_loss() -> None:
    scene = Scene(a_site("n1", 2, slots=1), a_site("n2", 1))
    scene.job("n1", 0)
    scene.job("n2", 0, tickets=900)
    assert scene.clear(a_gang(2)) is None


def test_room_is_not_made_for_gangs_of_several_nodes() -> None:
    scene = Scene(a_site("n1", slots=1), a_site("n2", slots=1))
    scene.job("n1", 0)
    scene.job("n2", 1)
    assert scene.clear(replace(a_gang(1), nodes=2)) is None


# over nodes


def a_span(scene: Scene, *parts: tuple[str, tuple[int, ...]], **fields: object) -> int:
    """A job with these GPUs of several nodes."""
    node, gpus = parts[0]
    job_id = scene.job(node, *gpus, **fields)  # type: ignore[arg-type]
    old = scene.residents[-1]
    need = replace(old.need, nodes=len(parts))
    for name, gpus in parts:
        scene.sites[name].stays[job_id] = need.stay(gpus)
    scene.residents[-1] = replace(old, need=need, place=Place(tuple(NodeGpus(*part) for part in parts)))
    return job_id


def test_a_span_goes_to_a_faster_type_where_all_its_parts_find_room() -> None:
    sites = [a_site(f"k{n}", 2, kind="k80") for n in (1, 2)] + [a_site(f"v{n}", 2) for n in (1, 2)]
    scene = Scene(*sites)
    a_span(scene, ("k1", (0, 1)), ("k2", (0, 1)), rates={"k80": 1.0, "v100": 3.0})
    (move,) = scene.faster()
    assert move.place.parts == (NodeGpus("v1", (0, 1)), NodeGpus("v2", (0, 1)))
    assert move.why[0].endswith("GPU 0,1 of v1 and GPU 0,1 of v2 carries no more tickets")
    scene.sites["v2"].is_open = False
    assert scene.faster() == [], "half of it there is nothing"


def test_a_span_leaves_crowded_gpus_and_may_keep_one_of_its_nodes() -> None:
    scene = Scene(a_site("n1", 1), a_site("n2", 1), a_site("n3", 1))
    job_id = a_span(scene, ("n1", (0,)), ("n2", (0,)))
    scene.job("n1", 0)
    moves = {move.resident.need.job_id: move.place.nodes for move in scene.even()}
    assert moves[job_id] == ("n2", "n3")


def test_a_span_makes_room_with_all_of_its_parts() -> None:
    scene = Scene(*(a_site(f"n{n}", 2, slots=1) for n in (1, 2, 3)))
    a_span(scene, ("n1", (0,)), ("n2", (0,)))
    need = Need(99, a_leaf(8), 2, 100, (0, 99))
    scene.job("n3", 0)
    found = scene.clear(need)
    assert found is not None and len(found.moves) == 1
    (move,) = found.moves
    assert move.resident.need.job_id in (1, 2)
    assert set(found.place.nodes).isdisjoint(move.place.nodes)


def test_two_spans_of_one_shape_change_places_between_types() -> None:
    sites = [a_site(f"k{n}", 1, kind="k80") for n in (1, 2)] + [a_site(f"v{n}", 1) for n in (1, 2)]
    scene = Scene(*sites)
    up = a_span(scene, ("k1", (0,)), ("k2", (0,)), rates={"k80": 1.0, "v100": 5.0})
    a_span(scene, ("v1", (0,)), ("v2", (0,)), rates={"k80": 1.0, "v100": 1.2})
    swap = scene.swap()
    assert swap is not None and swap.up.resident.need.job_id == up
    assert (swap.up.place.nodes, swap.down.place.nodes) == (("v1", "v2"), ("k1", "k2"))
    scene.residents[0] = replace(scene.residents[0], place=Place((NodeGpus("k1", (0,)),)))
    assert scene.swap() is None, "of another shape"
