"""policy.shares.rounds: jobs that can be moved make way for one that cannot leave its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.policy.port import JobView
from gandiva_slurm.policy.shares.rounds import Round, Runs, Wanted
from gandiva_slurm.slicing.turns import Turns


def a_round(*jobs: JobView, room: int) -> Round:
    turns = Turns()
    turns.set_members({job.user: 1 for job in jobs}, {job.user: {job.job_id: 1} for job in jobs})
    return Round(turns, {job.job_id: job for job in jobs}, room, 1, {job.job_id: job.user for job in jobs})


def seat_on(*gpus: int) -> object:
    """Seat each where it is if it cannot be moved, the others on these."""

    def seat(picked: Sequence[Wanted], seated: Runs) -> Runs:
        found, free = dict(seated), [*gpus]
        for job, size, _ in picked:
            if not job.can_migrate:
                found[job.job_id] = job.gpus
            elif len(free) >= size:
                found[job.job_id] = tuple(free.pop(0) for _ in range(size))
        return found

    return seat


def a_resident(job_id: int, gpus: tuple[int, ...], can_migrate: bool) -> JobView:
    return JobView(job_id, f"u{job_id}", len(gpus), 0, can_migrate=can_migrate, gpus=gpus)


STAYS, GOES = a_resident(1, (0,), False), a_resident(2, (0,), True)


def test_one_that_can_be_moved_goes_to_idle_gpus() -> None:
    turns = a_round(STAYS, GOES, room=2)
    assert turns.make_way(seat_on(1), {2: (0,)}) == {1: (0,), 2: (1,)}  # type: ignore[arg-type]


def test_none_makes_way_where_it_would_find_no_gpus() -> None:
    turns = a_round(STAYS, GOES, room=2)
    assert turns.make_way(seat_on(), {2: (0,)}) == {2: (0,)}  # type: ignore[arg-type]


def test_none_makes_way_beside_another_that_stays() -> None:
    other = a_resident(3, (0, 1), False)
    turns = a_round(STAYS, other, room=3)
    assert turns.make_way(seat_on(2), {3: (0, 1)}) == {3: (0, 1)}  # type: ignore[arg-type]
