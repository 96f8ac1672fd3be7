"""policy.placement: balance, slots, and who comes first."""

from __future__ import annotations

from gandiva_slurm.policy.placement import Board, Need, NodeGpus, Place, Site, Stay, node_order
from gandiva_slurm.policy.shares import Leaf
from tests.builders import ACCOUNT, TICKET, place_all


def need(job_id: int, user: str = "ann", gpus: int = 1, **fields: object) -> Need:
    return Need(job_id, Leaf(ACCOUNT, user), gpus, 100, (job_id,), **fields)  # type: ignore[arg-type]


def site(name: str = "n1", gpus: int = 4, **fields: object) -> Site:
    return Site(name, "v100", gpus, slots_per_gpu=4, **fields)  # type: ignore[arg-type]


def board(*sites: Site, **tickets: int) -> Board:
    users = {"ann": 100, "ben": 100, "cat": 100, "dan": 100} | tickets
    return Board(sites, {Leaf(ACCOUNT, user): parts * TICKET for user, parts in users.items()})


def gpus_of(places: dict[int, Place]) -> dict[int, tuple[int, ...]]:
    return {job_id: place.parts[0].gpus for job_id, place in places.items()}


def at(node: str, *gpus: int) -> Place:
    """A place on one node."""
    return Place((NodeGpus(node, gpus),))


SINGLES = [need(n, "ben") for n in (2, 3, 4, 5)]


def test_gang_and_singles_of_equal_users_share_no_gpu() -> None:
    """One 2-GPU job of one user, then four 1-GPU jobs of another: two on each of the other GPUs."""
    want = {1: (0, 1), 2: (2,), 3: (3,), 4: (2,), 5: (3,)}
    assert gpus_of(place_all(board(site()), [need(1, "ann", 2), *SINGLES])) == want


def test_the_same_comes_out_when_they_arrive_one_by_one() -> None:
    wall = board(site())
    places: dict[int, Place] = {}
    for job in [need(1, "ann", 2), *SINGLES]:
        places |= place_all(wall, [job])
    assert gpus_of(places) == {1: (0, 1), 2: (2,), 3: (3,), 4: (2,), 5: (3,)}


def test_a_late_gang_goes_around_early_singles() -> None:
    wall = board(site())
    first = place_all(wall, SINGLES[:2])
    gang = place_all(wall, [need(1, "ann", 2)])
    assert gpus_of(first) == {2: (0,), 3: (1,)}
    assert gpus_of(gang) == {1: (2, 3)}


def test_larger_gangs_go_first_between_equals() -> None:
    places = place_all(board(site()), [need(1, "ann", 2), *SINGLES, need(9, "cat", 4)])
    assert list(places) == [9, 1, 2, 3, 4, 5]


def test_the_emptier_node_wins_then_the_first_by_name() -> None:
    wall = board(site("n1"), site("n2"))
    assert place_all(wall, [need(1)])[1] == at("n1", 0)
    assert place_all(wall, [need(2, "ben")])[2] == at("n2", 0)
    assert place_all(wall, [need(3, "cat")])[3] == at("n1", 1), "an idle GPU before any shared one"


def test_idle_gpus_count_more_than_a_node_of_little_load() -> None:
    """n1 is loaded more in all, but on one GPU; n2's GPUs all have a little. Work goes to idle GPUs."""
    busy = site("n1", stays={1: Stay(1, Leaf(ACCOUNT, "ann"), (0,), 1)})
    poor = {n: Stay(n, Leaf(ACCOUNT, "ben"), (n - 2,), 1) for n in (2, 3, 4, 5)}
    wall = board(busy, site("n2", stays=poor), ben=10)
    assert place_all(wall, [need(9, "cat")])[9] == at("n1", 1)


def test_user_with_fewest_gpus_for_his_tickets_goes_first() -> None:
    """A hundred jobs of one user do not come before the first of another."""
    jobs = [need(n, "ann") for n in range(20)] + [need(50 + n, "ben") for n in range(3)]
    order = [1 if job_id >= 50 else 0 for job_id in place_all(board(site()), jobs)]
    assert order[:6] == [0, 1, 0, 1, 0, 1]


def test_priority_orders_a_users_own_jobs() -> None:
    places = place_all(board(site()), [need(1), need(2, gpus=4), need(3, priority=90)])
    assert list(places) == [3, 2, 1]


def test_last_slot_of_a_gpu_is_kept_for_users_not_on_it() -> None:
    wall = board(site())
    assert len(place_all(wall, [need(n) for n in range(100)])) == 12
    assert len(place_all(wall, [need(100 + n, "ben") for n in range(100)])) == 4
    assert place_all(wall, [need(300, "cat")]) == {}


def test_one_slot_per_gpu_is_usable() -> None:
    wall = Board([Site("n1", "v100", 2, slots_per_gpu=1)], {Leaf(ACCOUNT, "ann"): TICKET})
    assert len(place_all(wall, [need(1), need(2), need(3)])) == 2


def test_memory_of_parked_jobs_bounds_a_node() -> None:
    wall = board(site(memory_mib=1000))
    places = place_all(wall, [need(1, memory_mib=600), need(2, memory_mib=600), need(3, memory_mib=400)])
    assert sorted(places) == [1, 3]


def test_what_slurm_does_not_tell_bounds_nothing() -> None:
    assert place_all(board(site(memory_mib=0, cpus=0)), [need(1, memory_mib=10**9, cpus=10**6)])


def test_type_partition_size_and_health_are_respected() -> None:
    k80 = Site("k1", "k80", 8, 4, cpus=8, partitions=("gandiva",))
    down = site("n1", is_open=False)
    wall = board(k80, down)
    jobs = [
        need(1, types=("v100",)),
        need(2, gpus=9),
        need(3, cpus=9),
        need(4, partitions=("other",)),
        need(5, types=("v100", "k80"), partitions=("other", "gandiva")),
    ]
    assert place_all(wall, jobs) == {5: at("k1", 0)}


def test_resident_on_unknown_gpus_takes_a_slot_of_each() -> None:
    stay = Stay(1, Leaf(ACCOUNT, "ann"), (), 100)
    wall = Board([Site("n1", "v100", 1, 2, stays={1: stay})], {})
    assert place_all(wall, [need(2, "ben")])
    assert place_all(wall, [need(3, "cat")]) == {}


def test_running_job_is_bound_even_where_all_is_full() -> None:
    home = site()
    wall = board(home)
    place_all(wall, [need(n) for n in range(12)])
    place_all(wall, [need(50 + n, "ben") for n in range(4)])
    home.stays[99] = Stay(99, Leaf(ACCOUNT, "cat"), (), 100)
    assert wall.bind(need(99, "cat", 2), home) == (0, 1)
    assert wall.bind(need(98, "cat", 5), home) == ()


def test_running_job_is_bound_where_nothing_is_but_kept_before_where_all_slots_are_taken() -> None:
    cat = Leaf(ACCOUNT, "cat")
    living = {1: Stay(1, cat, (0,), 100), 2: Stay(2, cat, (0,), 100, is_leaving=True)}
    kept = {-3: Stay(3, cat, (1,), 100), -4: Stay(4, cat, (1,), 100)}
    home = Site("n1", "v100", 2, 2, stays={**living, **kept})
    assert Board([home], {}).bind(need(99, "cat"), home) == (1,)


# jobs of several nodes


def test_gang_over_nodes_takes_the_best_of_them() -> None:
    """n2 is the busiest; the others are taken, each with its least loaded GPUs."""
    busy = {n: Stay(n, Leaf(ACCOUNT, "ben"), (n,), 1) for n in range(4)}
    light = {9: Stay(9, Leaf(ACCOUNT, "ben"), (0,), 1)}
    wall = board(site("n1", stays=light), site("n2", stays=busy), site("n3"))
    place = place_all(wall, [need(50, "ann", 2, nodes=2)])[50]
    assert place == Place((NodeGpus("n1", (1, 2)), NodeGpus("n3", (0, 1))))


def test_gang_over_nodes_stays_within_one_type() -> None:
    k80s = [Site(name, "k80", 4, 4) for name in ("k1", "k2")]
    wall = board(site("n1"), *k80s, ben=1)
    place_all(wall, [need(1, "ben", 4, types=("k80",))])
    assert place_all(wall, [need(2, gpus=1, nodes=2)])[2].nodes == ("k1", "k2"), "the only type with two"
    assert place_all(wall, [need(3, gpus=1, nodes=3)]) == {}


def test_gang_over_nodes_takes_the_type_of_less_load() -> None:
    loaded = Stay(9, Leaf(ACCOUNT, "ben"), (0, 1, 2, 3), 1)
    v100s = [site("n1"), site("n2", stays={9: loaded})]
    k80s = [Site(name, "k80", 4, 4) for name in ("x1", "x2")]
    assert place_all(board(*v100s, *k80s), [need(2, nodes=2)])[2].nodes == ("x1", "x2")


def test_load_of_a_gang_over_nodes_counts_once() -> None:
    """Its tickets lie on all its GPUs: a GPU of two nodes' gang of four is as loaded as one of four here."""
    spread, alone = board(site("n1"), site("n2")), board(site("n1"))
    place_all(spread, [need(1, "ann", 2, nodes=2), need(2, "ben")])
    place_all(alone, [need(1, "ann", 4), need(2, "ben")])
    (gang,) = set(spread.loads(spread.sites["n2"])) - {0}
    assert gang == alone.loads(alone.sites["n1"])[1]
    assert spread.gpus_of("ann") == alone.gpus_of("ann") == 4


def test_larger_counts_all_nodes() -> None:
    wall = board(site("n1"), site("n2"))
    assert list(place_all(wall, [need(1, "ann", 3), need(2, "ben", 2, nodes=2)])) == [2, 1]


def test_gang_over_nodes_finds_no_half_place() -> None:
    wall = board(site("n1"), site("n2", is_open=False), site("n3", memory_mib=100))
    assert place_all(wall, [need(1, memory_mib=200, nodes=2)]) == {}
    assert all(not home.stays for home in wall.sites.values())
    assert place_all(wall, [need(2, memory_mib=90, nodes=2)])[2].nodes == ("n1", "n3")


def test_nodes_come_in_the_order_of_their_numbers() -> None:
    names = ["gpu10", "gpu9", "gpu9b", "a", "gpu010"]
    assert sorted(names, key=node_order) == ["a", "gpu9", "gpu9b", "gpu010", "gpu10"]
