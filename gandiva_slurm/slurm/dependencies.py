"""What a held job still waits for.

Slurm looks at the dependencies of a job only while it is not held: a held job shows
`afterok:7(unfulfilled)` long after job 7 has ended well (22.05.8). Gandiva holds all its jobs, so what is
fulfilled is told here, from the same picture. When in doubt (a job Slurm has forgotten) a condition counts as
fulfilled: on release Slurm has the last word, and keeps its verdict, `(failed)`, in the text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gandiva_slurm.model.snapshot import SlurmJob
from gandiva_slurm.slurm import states

FAILED = "(failed)"

_CONDITION = re.compile(
    r"(?P<kind>after|afterany|afterok|afternotok|aftercorr):(?P<job>\d+)(?:_(?P<task>\d+|\*))?(?:\+\d+)?"
    r"(?P<verdict>\(\w+\))?"
)


class Dependencies:
    """All jobs of a picture, by what a condition may name: a job, an array, a task."""

    def __init__(self, jobs: Iterable[SlurmJob]) -> None:
        self._named: defaultdict[tuple[int, int | None], list[SlurmJob]] = defaultdict(list)
        self._same_name: defaultdict[tuple[int, str], list[SlurmJob]] = defaultdict(list)
        for job in jobs:
            self._named[job.array_job_id or job.job_id, None].append(job)
            if job.array_task_id is not None:
                self._named[job.array_job_id, job.array_task_id].append(job)
            self._same_name[job.uid, job.name].append(job)

    def settle(self, job: SlurmJob) -> SlurmJob:
        """Return the job with only what it still waits for; one that is not held is left to Slurm."""
        if not job.dependency or not job.is_held:
            return job
        mark = "?" if "?" in job.dependency else ","
        conditions = job.dependency.split(mark)
        left = [told for told in (self._left(job, condition) for condition in conditions) if told]
        is_free = len(left) < len(conditions) if mark == "?" else not left
        return replace(job, dependency="" if is_free else mark.join(left))

    def _left(self, job: SlurmJob, condition: str) -> str:
        """Return the condition if it is not fulfilled, with Slurm's mark when it never will be."""
        if condition.startswith("singleton"):
            return condition if self._is_second(job) else ""
        match = _CONDITION.fullmatch(condition)
        if match is None or match["verdict"] == FAILED:
            return condition
        verdicts = {_verdict(match["kind"], other.state) for other in self._others(job, match)}
        if False in verdicts:
            return condition.removesuffix(match["verdict"] or "") + FAILED
        return condition if None in verdicts else ""

    def _others(self, job: SlurmJob, match: re.Match[str]) -> list[SlurmJob]:
        array_job_id = int(match["job"])
        task = int(match["task"]) if (match["task"] or "*") != "*" else None
        if match["kind"] == "aftercorr" and (array_job_id, job.array_task_id) in self._named:
            task = job.array_task_id
        if task is not None and (array_job_id, task) not in self._named:
            # It is in the record its array's waiting tasks share, or forgotten.
            return [
                other for other in self._named.get((array_job_id, None), ()) if other.array_task_id is None
            ]
        return self._named.get((array_job_id, task), [])

    def _is_second(self, job: SlurmJob) -> bool:
        others = self._same_name[job.uid, job.name]
        return any(other.job_id < job.job_id and not states.is_finished(other.state) for other in others)


def _verdict(kind: str, state: str) -> bool | None:
    """Return whether a job in this state fulfils a condition; None: not yet."""
    if kind == "after":
        return None if state == states.PENDING else True
    if not states.is_finished(state):
        return None
    if kind == "afterany":
        return True
    return (state == states.WELL) != (kind == "afternotok")
