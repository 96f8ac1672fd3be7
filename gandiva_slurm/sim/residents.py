"""Which jobs live on each GPU and node, running or parked, and which must leave for one that comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.job import Job

Runs = Mapping[int, tuple[int, ...]]


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
        """Return the parked jobs that must be saved and leave before a job comes, those parked longest first.

        None: there is no room, whoever leaves. `runs`: where jobs are to run; these do not leave.
        """
        leavers: dict[int, Job] = {}
        for gpu in gpus if self._slots else ():
            here = self._on_gpu[gpu]
            over = len(here.keys() - {job.job_id} - leavers.keys()) + 1 - self._slots
            for other in self._parked(here, job, runs, leavers):
                if over <= 0:
                    break
                leavers[other.job_id] = other
                over -= 1
            if over > 0:
                return None
        for host in self._cluster.hosts_of(gpus):
            room_mib = self._cluster.hosts[host].memory_mib
            if not room_mib:
                continue
            here = self._on_host[host]
            there = [each for number, each in here.items() if number != job.job_id and number not in leavers]
            over = sum(each.memory_mib for each in there) + job.memory_mib - room_mib
            for other in self._parked(here, job, runs, leavers):
                if over <= 0:
                    break
                leavers[other.job_id] = other
                over -= other.memory_mib
            if over > 0:
                return None
        return [*leavers.values()]

    def _parked(self, here: dict[int, Job], comer: Job, runs: Runs, leavers: dict[int, Job]) -> Iterator[Job]:
        """Yield the jobs there that are parked, stay so, and can be saved."""
        for job in [*here.values()]:
            is_idle = not job.is_running and runs.get(job.job_id) != job.gpus
            if is_idle and job.can_migrate and job is not comer and job.job_id not in leavers:
                yield job
