"""A job's memory goes and comes with the driver: a node told by hand, real processes, a played driver."""

import dataclasses
import gc
import subprocess
import sys
import time
import weakref

import pytest

from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import away, driver_checkpoint, guard, procs
from gandiva_slurm.node.away import Mover
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.node.store import StateFile
from gandiva_slurm.node.tiers import RESIDUE
from gandiva_slurm.wire import page as wire
from tests import patience
from tests.fake_driver import CHECKPOINTED, LOCKED, NOT_READY, FakeDriver
from tests.fake_driver import RUNNING as RUNS
from tests.unit.test_node_leaving import Floor

DEADLINE_S = 30


class OneProcess(JobProcesses):
    """A job of one process, which is real."""

    def members(self, table=None):
        (pid,) = self.cgroups
        proc = procs.read_proc(int(pid))
        return [proc] if proc is not None else []


class Node(Floor):
    """A node of one GPU whose driver is played, and whose jobs have a process each."""

    def __init__(self, directory, fake):
        super().__init__(directory)
        self.fake, self.children = fake, []
        settings = dataclasses.replace(self.node.settings, driver_checkpoint=True, client_wait_ns=0)
        self.node.settings = settings
        self.slicer.switcher._mover = self.mover = Mover(self.node)
        self.until(lambda: self.mover.why_not() == "", "the probe")

    def start(self, resident):
        """Give a job its process, which uses the GPU."""
        child = subprocess.Popen(["sleep", "1000"])
        self.children.append(child)
        self.fake.use(child.pid, 1 << 30)
        resident.processes = OneProcess(resident.key, 0, "n1", set(), {str(child.pid)})
        return child.pid

    def until(self, condition, what):
        end_s = patience.deadline(DEADLINE_S)
        while not condition():
            assert time.monotonic() < end_s, f"{what} did not come to be"
            time.sleep(0.005)
            self.settle()

    def pair(self, with_client=False):
        """Two jobs that take turns; the first one holds the GPU, the second has nothing to move."""
        job = self.train(1) if with_client else self.add(1, "user1", (0,))
        pid = self.start(job)
        if not with_client:
            self.plan(1)
        return job, pid

    def rival(self):
        other = self.add(2, "user2", (0,))
        self.plan(2)
        return other

    def turn(self, resident):
        """Its turn comes, when the other one has had as much."""
        for _ in range(200):
            self.next_quantum()
            if resident.state in (RESUMING, RUNNING):
                return
        raise AssertionError("its turn did not come")

    def turn_out(self, resident):
        """It is told to park, when it has had its turn."""
        self.until(lambda: resident.state == RUNNING, "its turn")
        for _ in range(200):
            self.next_quantum()
            if resident.state == SUSPENDING:
                return
        raise AssertionError("it was not told to park")

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()
        for resident in self.node.residents.values():
            for rank in resident.ranks:
                rank.page.close()


@pytest.fixture(scope="module")
def fake_directory(tmp_path_factory):
    return FakeDriver(tmp_path_factory.mktemp("cuda") / "fake")


@pytest.fixture
def node(tmp_path, fake_directory, monkeypatch):
    for path in fake_directory.directory.glob("fail-*"):
        path.unlink()
    for name in ("calls", "uses"):
        (fake_directory.directory / name).write_text("")
    fake_directory.free(1 << 40)
    for name, value in fake_directory.environment().items():
        monkeypatch.setenv(name, value)
    made = Node(tmp_path / "node", fake_directory)
    yield made
    made.close()


def is_stopped(pid):
    return procs.read_proc(pid).state == "T"


def test_job_without_a_client_is_moved_out_before_it_is_frozen(node):
    job, pid = node.pair()
    other = node.rival()
    node.next_quantum()
    assert job.state == SUSPENDING and not is_stopped(pid) and other.state == SUSPENDED
    node.until(lambda: job.state == SUSPENDED, "the job's park")
    assert node.fake.state(pid) == CHECKPOINTED and other.state == RUNNING
    node.until(lambda: is_stopped(pid), "the freeze")
    assert "1024 MiB of GPU memory" in node.told(1).detail and node.told(1).reason == "Frozen"
    node.turn(job)
    assert not is_stopped(pid), "the driver works in its threads"
    node.until(lambda: job.state == RUNNING, "the job's return")
    assert node.fake.state(pid) == RUNS and not job.away.is_out
    assert node.fake.calls() == ["Lock", "Checkpoint", "Restore", "Unlock"]


def test_failure_freezes_as_ever_and_the_third_is_the_last(node):
    job, pid = node.pair()
    node.rival()
    node.fake.fail("Lock", NOT_READY)
    for number in range(1, 5):
        node.next_quantum()
        node.until(lambda: job.state == SUSPENDED, "the job's park")
        assert job.is_frozen and node.fake.state(pid) == RUNS
        assert node.fake.calls() == ["Lock"] * min(number, 3)
        assert "CUDA_ERROR_NOT_READY" in node.told(1).detail
        assert ("not tried any more" in node.told(1).detail) == (number >= 3)
        node.turn(job)
        node.until(lambda: job.state == RUNNING, "the job's return")


def test_what_a_parked_rank_holds_goes_with_the_driver(node):
    job, pid = node.pair(with_client=True)
    other = node.rival()
    page = job.ranks[0].page
    page.write([(wire.W_HELD, RESIDUE + 1)])
    node.next_quantum()
    node.say(job, wire.PARKED)
    assert job.state == SUSPENDING and other.state == SUSPENDED, "the GPU is not given on before"
    node.until(lambda: job.state == SUSPENDED, "the job's park")
    assert node.fake.state(pid) == CHECKPOINTED and not job.is_frozen
    node.until(lambda: is_stopped(pid), "a parked rank to be stopped, where no group can be frozen")
    node.turn(job)
    order = page.read()[wire.W_WORD]
    is_back = node.fake.state(pid) == RUNS
    assert wire.command_of(order) == wire.CMD_COMMIT or is_back, "it is not told to train before that"
    node.until(lambda: wire.command_of(page.read()[wire.W_WORD]) == wire.CMD_RUN, "the order")
    assert node.fake.state(pid) == RUNS
    page.write([(wire.W_STATE, wire.RUN)])
    node.until(lambda: job.state == RUNNING, "the job's return")


@pytest.mark.parametrize(("held", "world", "word"), [(RESIDUE, 1, ""), (RESIDUE + 1, 2, "with 2 processes")])
def test_rank_that_moved_its_memory_and_gangs_are_left_alone(node, held, world, word):
    job = node.train(1, world)
    node.rival()
    job.ranks[0].page.write([(wire.W_HELD, held)])
    node.next_quantum()
    node.park(job)
    assert job.state == SUSPENDED and node.fake.calls() == []
    assert word in node.told(1).detail and bool(word) == bool(node.told(1).detail)


def test_job_waits_for_room_on_its_gpu(node):
    job, pid = node.pair()
    node.rival()
    node.next_quantum()
    node.until(lambda: job.state == SUSPENDED, "the job's park")
    node.fake.free(1 << 30)
    node.turn(job)
    node.until(lambda: job.away.why, "the answer")
    assert job.state == RESUMING and node.fake.state(pid) == CHECKPOINTED
    assert node.told(1).reason == "Resuming" and "1024 MiB free" in node.told(1).detail
    node.fake.free(1 << 40)
    node.clock.now_ns += away.AGAIN_NS
    node.until(lambda: job.state == RUNNING, "the job's return")
    assert node.fake.state(pid) == RUNS and node.told(1).detail == ""


def test_driver_that_hangs_is_not_waited_for_nor_asked_again(node, monkeypatch):
    job, _ = node.pair()
    node.rival()
    says = 'print(\'{"is_out": false, "why": ""}\')'
    waits = [sys.executable, "-c", f"import sys; sys.stdin.read(); {says}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    hanging = subprocess.Popen(waits, **pipes)
    monkeypatch.setattr(driver_checkpoint, "start", lambda what, task: hanging)
    node.next_quantum()
    assert job.state == SUSPENDING
    node.clock.now_ns += away.HANG_NS + 1
    node.settle()
    node.until(lambda: job.state == SUSPENDED, "the freeze")
    assert job.is_frozen and "has not returned within 120 s" in node.told(1).detail
    node.turn(job)
    node.settle()
    assert job.state == RESUMING, "it cannot go on before the call is over"
    hanging.stdin.close()
    node.until(lambda: job.state == RUNNING, "the job's return")
    assert not job.away.is_out and job.away.failed


def test_call_for_a_job_that_has_ended_is_let_go(node, monkeypatch):
    calls = []

    def start(what, task):
        waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        call = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        calls.append(weakref.ref(call))
        return call

    monkeypatch.setattr(driver_checkpoint, "start", start)
    job, _ = node.pair()
    other = node.rival()
    node.next_quantum()
    assert job.state == SUSPENDING and len(calls) == 1
    node.remove(job)
    calls[0]().stdin.close()
    node.until(lambda: procs.read_proc(calls[0]().pid).state == "Z", "the call's end")
    node.start(other)
    node.add(3, "user1", (0,))
    node.turn_out(other)
    gc.collect()
    assert len(calls) == 2 and calls[0]() is None
    node.clock.now_ns += away.HANG_NS + 1
    node.settle()
    assert calls[1]() is not None and other.away.is_out, "its answer is still waited for"
    calls[1]().communicate()


def test_driver_that_is_not_wanted_is_not_asked(node):
    job, _ = node.pair()
    node.rival()
    node.node.settings = dataclasses.replace(node.node.settings, driver_checkpoint=False)
    node.slicer.switcher._mover = Mover(node.node)
    node.next_quantum()
    node.until(lambda: job.state == SUSPENDED, "the freeze")
    assert job.is_frozen and node.told(1).detail == "" and node.fake.calls() == []


@pytest.mark.parametrize("state", [LOCKED, CHECKPOINTED])
def test_job_that_was_away_when_the_daemon_died_is_brought_back(node, tmp_path, state):
    job, pid = node.pair()
    job.away.is_out, job.away.procs = True, [proc.id for proc in job.processes.members()]
    node.fake.put(pid, state)
    saved = state_of(node.node)
    again, _ = read_job(saved["jobs"][0], "n1")
    assert again.away.is_out and again.away.procs == job.away.procs
    StateFile(tmp_path / "state.json").save(saved)
    guard.thaw(tmp_path)
    node.until(lambda: node.fake.state(pid) == RUNS, "the guard's work")
    # The next daemon finds it running: there is nothing to do.
    node.slicer.switcher.follow(job)
    job.state = RESUMING
    node.until(lambda: job.state == RUNNING and not job.away.is_out, "the daemon's own")


def test_node_whose_driver_cannot_do_it_says_so(node, caplog):
    node.fake.fail("Init", 100)
    mover = Mover(node.node)
    node.until(lambda: "cuInit: error 100" in mover.why_not(), "the probe")
    assert "driver_checkpoint is on, and the driver cannot do it here: cuInit" in caplog.text
    job, _ = node.pair()
    node.rival()
    node.slicer.switcher._mover = mover
    node.next_quantum()
    node.until(lambda: job.state == SUSPENDED, "the freeze")
    assert job.is_frozen and node.fake.calls() == [] and "cuInit: error 100" in node.told(1).detail
