"""A resident job's ranks: one a process, so many and no more, and nothing they say grows without bound."""

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDING
from gandiva_slurm.node import jobs
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.wire import page as wire

KEY = JobKey(7, 0)


@pytest.fixture
def job():
    processes = JobProcesses(KEY, 1001, "n1", set(), set())
    resident = Resident(KEY, "user1", (0,), 100, 0, processes, 0, state=RUNNING)
    yield resident
    for rank in resident.ranks:
        rank.page.close()


def a_rank(pid: int, number: int = 0, world: int = 1) -> Rank:
    return Rank(ProcId(pid, 1), number, Page.make(KEY, number, world, 0), None)


def test_a_process_that_says_hello_again_is_still_one_rank(job):
    ranks = [a_rank(10) for _ in range(5)]
    for rank in ranks:
        rank.page.write([(wire.W_SEQ, 100)])
        job.join(rank, 1, "")
    assert job.ranks == ranks[-1:]
    assert [rank.page.fd >= 0 for rank in ranks] == [False] * 4 + [True]
    assert job.steps() == 500


def test_a_rank_of_a_gang_may_be_replaced_by_its_process_s_next_program(job):
    job.join(a_rank(10, 0, 2), 2, "h:1")
    job.join(a_rank(11, 1, 2), 2, "h:1")
    job.join(a_rank(11, 1, 2), 2, "h:1")
    assert [len(group.ranks) for group in job.sets] == [2]
    assert job.sets[0].is_complete()


def test_there_is_room_for_so_many_ranks_and_none_changes_while_they_park(job, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_RANKS", 2)
    for pid in (10, 11):
        job.check_room(ProcId(pid, 1))
        job.join(a_rank(pid), 1, "")
    with pytest.raises(PeerError, match="2 ranks on this node already"):
        job.check_room(ProcId(12, 1))
    job.check_room(ProcId(11, 1))
    job.state = SUSPENDING
    with pytest.raises(PeerError, match="changing hands"):
        job.check_room(ProcId(11, 1))


def test_steps_stay_within_what_a_ledger_can_hold(job):
    for pid in (10, 11, 12):
        rank = a_rank(pid)
        rank.page.write([(wire.W_SEQ, (1 << 64) - 1)])
        job.join(rank, 1, "")
    assert 0 < job.steps() < 1 << 63


def test_a_job_is_not_parked_while_tasks_of_its_step_start_up(job):
    stepd, tasks = ProcId(9, 1), [ProcId(10, 1), ProcId(11, 1)]
    job.tasks = {stepd: set(tasks)}
    ranks = [Rank(proc, 0, Page.make(KEY, 0, 1, 0), stepd) for proc in tasks]
    job.join(ranks[0], 1, "")
    ranks[0].page.write([(wire.W_SEQ, 100)])
    assert not job.has_client()
    job.join(ranks[1], 1, "")
    ranks[1].page.write([(wire.W_SEQ, 100)])
    assert job.has_client()
