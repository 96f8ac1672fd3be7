"""Seating: a newcomer does not take the GPUs of a job that may be picked yet, while others are free."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.placement.seating import Seating
from gandiva_slurm.policy.port import View
from gandiva_slurm.policy.shares.rounds import Wanted
from tests.policy_world import S, a_job, a_view, running


def seating(view: View) -> Seating:
    merit = Merit(view.cluster, Pace(60 * S, 0, S), by_type=True)
    merit.set_members(view.jobs, dict.fromkeys(view.jobs, 0.5))
    return Seating(view, merit, frozenset(), is_turn=True, is_dear=False)


@pytest.mark.parametrize(
    ("closed", "want"),
    [((), {1: (2,)}), ((2, 3), {1: (0,)})],
    ids=["others are free", "no other is free"],
)
def test_a_newcomer_keeps_off_the_home_of_a_job_that_is_not_picked_yet(
    closed: tuple[int, ...], want: dict[int, tuple[int, ...]]
) -> None:
    view = a_view((("v100", 4),), [running(a_job(0, 2), (0, 1)), a_job(1)])
    seat = seating(view).anywhere(frozenset(closed))
    assert seat([Wanted(view.jobs[1], 1)], {}) == want


def test_a_job_that_is_picked_stays_on_gpus_on_which_another_lives() -> None:
    view = a_view((("v100", 2),), [running(a_job(0), (0,)), a_job(1, gpus=(0,))])
    assert seating(view).anywhere(frozenset())([Wanted(view.jobs[0], 1)], {}) == {0: (0,)}
