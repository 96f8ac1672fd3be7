"""Seats: gangs on one node, jobs where they were, small ones out of the way."""

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.policy.placement.seats import Guest, seat_all
from gandiva_slurm.policy.port import Cluster

TWO = Cluster([("v100", 4), ("v100", 4)])


def test_a_job_keeps_its_gpus() -> None:
    assert seat_all(TWO, frozenset(), [Guest(1, 2, "v100", (5, 6)), Guest(2, 1, "v100")]) == {
        1: (5, 6),
        2: (4,),  # beside the other: the empty node is kept whole
    }


def test_small_jobs_make_room_for_a_gang() -> None:
    apart = [Guest(1, 1, "v100", (0,), True), Guest(2, 1, "v100", (4,), True)]
    seats = seat_all(TWO, frozenset(), [*apart, Guest(3, 4, "v100")])
    assert len(seats) == 3
    assert len(TWO.hosts_of(seats[3])) == 1
    assert TWO.hosts_of(seats[1]) == TWO.hosts_of(seats[2]) != TWO.hosts_of(seats[3])


def test_of_two_that_were_on_one_gpu_the_running_one_keeps_it() -> None:
    seats = seat_all(TWO, frozenset(), [Guest(1, 1, "v100", (0,)), Guest(2, 1, "v100", (0,), True)])
    assert seats[2] == (0,)
    assert seats[1] != (0,)


def test_gpus_that_are_down_are_not_used() -> None:
    seats = seat_all(TWO, frozenset({0, 1, 2, 3, 4}), [Guest(1, 1, "v100", (0,)), Guest(2, 4, "v100")])
    assert seats == {1: (5,)}


def test_a_gang_larger_than_a_node_spans_as_few_as_it_can() -> None:
    cluster = Cluster([("v100", 4), ("v100", 4), ("v100", 4)])
    seats = seat_all(cluster, frozenset(), [Guest(1, 8, "v100"), Guest(2, 1, "v100", (0,), True)])
    assert len(cluster.hosts_of(seats[1])) == 2
    assert seats[2] == (0,)


@given(st.lists(st.sampled_from([1, 2, 4]), max_size=16))
def test_gangs_of_powers_of_two_fit_whenever_their_sum_does(sizes: list[int]) -> None:
    cluster = Cluster([("v100", 4)] * 4)
    guests, room = [], 16
    for number, size in enumerate(sizes):
        if size <= room:
            room -= size
            first = (number * 7) % (17 - size)
            gpus = tuple(range(first, first + size))
            whole = gpus if number % 3 and len(cluster.hosts_of(gpus)) == 1 else ()
            guests.append(Guest(number, size, "v100", whole, bool(number % 2)))
    seats = seat_all(cluster, frozenset(), guests)
    assert seats.keys() == {guest.job_id for guest in guests}
    used = [gpu for gpus in seats.values() for gpu in gpus]
    assert len(used) == len(set(used))
    assert all(len(cluster.hosts_of(gpus)) == 1 for gpus in seats.values())


def test_a_gang_over_nodes_has_as_many_gpus_on_each() -> None:
    cluster = Cluster([("v100", 4), ("v100", 4), ("v100", 2)])
    guests = [Guest(1, 4, "v100", nodes=2), Guest(2, 3, "v100", (0, 1, 2), True)]
    seats = seat_all(cluster, frozenset(), guests)
    assert cluster.are_even(seats[1], 2) and seats[2] == (0, 1, 2)
    assert seat_all(cluster, frozenset(), [Guest(1, 4, "v100", nodes=4)]) == {}, "there are three nodes"
    assert seat_all(cluster, frozenset(), [Guest(1, 5, "v100", nodes=2)]) == {}, "five are not even on two"


def test_where_not_all_fit_whole_the_lower_rank_has_its_place() -> None:
    cluster = Cluster([("v100", 2), ("v100", 1), ("v100", 1)])
    first = Guest(1, 2, "v100", (0, 1), True, cell="node", rank=1)
    second = Guest(2, 2, "v100", cell="node", rank=0)
    assert seat_all(cluster, frozenset(), [first, second]) == {2: (0, 1)}
    later = Guest(2, 2, "v100", cell="node", rank=2)
    assert seat_all(cluster, frozenset(), [first, later]) == {1: (0, 1)}
