"""Which jobs live on each GPU and node, running or parked, and which must leave for one that comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.job import Job

Runs = Mapping[int, tuple[int, ...]]
#: What a job takes of a place's room.
Taken = Callable[[Job], int]


class Residents:
    """All of a cluster; `slots`: jobs that a GPU has room for, 0: any number."""

    def __init__(self, cluster: Cluster, slots: int) -> None:
        self._cluster, self._slots = cluster, slots
        #: by GPU and by node: the jobs there, parked ones in the order in which they were parked
        self._on_gpu: list[dict[int, Job]] = [{} for _ in range(cluster.size)]
        self._on_host: list[dict[int, Job]] = [{} for _ in cluster.hosts]

    def enter(self, job: Job, gpus: Iterable[int]) -> None:
        """A job lives there from now on, or was parked there just now."""
        self.leave(job)
        for gpu in gpus:
            self._on_gpu[gpu][job.job_id] = job
            self._on_host[self._cluster.host_of[gpu]][job.job_id] = job

    def leave(self, job: Job) -> None:
        """A job has ended, or lives nowhere."""
        for gpu in job.gpus:
            self._on_gpu[gpu].pop(job.job_id, None)
            self._on_host[self._cluster.host_of[gpu]].pop(job.job_id, None)

    def must_leave(self, job: Job, gpus: tuple[int, ...], runs: Runs) -> list[Job] | None:
        """Return the parked jobs that must be saved and leave before a job comes.

        Those parked longest go first, but the last of a user on a GPU or node after the others. None: there
        is no room, whoever leaves. `runs`: where jobs are to run; these do not leave.
        """
        leavers: dict[int, Job] = {}
        for gpu in gpus if self._slots else ():
            if not self._clear(self._on_gpu[gpu], job, self._slots, lambda each: 1, runs, leavers):
                return None
        for host in self._cluster.hosts_of(gpus):
            room_mib = self._cluster.hosts[host].memory_mib
            if room_mib and not self._clear(self._on_host[host], job, room_mib, _memory_mib, runs, leavers):
                return None
        return [*leavers.values()]

    def _clear(
        self, here: dict[int, Job], comer: Job, room: int, taken: Taken, runs: Runs, leavers: dict[int, Job]
    ) -> bool:
        """Add to `leavers` those of a place that must leave it; False: it is too full all the same."""
        stay = [job for number, job in here.items() if number != comer.job_id and number not in leavers]
        over = sum(map(taken, stay)) + taken(comer) - room
        users = Counter(job.user for job in stay)
        stay.sort(key=lambda job: users[job.user] == 1)
        for job in stay:
            if over <= 0:
                break
            # What is parked there, stays parked and can be saved.
            is_idle = not job.is_running and runs.get(job.job_id) != job.gpus
            if is_idle and job.can_migrate and taken(job):
                leavers[job.job_id] = job
                over -= taken(job)
        return over <= 0


def _memory_mib(job: Job) -> int:
    return job.memory_mib
