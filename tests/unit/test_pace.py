"""How long jobs have GPUs, by what it costs to give them up."""

from __future__ import annotations

import random

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.port import PolicySettings
from tests.policy_world import S, a_job, a_view


@pytest.mark.parametrize(
    ("switch_s", "restart_s", "slice_s", "turn_s"),
    [(0, 0, 60, 60), (1, 2, 60, 60), (1, 8, 60, 144), (5, 8, 90, 144), (0, 60, 60, 1080)],
)
def test_turns_are_eighteen_times_what_they_cost(
    switch_s: int, restart_s: int, slice_s: int, turn_s: int
) -> None:
    pace = Pace(60 * S, switch_s * S, restart_s * S)
    assert (pace.slice_ns, pace.turn_ns) == (slice_s * S, turn_s * S)


def test_the_mean_of_what_was_measured_counts_and_stays_when_those_jobs_have_ended() -> None:
    pace = Pace(60 * S, 0, 60 * S)
    pace.learn([a_job(1)])
    assert pace.restart_ns == 60 * S and pace.is_dear
    pace.learn([a_job(1), a_job(2, restart_ns=4 * S), a_job(3, restart_ns=8 * S)])
    pace.learn([a_job(1)])
    assert pace.restart_ns == 6 * S and not pace.is_dear
    assert pace.loss == pytest.approx(1 / 6)


def first_turn_s(restart_s: int) -> int:
    """When the second of two jobs has its turn on a GPU with one slot; `restart_s` was measured."""
    jobs = [a_job(number, length_s=None, restart_ns=restart_s * S) for number in (1, 2)]
    policy = gandiva_fair.make(PolicySettings(60 * S, restart_ns=60 * S))
    for at_s in range(0, 2000, 60):
        view = a_view((("v100", 1),), jobs, at_s)
        view.slots = 1
        runs = policy.decide(view).runs
        if 2 in runs:
            return at_s
        for job in jobs:
            job.is_running = job.job_id in runs
            job.gpus = runs.get(job.job_id, job.gpus)
            job.held_ns += 60 * S * job.is_running
    return -1


def test_turns_follow_what_moves_are_measured_to_take() -> None:
    """One for which there is no room has no home before its first turn."""
    assert first_turn_s(0) == 1080
    assert first_turn_s(10) == 180


def test_a_gang_at_home_has_a_slice_though_its_user_has_a_share_elsewhere() -> None:
    """User u has one GPU of three by a job of its own, v and w have the others; the gang asks for those."""
    others = [a_job(1, user="v", length_s=None), a_job(2, user="w", length_s=None)]
    single, gang = a_job(3, length_s=None), a_job(4, 2, length_s=None)
    jobs = [*others, single, gang]
    for job, gpus in zip(jobs, [(1,), (2,), (0,), (1, 2)], strict=True):
        job.gpus, job.first_run_ns, job.can_pack = gpus, 0, False
    policy = gandiva_fair.make(PolicySettings(60 * S, restart_ns=600 * S))
    ran = 0
    for at_s in range(0, 60 * 60, 60):
        runs = policy.decide(a_view((("v100", 1), ("v100", 2)), jobs, at_s)).runs
        ran += gang.job_id in runs
        for job in jobs:
            job.is_running = job.job_id in runs
            job.gpus = runs.get(job.job_id, job.gpus)
            job.held_ns += 60 * S * job.size * job.is_running
    assert ran >= 2, "passed over 24 times it goes first"


@pytest.mark.parametrize("seed", range(4))
def test_between_slices_running_jobs_stay_where_they_are(seed: int) -> None:
    """Jobs of any size on three nodes of four, asked each twenty seconds; a move takes a minute."""
    draw = random.Random(seed)
    jobs = [
        a_job(n, draw.choice([1, 1, 2, 4]), user=draw.choice("uvw"), length_s=None, can_pack=False)
        for n in range(14)
    ]
    policy, last = gandiva_fair.make(PolicySettings(60 * S, restart_ns=60 * S)), dict[int, tuple[int, ...]]()
    for at_s in range(0, 5400, 20):
        runs = policy.decide(a_view((("v100", 4),) * 3, jobs, at_s)).runs
        if at_s % 60:
            assert all(runs.get(job_id) == gpus for job_id, gpus in last.items())
        for job in jobs:
            job.is_running, last = job.job_id in runs, runs
            job.gpus = runs.get(job.job_id, job.gpus)
            job.held_ns += 20 * S * job.size * job.is_running
