"""Ours on any small cluster: legal plans, nobody waits beside idle GPUs, every job ends, no surprises."""

from dataclasses import replace

from gandiva_slurm.policy import gandiva, gandiva_fair
from tests.policy_world import SETTINGS, Case, PolicyWorld, a_job, check_on, conserving_with_homes, on_cases


@on_cases(150)
def test_gandiva_fair_is_legal_conserving_and_the_same_twice(case: Case) -> None:
    check_on(case, gandiva_fair.make, conserving_with_homes)


@on_cases(60)
def test_gandiva_is_legal_conserving_and_the_same_twice(case: Case) -> None:
    check_on(case, gandiva.make, conserving_with_homes)


def test_a_job_refused_once_is_not_shut_out_by_another_that_comes_in_its_place() -> None:
    """A gang too large for what is left, beside one that cannot move and one that takes one type alone."""
    first = a_job(1, 2, length_s=300, can_migrate=False, can_pack=False)
    short = [a_job(number, 1, length_s=1, can_pack=False) for number in (2, 4, 5, 6, 7, 8, 9)]
    late = a_job(3, 2, at_s=60, length_s=1, gpu_types=("slow",), can_pack=False)
    gang = a_job(10, 3, length_s=1, can_pack=False)
    shape = (("slow", 4), ("fast", 2))
    world = PolicyWorld(shape, gandiva_fair.make(SETTINGS), check=conserving_with_homes)
    world.run([first, *short, late, gang])
    assert len(world.ends_ns) == 10


def test_a_parked_gang_is_not_bound_where_its_cell_is_cut_up_for_others() -> None:
    """A virtual cluster's whole node cannot be one in which another has a GPU."""
    ones = [a_job(number, 1, length_s=1, can_pack=False) for number in (1, 3, 5, 7, 8)]
    pair, fixed = a_job(2, 2, length_s=2000), a_job(4, 2, length_s=2000, can_pack=False, can_migrate=False)
    gang = a_job(6, 4, length_s=1, vc="x")
    spare = a_job(9, 4, at_s=60, length_s=300, job_class="opportunistic", can_pack=False)
    late = a_job(10, 4, at_s=250, length_s=300, user="w")
    shape, down = (("fast", 4), ("fast", 4), ("fast", 2), ("fast", 4)), ((271, 455, (10, 11, 12, 13)),)
    world = PolicyWorld(shape, gandiva_fair.make(SETTINGS), outages=down, check=conserving_with_homes)
    world.run([*ones, pair, fixed, gang, spare, late])
    assert len(world.ends_ns) == 10


def test_a_choosy_job_does_not_wait_beside_idle_gpus_for_one_that_finds_no_seat() -> None:
    """Job 2 was to have four GPUs of the fast type, two of which were another's."""
    stays = a_job(2, 4, length_s=1, min_size=1, max_size=4, can_pack=False, can_migrate=False)
    small = [a_job(number, length_s=1, can_pack=False) for number in range(3, 9)]
    owned = a_job(9, 2, length_s=30, can_pack=False, vc="x")
    choosy = a_job(1, 1, 10, 1, can_pack=False, job_class="opportunistic", gpu_types=("fast",))
    shape = (("fast", 2), ("fast", 4), ("slow", 2))
    for make in (gandiva.make, gandiva_fair.make):
        world = PolicyWorld(shape, make(SETTINGS), check=conserving_with_homes)
        world.run([replace(job) for job in (choosy, stays, *small, owned)])
        assert len(world.ends_ns) == 9


def test_a_job_that_may_be_in_pieces_does_not_wait_for_one_that_needs_a_node() -> None:
    """Job 2 is to stay where it begins, and no node has three GPUs left; they are refused one by one."""
    stays = a_job(2, 3, length_s=1, can_pack=False, can_migrate=False)
    gang = a_job(3, 3, length_s=1, can_pack=False)
    small = [a_job(number, length_s=1, can_pack=False) for number in (1, 4, 5, 6)]
    owned = a_job(7, length_s=1, can_pack=False, vc="x")
    shape = (("fast", 4), ("slow", 4), ("fast", 2), ("fast", 2))
    world = PolicyWorld(shape, gandiva_fair.make(SETTINGS), check=conserving_with_homes)
    world.run([stays, gang, *small, owned])
    assert len(world.ends_ns) == 7
