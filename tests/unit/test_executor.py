"""What the executor makes of an action when Slurm's picture has moved on, and of each way a call may fail."""

import time
from dataclasses import replace

import pytest

from gandiva_slurm.controller.executor import Executor
from gandiva_slurm.model.action import Requeue, Start, Unhold
from gandiva_slurm.model.errors import PeerError, SlurmBusy, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob

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


@pytest.mark.parametrize(
    ("job", "is_asked"),
    [
        (replace(RUNS, priority=0), True),
        (replace(RUNS, priority=5), False),
        (replace(RUNS, priority=0, state="PENDING"), False),
        (replace(RUNS, priority=0, restart=2), False),
    ],
    ids=["held", "not held", "waits: Slurm would start it", "next incarnation"],
)
async def test_a_hold_is_taken_back_of_a_job_that_runs_alone(job, is_asked):
    port, asked = Port(), []

    async def unhold(job_id):
        asked.append(job_id)

    port.unhold = unhold
    action = Unhold("unhold:7.1:1", JobKey(7, 1), "MoveFailed", "it stays")
    (done,) = await Executor(port, None, None, time.time_ns).execute([action], {7: job})
    assert (asked, done.error) == ([7] if is_asked else [], "")


class StartingPort:
    """Notes what is asked for, in order, and refuses to resize when told to."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    async def resize(self, job_id, gpus, nodes):
        self.asked.append(("resize", job_id, gpus, nodes))
        if self.error:
            raise self.error

    async def start(self, job_id, nodes):
        self.asked.append(("start", job_id, *nodes))


class WillingNodes(dict):
    """Nodes that take every plan."""

    async def delivered(self, deadline_s):
        """It is there."""


class SilentNodes(dict):
    """Nodes that take none."""

    async def delivered(self, deadline_s):
        """It is not there in time."""
        raise PeerError("n1 has not taken its plan")


WAITS = replace(RUNS, state="PENDING", priority=0, nodes=())


async def started(gpus, error=None, job=WAITS, node=None):
    action = Start("start:7.1:1", JobKey(7, 1), (("n1", (0, 1)),), "Starting", "on n1", gpus)
    port = StartingPort(error)
    executor = Executor(port, None, {"n1": node or WillingNodes()}, time.time_ns)
    done = await executor.execute([action], {7: job})
    return port.asked, done[0], executor.released


async def test_an_elastic_job_is_resized_before_its_start_and_no_other():
    asked, done, _ = await started(2)
    assert asked == [("resize", 7, 2, 0), ("start", 7, "n1")] and not done.error
    asked, _, _ = await started(0)
    assert asked == [("start", 7, "n1")]


async def test_one_that_may_have_two_nodes_asks_for_as_many_as_it_is_to_have():
    asked, _, _ = await started(2, job=replace(WAITS, options=JobOptions(elastic="1-4", max_nodes=2)))
    assert asked == [("resize", 7, 2, 1), ("start", 7, "n1")]


async def test_one_that_cannot_be_resized_is_not_started():
    asked, done, released = await started(2, SlurmRefused("write --gres"))
    assert asked == [("resize", 7, 2, 0)] and done.error == "write --gres" and not released


async def test_slurm_starts_nothing_of_which_the_node_does_not_know():
    asked, done, released = await started(0, node=SilentNodes(here=True))
    assert (asked, done.retry, released) == ([], True, {})


@pytest.mark.parametrize("job", [RUNS, replace(WAITS, priority=10)], ids=["it runs", "it is released"])
async def test_what_was_started_is_not_started_again(job):
    asked, done, _ = await started(0, job=job)
    assert asked == [] and not done.error
