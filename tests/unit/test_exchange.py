"""GPU types by gain: whoever gains most is on the fast ones, gangs too, and nobody moves for nothing."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.policy.moves.exchange import Exchange, Seeker

FAST = {"v100": 4, "k80": 4}


def settle(seekers: list[Seeker], room: dict[str, int] | None = None) -> dict[int, str]:
    return Exchange(seekers, room or FAST).settle(100)


def total(seekers: list[Seeker], at: dict[int, str]) -> float:
    return sum(seeker.worth[at[seeker.job_id]] for seeker in seekers if seeker.job_id in at)


def test_the_greater_gain_has_the_fast_type() -> None:
    slow = [Seeker(n, 1, {"v100": 1.0, "k80": 0.9}, "v100") for n in range(4)]
    quick = [Seeker(n, 1, {"v100": 1.0, "k80": 0.1}, "k80") for n in range(4, 8)]
    at = settle(slow + quick)
    assert {at[n] for n in range(4)} == {"k80"}
    assert {at[n] for n in range(4, 8)} == {"v100"}


def test_a_gang_gives_way_to_four_who_gain_more_and_comes_back_when_they_do_not() -> None:
    gang = Seeker(9, 4, {"v100": 1.0, "k80": 0.5}, "v100")
    more = [Seeker(n, 1, {"v100": 1.0, "k80": 0.8}, "k80") for n in range(4)]
    assert settle([gang, *more])[9] == "k80"
    less = [Seeker(n, 1, {"v100": 1.0, "k80": 0.9}, "v100") for n in range(4)]
    away = Seeker(9, 4, {"v100": 1.0, "k80": 0.5}, "k80")
    assert settle([away, *less])[9] == "v100"


def test_equal_jobs_stay_where_they_are() -> None:
    same = [Seeker(n, 1, {"v100": 1.0, "k80": 0.3}, "v100" if n % 2 else "k80") for n in range(8)]
    assert settle(same) == {n: "v100" if n % 2 else "k80" for n in range(8)}


def test_a_type_that_is_refused_is_never_given() -> None:
    only = Seeker(1, 4, {"v100": 0.1})
    at = settle([only, Seeker(2, 4, {"v100": 1.0, "k80": 0.0}, "v100")])
    assert at == {1: "v100", 2: "k80"}


def test_room_is_never_exceeded_and_whoever_finds_none_is_left_out() -> None:
    at = settle([Seeker(n, 4, {"v100": 1.0, "k80": 1.0}) for n in range(3)])
    assert sorted(at.values()) == ["k80", "v100"]


def test_of_those_that_take_one_type_alone_the_lowest_rank_has_it() -> None:
    there = Seeker(1, 4, {"v100": 1.0}, "v100", rank=2)
    comer = Seeker(2, 4, {"v100": 1.0}, rank=1)
    assert settle([there, comer]) == {2: "v100"}
    easy = Seeker(3, 4, {"v100": 1.0, "k80": 0.9}, "v100", rank=0)
    assert settle([easy, comer]) == {2: "v100", 3: "k80"}, "that one can go elsewhere"


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=8
    )
)
def test_no_single_exchange_of_two_equal_sizes_is_left(rows: list[tuple[int, int, int]]) -> None:
    seekers = [Seeker(n, size, {"v100": a / 10, "k80": b / 10}) for n, (size, a, b) in enumerate(rows)]
    room = {"v100": 8, "k80": 8}
    at = settle(seekers, room)
    for gpu_type, count in room.items():
        assert sum(seeker.size for seeker in seekers if at.get(seeker.job_id) == gpu_type) <= count
    placed = [seeker for seeker in seekers if seeker.job_id in at]
    for first, second in itertools.combinations(placed, 2):
        if first.size == second.size:
            changed = at | {first.job_id: at[second.job_id], second.job_id: at[first.job_id]}
            assert total(seekers, changed) <= total(seekers, at) + 1e-9
