"""Who goes first at a turn's beginning since it is far behind where it lives, whatever the passes say.

Types change hands at a turn's beginning alone where moves are dear, among those that are picked then. A job
that lives on a slow type has had its GPU time there, so its pass is not the least then, and it might never be
picked at the moment when it could leave.
"""

from __future__ import annotations

from collections.abc import Iterable

from gandiva_slurm.policy.moves.merit import Merit, type_of
from gandiva_slurm.policy.port import Cluster, JobView
from gandiva_slurm.slicing.turns import Turns


def far_behind(
    jobs: Iterable[JobView],
    merit: Merit,
    cluster: Cluster,
    turns: Turns,
    turn_ns: int,
) -> list[JobView]:
    """Return those of these jobs, the furthest behind first.

    One whose user is ahead of others by what it would hold in this turn (`turn_ns`) is not among them: rates
    are words, and whatever they say, they advance a user by one such turn at most.
    """
    ahead = turns.ahead()
    found = [
        job
        for job in jobs
        if job.gpus
        and job.can_migrate
        and merit.would_lose(job, type_of(cluster, job.gpus))
        and ahead[job.job_id][0] <= turn_ns * job.size
    ]
    return sorted(found, key=lambda job: (-merit.lag(job), job.order))
