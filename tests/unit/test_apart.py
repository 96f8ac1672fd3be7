"""Gangs in pieces go together where a node has room at a turn; those far behind on a slow type go first."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.moves.behind import far_behind
from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.placement.seating import Seating
from gandiva_slurm.policy.port import JobView, View
from gandiva_slurm.policy.shares.rounds import Runs, Wanted
from gandiva_slurm.slicing.turns import Turns
from tests.policy_world import FixedRates, S, a_job, a_view, running

#: A gang's mini-batches a second on one node, and in pieces on two, by GPU type.
NEAR, IN_PIECES = {"v100": 9.0, "k80": 4.0}, {"v100": 2.0, "k80": 2.0}
SHAPE = (("v100", 2), ("v100", 2), ("v100", 2))


class Rates(FixedRates):
    """Gangs lose in pieces, but those of the model "calm"."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        whole = NEAR[gpu_type] * size / 2
        return whole if is_local or model == "calm" else IN_PIECES[gpu_type]


def merit_of(view: View, restart_s: int = 8) -> Merit:
    merit = Merit(view.cluster, Pace(60 * S, 0, restart_s * S), by_type=True)
    merit.set_members(view.jobs, dict.fromkeys(view.jobs, 0.5))
    merit.learn(view, {}, 0)
    return merit


def seated(view: View, is_turn: bool = True, restart_s: int = 8) -> Runs:
    """Seat all jobs of a view, in their order."""
    seating = Seating(view, merit_of(view, restart_s), frozenset(view.jobs), is_turn, is_dear=False)
    return seating.anywhere(view.down)([Wanted(job, job.size) for job in view.jobs.values()], {})


def in_pieces(job_id: int, gpus: tuple[int, ...], **more: object) -> JobView:
    return running(a_job(job_id, 2, **{"model": "a", **more}), gpus)


def test_a_gang_goes_together_where_a_node_has_room_now() -> None:
    assert seated(a_view(SHAPE, [in_pieces(0, (1, 2))], rates=Rates())) == {0: (0, 1)}


@pytest.mark.parametrize(
    ("job", "is_turn", "down"),
    [
        (in_pieces(0, (1, 2)), False, ()),
        (in_pieces(0, (1, 2)), True, (0, 3, 4)),
        (in_pieces(0, (1, 2), model="calm"), True, ()),
        (in_pieces(0, (1, 2), can_migrate=False), True, ()),
        (in_pieces(0, (1, 2), nodes=2), True, ()),
    ],
    ids=[
        "in mid-turn",
        "no node has room",
        "it loses nothing in pieces",
        "it cannot move",
        "it asked for two",
    ],
)
def test_it_stays_in_pieces(job: JobView, is_turn: bool, down: tuple[int, ...]) -> None:
    assert seated(a_view(SHAPE, [job], rates=Rates(), down=down), is_turn) == {0: job.gpus}


def test_two_go_together_where_that_makes_room_for_both() -> None:
    both = [in_pieces(0, (0, 2)), in_pieces(1, (1, 3))]
    found = seated(a_view(SHAPE, both, rates=Rates()))
    assert all(gpus in ((0, 1), (2, 3), (4, 5)) for gpus in found.values())


def test_of_two_for_one_node_one_goes_and_the_other_stays() -> None:
    fixed = [running(a_job(n, model="calm", can_migrate=False), (n,)) for n in (1, 3, 5, 7)]
    both = [in_pieces(10, (0, 2)), in_pieces(11, (4, 6))]
    found = seated(a_view((("v100", 2),) * 5, [*fixed, *both], rates=Rates()))
    assert {found[10], found[11]} in ({(8, 9), (4, 6)}, {(8, 9), (0, 2)})


def test_where_one_may_not_be_it_keeps_none_from_going() -> None:
    first = in_pieces(0, (0, 2), hosts=frozenset({0, 1}))
    fixed = [running(a_job(n, model="calm", can_migrate=False), (n,)) for n in (1, 3, 5)]
    other = in_pieces(6, (4, 6))
    found = seated(a_view((("v100", 2),) * 5, [*fixed, first, other], rates=Rates()))
    assert found[0] == (0, 2) and found[6] in ((6, 7), (8, 9))


def test_one_that_has_no_seat_stops_none_of_the_others() -> None:
    shape = (("k80", 2), ("k80", 2), ("v100", 1))
    gang = in_pieces(0, (0, 2), hosts=frozenset({0}))
    found = seated(a_view(shape, [gang, a_job(1)], rates=Rates(), down=(0, 1)))
    assert found == {1: (4,)}, "the node where the gang may be is down"
    may = frozenset({1, 2})
    jobs = [in_pieces(0, (2, 5), hosts=may), a_job(1, 2, hosts=frozenset({1}))]
    found = seated(a_view(SHAPE, jobs, rates=Rates(), down=(4,)))
    assert found == {1: (2, 3)}, "another has the node where the gang would go together"


def test_one_does_not_go_where_another_would_lose_its_seat() -> None:
    shape = (("k80", 1), ("v100", 4), ("v100", 2))
    here = frozenset({0, 1})
    gang = running(a_job(2, 4, model="a", hosts=here), (1, 2, 3, 5))
    jobs = [a_job(0, model="a"), a_job(1, model="a"), gang, a_job(3, model="a", hosts=here)]
    assert seated(a_view(shape, jobs, rates=Ones())).keys() == {0, 1, 2, 3}


class Ones(FixedRates):
    """One GPU or more, one type or another: only pieces are slow."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return 1.0 if is_local else 0.1


def test_one_that_begins_takes_a_slower_type_before_pieces_of_a_faster() -> None:
    others = [running(a_job(n, model="calm", can_migrate=False), (gpu,)) for n, gpu in ((1, 0), (2, 2))]
    shape = (("v100", 2), ("v100", 2), ("k80", 2))
    found = seated(a_view(shape, [*others, a_job(3, 2, model="a")], rates=Rates()))
    assert found[3] == (4, 5)


def behind(ahead_s: int, gpu: int = 2, can_migrate: bool = True, did: bool = False) -> list[int]:
    """Ask of one job that has lived for an hour on a GPU, its user ahead of another by GPU-seconds."""
    jobs = [running(a_job(1, model="m", user="ann", can_migrate=can_migrate), (gpu,)), a_job(2, user="bob")]
    view = a_view((("v100", 2), ("k80", 2)), jobs, rates=Slow())
    merit = merit_of(view)
    for gpu_type in ("v100", "k80"):
        merit.learn(view, {1: gpu_type}, 0)
    merit.set_members(view.jobs, {1: 0.5, 2: 0.5})
    merit.run(view, {1: (0,)} if did else {})
    merit.learn(view, {}, 3600 * S)
    merit.set_members(view.jobs, {1: 0.5, 2: 0.5})
    turns = Turns()
    turns.set_members({"ann": 1, "bob": 1}, {"ann": {1: 1}, "bob": {2: 1}})
    turns.charge("ann", 1, ahead_s * S)
    return [job.job_id for job in far_behind(view.jobs.values(), merit, view.cluster, turns, 100 * S)]


class Slow(FixedRates):
    """A k80 does a tenth of what a v100 does."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return {"v100": 10.0, "k80": 1.0}[gpu_type]


def test_one_that_is_far_behind_on_a_slow_type_goes_first() -> None:
    assert behind(ahead_s=0) == [1]
    assert behind(ahead_s=100) == [1]


def test_it_does_not_where_that_would_not_help_it_or_is_not_due_to_its_user() -> None:
    assert behind(ahead_s=0, gpu=0) == [], "on a fast type"
    assert behind(ahead_s=0, did=True) == [], "not behind"
    assert behind(ahead_s=0, can_migrate=False) == []
    assert behind(ahead_s=101) == [], "its user has had a turn of it beyond the other's"
