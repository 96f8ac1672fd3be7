"""What the executor makes of an action when Slurm's picture has moved on, and of each way a call may fail."""

import time
from dataclasses import replace

import pytest

from gandiva_slurm.controller.executor import Executor
from gandiva_slurm.model.action import Requeue
from gandiva_slurm.model.errors import SlurmBusy, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import SlurmJob

RUNS = SlurmJob(7, "user1", 1001, "lab", "gandiva", "RUNNING", restart=1, priority=10, nodes=("n1",))
REQUEUE = Requeue("requeue:7.1:1", JobKey(7, 1), "Move", "to n2")


class Port:
    """Counts the requeues, and raises what it is told to."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    async def requeue(self, job_id):
        self.asked.append(job_id)
        if self.error:
            raise self.error


async def outcome(job, error=None):
    port = Port(error)
    done = await Executor(port, None, None, time.time_ns).execute([REQUEUE], {7: job} if job else {})
    return port.asked, done[0]


async def test_a_job_that_runs_is_requeued():
    asked, done = await outcome(RUNS)
    assert asked == [7] and not done.error


@pytest.mark.parametrize(
    "job",
    [
        None,
        replace(RUNS, restart=2),
        replace(RUNS, state="PENDING"),
        replace(RUNS, state="COMPLETING"),
        replace(RUNS, state="CANCELLED"),
        replace(RUNS, state="SUSPENDED"),
    ],
    ids=["unknown", "next incarnation", "waiting", "ending", "cancelled", "suspended in Slurm"],
)
async def test_any_other_job_is_left_alone_and_nothing_failed(job):
    asked, done = await outcome(job)
    assert asked == [] and not done.error


@pytest.mark.parametrize(
    ("error", "retry"),
    [(SlurmRefused("no"), False), (SlurmBusy("soon"), True), (SlurmUnreachable("?"), True)],
)
async def test_a_failure_is_told_with_slurms_sentence(error, retry):
    _, done = await outcome(RUNS, error)
    assert (done.error, done.retry) == (str(error), retry)
