"""Planned jobs that run here though no task of theirs was bound: found by their slurmstepds, and taken in.

A BIND may be lost: an older plugin gave up, plugstack.conf is wrong, a state file was unreadable. Such a job
would train for nothing, beside others. It is charged like any other, and takes turns by being frozen.
/proc is looked through only while a planned job has not come for some time, and in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import members, procs
from gandiva_slurm.node.binding import Admission
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.members import Stepd
from gandiva_slurm.wire.messages import PlannedJob

LOOK_S = 2.0
#: A planned job that has not come for so long is looked for.
LATE_NS = 5_000_000_000

log = logging.getLogger(__name__)


class Lost:
    """Looks for planned jobs of which gandivad has not heard."""

    def __init__(self, node: Node, admission: Admission) -> None:
        self._node = node
        self._admission = admission
        #: since when the plan has each, by the clock that runs while the host sleeps, too
        self._since: dict[JobKey, int] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            late = self.late()
            if late:
                stepds = await asyncio.to_thread(members.stepds)
                self.take(late, stepds)

    def late(self) -> list[PlannedJob]:
        """Return the jobs of the plan that have been in it for some time, and nothing of which has come."""
        node, now = self._node, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        jobs = node.plan.jobs if node.plan is not None else ()
        self._since = {job.key: self._since.get(job.key, now) for job in jobs}
        return [job for job in jobs if now - self._since[job.key] >= LATE_NS and self._is_missing(job.key)]

    def take(self, late: list[PlannedJob], stepds: list[Stepd]) -> None:
        """Take in those that run under these slurmstepds, unbound."""
        for job in late:
            mine = [stepd for stepd in stepds if stepd.job_id == job.job_id and self._is_of(stepd, job)]
            if mine and self._is_missing(job.key) and not self._node.is_stale(job.key):
                self._admission.take_lost(job, mine)
                log.warning("job %s runs here and was not bound; it is charged and takes its turns", job.key)

    def _is_missing(self, key: JobKey) -> bool:
        resident = self._node.residents.get(key)
        if resident is None:
            return True
        return resident.part is not None and not resident.part.has_begun

    def _is_of(self, stepd: Stepd, job: PlannedJob) -> bool:
        """True when programs of the job's user run under it, and it is not an earlier incarnation's."""
        if members.node_of(stepd) != self._node.settings.node:
            return False
        others = [r for r in self._node.residents.values() if r.key.job_id == job.job_id and r.key != job.key]
        if any(stepd.proc in other.processes.stepds for other in others):
            return False
        begun_ns = stepd.proc.start * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        if job.restart and begun_ns < self._since[job.key] - 1_000_000_000:
            return False
        return any(_is_program(proc.pid, job.uid) for proc in procs.below([stepd.proc.pid]))


def _is_program(pid: int, uid: int) -> bool:
    """True for what a task has become; until then it is called as its slurmstepd, and may yet be bound."""
    owner = procs.uids(pid)
    return owner is not None and owner[0] == uid and not members.is_stepds_title(procs.title(pid))
