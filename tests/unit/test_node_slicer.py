"""Who holds the GPUs, quantum by quantum: a node whose jobs have no processes, on a clock moved by hand."""

import asyncio
import signal
from dataclasses import replace

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import procs
from gandiva_slurm.node.binding import Admission, Peer, gpus_of_task
from gandiva_slurm.node.hello import Bind
from gandiva_slurm.node.members import JobProcesses, Membership
from gandiva_slurm.node.planning import check_plan
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, decode_plan, encode
from tests.node_bench import QUANTUM_NS, TICKET, Bench


@pytest.fixture
def bench(tmp_path):
    return lambda gpus, **more: Bench(tmp_path, gpus, **more)


def test_all_run_while_all_fit(bench):
    node = bench(4)
    for job_id, gpus in ((1, (0, 1)), (2, (2,)), (3, (3,))):
        node.add(job_id, "user1", gpus)
    node.quantum(5)
    assert node.holders() == {1, 2, 3}
    assert all(not resident.counts.suspends for resident in node.node.residents.values())


def test_what_is_to_be_stopped_is_written_down_first(bench):
    """A guard continues what the state file names: what is stopped before that stays so for ever."""
    node, done = bench(1), []
    resident, task = node.add(1, "user1", (0,)), ProcId(5, 1)
    node.node.save = lambda: done.append(("saved", set(resident.stopped)))
    resident.processes.stop = lambda only: (done.append(("stopped", set(only))), (set(only), set()))[1]
    node.slicer.switcher.stop_processes(resident, [task])
    assert done[:2] == [("saved", {task}), ("stopped", {task})]


def test_what_was_stopped_is_continued(bench, monkeypatch):
    node, sent, task = bench(1), [], ProcId(5, 1)
    resident = node.add(1, "user1", (0,))
    monkeypatch.setattr(procs, "send", lambda *told: sent.append(told))
    resident.stopped = {task}
    node.slicer.switcher.thaw(resident)
    assert sent == [(task, signal.SIGCONT)] and not resident.stopped


def test_users_alternate_and_a_users_jobs_share_his_part(bench):
    node = bench(1)
    node.add(1, "user1", (0,), 300 * TICKET)
    for job_id in (2, 3, 4):
        node.add(job_id, "user2", (0,))
    node.quantum(61)
    assert node.held_s("user1") == pytest.approx(node.held_s("user2"), abs=2)
    shares = [resident.counts.suspends for resident in node.node.residents.values()]
    assert max(shares[1:]) - min(shares[1:]) <= 1


def test_a_gang_runs_whole_and_single_jobs_fill_the_rest(bench):
    node = bench(4)
    node.add(1, "user1", (0, 1, 2, 3), 200 * TICKET)
    for gpu in range(4):
        node.add(2 + gpu, "user2", (gpu,), 50 * TICKET)
    seen = set()
    for _ in range(40):
        node.quantum()
        seen.add(frozenset(node.holders()))
    assert seen == {frozenset({1}), frozenset({2, 3, 4, 5})}
    assert node.held_s("user1") == pytest.approx(node.held_s("user2"), abs=4)


def test_an_opportunistic_job_gives_way_to_a_guaranteed_one_at_once_and_has_what_is_left(bench):
    node = bench(2)
    for job_id, gpu in ((1, 0), (2, 1)):
        node.add(job_id, "user1", (gpu,), is_opportunistic=True)
    node.quantum()
    assert node.holders() == {1, 2}
    guaranteed = node.add(3, "user2", (1,), tickets=1)
    assert node.holders() == {1, 3}, "in the middle of a quantum"
    node.add(4, "user1", (0,), is_opportunistic=True)
    assert node.holders() == {1, 3}, "an equal waits for the quantum's end"
    node.quantum(6)
    assert node.held_s("user2") == pytest.approx(6, abs=0.1)
    assert {resident.counts.suspends for resident in node.node.residents.values()} == {0, 1, 3}
    node.remove(guaranteed)
    assert 2 in node.holders()
    node.node.residents[JobKey(2, 0)].is_ending = True
    stays = node.add(5, "user2", (1,))
    assert not stays.holds, "who cannot give way keeps his GPU"


def test_a_job_that_ends_gives_way_at_once(bench):
    node = bench(1)
    first = node.add(1, "user1", (0,))
    node.add(2, "user2", (0,))
    assert node.holders() == {1}
    node.clock.now_ns += QUANTUM_NS // 3
    node.remove(first)
    assert node.holders() == {2}


def test_a_newcomer_waits_for_the_quantum_unless_its_gpu_is_idle(bench):
    node = bench(2)
    node.add(1, "user1", (0,))
    node.add(2, "user2", (0,))
    node.add(3, "user3", (1,))
    assert node.holders() == {1, 3}
    node.quantum()
    assert node.holders() == {2, 3}


def test_what_starts_up_stays_and_owes_for_it(bench):
    node = bench(1, client_wait_ns=10 * QUANTUM_NS)
    node.add(1, "user1", (0,))
    node.add(2, "user2", (0,))
    for _ in range(9):
        node.quantum()
        assert node.holders() == {1}
    # It is given up waiting for, and pays back what it had beyond its part.
    node.quantum(31)
    assert node.held_s("user2") == pytest.approx(node.held_s("user1"), abs=2)


def test_a_gang_waits_for_its_last_gpu_and_nobody_takes_the_others_meanwhile(bench):
    node = bench(2)
    for job_id, gpu in ((1, 0), (2, 1)):
        node.add(job_id, "user1", (gpu,))
    node.add(3, "user2", (0, 1))
    slow = node.node.residents[JobKey(2, 0)]
    node.clock.now_ns += QUANTUM_NS
    node.slicer.quantum()
    switcher = node.slicer.switcher
    switcher._tick(node.node.residents[JobKey(1, 0)])
    assert node.holders() == {2}
    assert node.slicer.wanted == [JobKey(3, 0)]
    switcher._tick(slow)
    node.settle()
    assert node.holders() == {3}


def test_a_park_past_its_bound_goes_first(bench):
    node = bench(1)
    node.add(1, "user1", (0,), 1 * TICKET)
    node.add(2, "user2", (0,), 1000 * TICKET)
    node.quantum()
    assert node.holders() == {2}
    waiting = node.node.residents[JobKey(1, 0)]
    waiting.is_frozen = False  # a freeze has a bound of its own, a shorter one
    waiting.since_ns = node.clock.mono() - node.node.settings.max_park_ns
    node.quantum()
    assert node.holders() == {1}


def test_the_alarm_rings_for_a_bound_within_the_quantum_once(bench):
    node = bench(1)
    node.add(1, "user1", (0,))
    node.add(2, "user2", (0,))
    due_ns = node.clock.mono() + QUANTUM_NS // 2
    node.node.settings = replace(node.node.settings, max_park_ns=QUANTUM_NS // 2)
    assert node.slicer._next_ns() <= due_ns
    node.clock.now_ns = due_ns
    node.slicer.quantum()
    node.settle()
    assert node.holders() == {2}
    assert node.slicer._next_ns() > due_ns


def test_nobody_at_home_rings_no_alarm(bench):
    node = bench(1)
    node.remove(node.add(1, "user1", (0,)))
    assert node.slicer._next_ns() - node.clock.mono() > 1000 * QUANTUM_NS


@pytest.mark.parametrize("turns", range(5))
def test_it_can_be_stopped_whenever_something_changes(bench, turns):
    slicer = bench(1).slicer

    async def stop() -> bool:
        task = asyncio.create_task(slicer.run())
        await asyncio.sleep(0)
        slicer._alarm.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        return task.cancelled()

    assert asyncio.run(stop())


def report_of(node):
    return make_report(node.node)


def a_plan(**changes) -> NodePlan:
    job = PlannedJob(1, 0, "user1", 0, (0,), 5 * TICKET, 1)
    return replace(NodePlan("n1", 1, 1, QUANTUM_NS, 2, (job,), (), "", 0), **changes)


def test_a_plan_brings_size_quantum_and_tickets(bench):
    node = bench(2)
    resident = node.add(1, "user1", (1,))
    assert node.planning.take(decode_plan(encode(a_plan())))
    assert (node.node.gpus, node.node.local.quantum_ns, resident.tickets) == (2, QUANTUM_NS, 5 * TICKET)
    # Its GPUs are where it runs, whatever a later plan says.
    assert resident.gpus == (1,) and resident.is_planned
    assert not node.planning.take(a_plan(generation=0))
    assert node.planning.take(a_plan(epoch_ns=2, generation=0, jobs=()))
    assert not resident.is_planned and node.holders() == {1}


@pytest.mark.parametrize(("vc", "turns"), [("lab", {1}), ("", {1, 9})])
def test_who_is_in_no_plan_goes_before_no_owner_of_its_gpus(bench, vc, turns):
    node = bench(1)
    node.planning.take(a_plan(gpus=1, jobs=(PlannedJob(1, 0, "user1", 0, (0,), 5 * TICKET, 1, vc=vc),)))
    node.add(1, "user1", (0,), vc=vc)
    admission = Admission(node.node, node.slicer, node.watcher, lambda pid: None)
    nine = Bind(JobKey(9, 0), "batch", 0, (0,), ())
    admission._register(Peer(ProcId(1, 1), 0), nine, Membership(9, None, "batch"))
    held = set()
    for _ in range(6):
        node.quantum()
        held |= node.holders()
    assert held == turns


def test_a_task_that_comes_while_its_job_waits_is_stopped_before_it_begins(bench, monkeypatch):
    monkeypatch.setattr(procs, "is_alive", lambda proc: True)
    node, stopped = bench(1), []
    jobs = [node.add(number, "user1", (0,)) for number in (1, 2)]

    def stop(job_id):
        return lambda only: (stopped.append((job_id, set(only))), (set(), set()))[1]

    for job in jobs:
        job.processes.stop = stop(job.key.job_id)
    assert [job.holds for job in jobs] == [True, False]
    admission = Admission(node.node, node.slicer, node.watcher, lambda pid: Membership(pid, None, "0"))
    for number in (1, 2):
        task = Peer(ProcId(number, 1), 0)
        admission.bind(task, Bind(JobKey(number, 0), "0", 0, (), (0,)))
    assert stopped == [(2, {ProcId(2, 1)})]


def test_a_task_of_an_older_incarnation_is_refused_and_stopped(bench, monkeypatch):
    monkeypatch.setattr(procs, "is_alive", lambda proc: True)
    node, killed = bench(1), []
    monkeypatch.setattr(JobProcesses, "kill", lambda self: killed.append(self.key) or 1)
    node.node.know(JobKey(1, 1))
    admission = Admission(node.node, node.slicer, node.watcher, lambda pid: Membership(1, None, "batch"))
    with pytest.raises(PeerError, match="not the newest incarnation"):
        admission.bind(Peer(ProcId(5, 1), 0), Bind(JobKey(1, 0), "batch", 0, (0,), ()))
    assert killed == [JobKey(1, 0)] and not node.node.residents


def test_a_process_speaks_for_its_own_job_and_its_own_user_only(bench, monkeypatch):
    monkeypatch.setattr(procs, "is_alive", lambda proc: True)
    node, task = bench(1), Bind(JobKey(1, 0), "0", 0, (), (0,))
    node.add(1, "user1", (0,))
    parts = (node.node, node.slicer, node.watcher)
    of_job = [Admission(*parts, lambda pid, n=n: Membership(n, None, "0")) for n in (1, 2)]
    with pytest.raises(PeerError, match="belongs to job 2, not to 1"):
        of_job[1].bind(Peer(ProcId(5, 1), 0), task)
    with pytest.raises(PeerError, match=r"job 1\.0 is uid 0's, not uid 7's"):
        of_job[0].bind(Peer(ProcId(5, 1), 7), task)


def test_what_was_held_as_a_borrower_is_not_paid_for_among_the_owners(bench):
    node = bench(1)
    node.add(1, "user1", (0,), is_opportunistic=True, vc="lab")
    node.clock.now_ns += QUANTUM_NS // 2
    job = PlannedJob(1, 0, "user1", 0, (0,), 5 * TICKET, 1, vc="lab")
    node.planning.take(a_plan(gpus=1, jobs=(job,)))
    assert node.node.local.passes("lab") == ({"user1": 0}, {1: 0})


def test_a_plan_that_shrinks_a_node_leaves_what_runs(bench):
    node = bench(2)
    node.add(1, "user1", (1,))
    node.planning.take(a_plan(gpus=1))
    assert node.node.gpus == 2


@pytest.mark.parametrize(
    "change",
    [
        {"node": "n2"},
        {"quantum_ns": 0},
        {"gpus": -1},
        {"jobs": (PlannedJob(1, 0, "u", 0, (0, 0), 1, 1),)},
        {"jobs": (PlannedJob(1, 0, "u", 0, (), 1, 1),)},
        {"jobs": (PlannedJob(1, 0, "u", 0, (2,), 1, 1),)},
        {"jobs": (PlannedJob(1, 0, "u", 0, (0,), 0, 1),)},
    ],
)
def test_impossible_plans_are_refused(change):
    with pytest.raises(PeerError):
        check_plan(a_plan(**change), "n1")


@pytest.mark.parametrize(
    ("gpus", "slots", "asked", "given"),
    [
        ((1, 3), (6, 11), (), (1, 3)),
        ((1, 3), (6, 11), (11,), (3,)),
        ((1, 3), (6, 11), (0,), (1,)),
        ((1, 3), (), (1,), (3,)),
        ((1, 3), (6, 11), (40, 41), (1, 3)),
        ((1, 3), (6, 11, 12), (12,), (1, 3)),
    ],
)
def test_slots_are_turned_into_gpus(bench, gpus, slots, asked, given):
    resident = bench(4).add(1, "user1", gpus)
    resident.slots = slots
    assert gpus_of_task(resident, asked) == given


def test_older_incarnations_are_known_as_stale(bench):
    node = bench(1).node
    node.know(JobKey(5, 2))
    node.know(JobKey(5, 1))
    assert node.is_stale(JobKey(5, 1)) and not node.is_stale(JobKey(5, 2)) and not node.is_stale(JobKey(6, 0))
    node.plan = a_plan(fence=((6, 0),))
    assert node.is_stale(JobKey(6, 0)) and not node.is_stale(JobKey(6, 1))


async def test_a_plan_that_failed_halfway_is_taken_when_it_comes_again(bench, monkeypatch):
    node = bench(1)
    job, plan = node.add(1, "user1", (0,)), a_plan(fence=((1, 0),))

    def fail(resident, why):
        raise OSError("Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(node.watcher, "fence", fail)
        with pytest.raises(OSError):
            node.planning.take(plan)
    assert not job.is_fenced
    node.planning.take(replace(plan, generation=plan.generation + 1))
    assert job.is_fenced
