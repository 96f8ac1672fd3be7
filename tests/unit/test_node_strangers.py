"""Processes on GPUs by NVML: what belongs to a job, what does not, and what is done about it."""

import asyncio
import os
import subprocess
import threading
import types

import pytest

from gandiva_slurm.controller import views
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import members, nvml, strangers
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses, Membership
from gandiva_slurm.node.memory import memory_of
from gandiva_slurm.node.nvml import Use
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId, read_proc
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.node.strangers import DOUBT_LOOKS, Strangers
from gandiva_slurm.node.usage import Usage
from gandiva_slurm.wire import page as wire
from tests.node_bench import Bench

GIB = 1 << 30


class World(Bench):
    """Two GPUs; job 1 has GPU 0. `homes` says which job a process belongs to."""

    def __init__(self, directory):
        super().__init__(directory, 2)
        self.homes = {}
        self.frozen = []
        self.strangers = Strangers(
            self.node,
            self.frozen.append,
            lambda pid: Membership(self.homes[pid], None, "0") if pid in self.homes else None,
        )
        key = JobKey(1, 0)
        self.job = Resident(
            key, "user1", (0,), 1, 0, JobProcesses(key, os.getuid(), "n1", set(), set()), 0, state=RUNNING
        )
        self.job.join(Rank(ProcId(os.getpid(), 1), 0, Page.make(key, 0, 1, 0), None), 1, "")
        self.node.residents[key] = self.job

    def told(self):
        return [event for event in self.events() if event["event"].startswith("stranger")]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "node")
    yield made
    made.job.ranks[0].page.close()


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def stays(child):
    """One that was killed takes a moment to end."""
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)


def test_what_a_parked_job_keeps_is_what_was_seen_after_its_park(world):
    """An answer to a question from before it says what it had while it ran."""
    world.homes = {os.getpid(): 1}
    use, now_ns = Use(0, os.getpid(), 5 * GIB, 0), world.clock.mono()
    world.strangers.take([use], now_ns)
    assert world.job.kept == (0, 0), "it runs"
    world.job.state, world.job.since_ns = SUSPENDED, now_ns + 5
    world.strangers.take([use], now_ns + 5)
    assert world.job.kept == (0, 0)
    world.strangers.take([use._replace(memory=GIB)], now_ns + 6)
    assert world.job.kept == (GIB, now_ns + 6)


async def test_a_job_that_waits_for_it_is_looked_for_soon(world, monkeypatch):
    asked, told = [], asyncio.Event()
    library = types.SimpleNamespace(uses=lambda: asked.append(1) or (), cards=lambda: ())
    monkeypatch.setattr(nvml, "load", lambda: library)
    monkeypatch.setattr(strangers, "SOON_S", 0.001)
    monkeypatch.setattr(strangers, "LOOK_S", 600.0)
    looking = Strangers(world.node, world.frozen.append, on_look=told.set)
    task = asyncio.ensure_future(looking.run())
    world.node.look_soon.set()
    async with asyncio.timeout(60):
        await told.wait()
    assert asked and not world.node.look_soon.is_set()
    task.cancel()


def test_what_a_job_takes_of_its_own_gpu_is_its_usage(world, child):
    world.homes = {os.getpid(): 1, child.pid: 1}
    world.strangers.take([Use(0, os.getpid(), 5 * GIB, 40), Use(0, child.pid, GIB, 30)])
    assert world.job.usage == Usage(6 * GIB, 70, 0, 0)
    assert world.node.strangers == ()
    world.strangers.take([])
    assert world.job.usage == Usage()


def test_a_process_on_another_gpu_is_told_of_once_and_left_alone(world, child):
    world.homes = {child.pid: 1}
    for _ in range(4):
        world.strangers.take([Use(1, child.pid, GIB, 30)])
    assert [(event["event"], event["gpu"], event["of_job"]) for event in world.told()] == [("stranger", 1, 1)]
    assert world.told()[0]["job"] == 1
    stays(child)
    assert make_report(world.node).strangers == ((1, child.pid, 1, GIB),)


def test_it_is_stopped_where_the_site_says_so_when_it_is_seen_again(world, child):
    object.__setattr__(world.node.settings, "stops_strangers", True)
    world.homes = {child.pid: 1}
    world.strangers.take([Use(1, child.pid, GIB, 30)])
    stays(child)
    world.strangers.take([Use(1, child.pid, GIB, 30)])
    assert child.wait(10) == -9
    assert [event["event"] for event in world.told()] == ["stranger", "stranger_stopped"]


@pytest.mark.parametrize("home", [None, 77])
def test_what_is_not_of_a_job_here_is_never_stopped(world, child, home):
    object.__setattr__(world.node.settings, "stops_strangers", True)
    world.homes = {child.pid: home} if home else {}
    for _ in range(4):
        world.strangers.take([Use(0, child.pid, GIB, 30)])
    stays(child)
    assert world.node.strangers[0].job_id == (home or 0)
    assert len(world.told()) == 1


V1 = "4:freezer:/slurm/uid_1/job_77/step_{}\n3:pids:/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_77/step_{}/user\n"


@pytest.mark.parametrize(
    ("group", "uid", "is_stopped"),
    [
        (V1.format("extern"), 0, True),
        (V2.format("extern"), 0, True),
        (V2.format("extern"), 1, False),
        (V2.format("0"), 0, False),
    ],
)
def test_what_came_by_ssh_to_a_job_without_a_step_here_is_stopped(
    world, child, monkeypatch, group, uid, is_stopped
):
    """Of an salloc between its steps: nobody pays for what it does. A step that is not known yet may be."""
    object.__setattr__(world.node.settings, "stops_strangers", True)
    monkeypatch.setattr(members.procs, "read_text", lambda pid, name, *most: group)
    planned = types.SimpleNamespace(job_id=77, uid=os.getuid() + uid)
    world.node.plan, world.homes = types.SimpleNamespace(jobs=(planned,)), {child.pid: 77}
    for _ in range(2):
        world.strangers.take([Use(0, child.pid, GIB, 30)])
    if is_stopped:
        assert child.wait(10) == -9
    else:
        stays(child)


def test_another_users_process_in_a_job_is_not_stopped(world, child):
    object.__setattr__(world.node.settings, "stops_strangers", True)
    world.job.processes.uid = os.getuid() + 1
    world.homes = {child.pid: 1}
    for _ in range(4):
        world.strangers.take([Use(1, child.pid, GIB, 30)])
    stays(child)


def test_gpus_that_are_not_ours_and_processes_that_are_gone_are_no_matter(world):
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert read_proc(gone.pid) is None
    world.strangers.take([Use(0, gone.pid, GIB, 30), Use(2, os.getpid(), GIB, 30)])
    assert world.node.strangers == ()
    assert world.told() == []


def test_one_that_comes_again_is_told_of_again(world, child):
    for uses in ([Use(1, child.pid, GIB, 0)], [], [Use(1, child.pid, GIB, 0)]):
        world.strangers.take(uses)
    assert len(world.told()) == 2


def train(world, looks, percent):
    for _ in range(looks):
        page = world.job.ranks[0].page
        page.write([(wire.W_SEQ, page.read()[wire.W_SEQ] + 10)])
        world.strangers.take([Use(0, os.getpid(), GIB, percent)])


def test_a_job_that_says_it_trains_and_uses_no_gpu_is_doubted(world):
    world.homes = {os.getpid(): 1}
    train(world, DOUBT_LOOKS + 2, 0)
    assert [event["event"] for event in world.events()] == ["doubt"]
    assert make_report(world.node).residents[0].is_doubted
    train(world, 1, 3)
    assert not make_report(world.node).residents[0].is_doubted


@pytest.mark.parametrize("percent", [-1, 50])
def test_one_that_uses_it_or_of_whom_nothing_is_known_is_not(world, percent):
    world.homes = {os.getpid(): 1}
    train(world, DOUBT_LOOKS + 2, percent)
    assert world.events() == []


def test_memory_that_torch_does_not_count_is_what_nvml_sees(world):
    world.homes = {os.getpid(): 1}
    world.job.ranks[0].page.write([(wire.W_PEAK, 1)])
    assert memory_of(world.job).peak == 1
    world.strangers.take([Use(0, os.getpid(), 3 * GIB, 40)])
    assert memory_of(world.job).peak == 3 * GIB
    world.job.ranks[0].page.write([(wire.W_PEAK, 2 * GIB)])
    assert memory_of(world.job).peak == 2 * GIB


def take_after(world, seconds, *uses):
    world.clock.now_ns += round(seconds * 1e9)
    world.strangers.take(uses)


def test_a_job_pays_for_a_gpu_that_was_not_given_to_it_from_when_it_was_seen_there(world, child):
    """Once for all its processes there; not for one that is gone at the next look."""
    world.homes = {child.pid: 1, os.getpid(): 1}
    for _ in range(3):
        take_after(world, 5, Use(1, child.pid, GIB, 30), Use(1, os.getpid(), GIB, -1))
    assert world.job.counts.held_ns == world.job.counts.over_ns == 10_000_000_000
    take_after(world, 5)
    assert world.job.counts.held_ns == 10_000_000_000


def test_a_parked_job_that_uses_its_gpu_is_charged_and_frozen(world):
    world.homes = {os.getpid(): 1}
    world.job.state, world.job.since_ns = SUSPENDED, world.clock.mono()
    take_after(world, 5, Use(0, os.getpid(), GIB, 40))
    assert world.frozen == [], "the samples are of its turn, as far as can be known"
    take_after(world, 5, Use(0, os.getpid(), GIB, 40))
    assert world.frozen == [world.job] and world.job.counts.held_ns == 5_000_000_000


@pytest.mark.parametrize("percent", [-1, 0])
def test_memory_alone_is_what_a_parked_job_may_keep(world, percent):
    world.homes = {os.getpid(): 1}
    world.job.state = SUSPENDED
    for _ in range(4):
        take_after(world, 5, Use(0, os.getpid(), GIB, percent))
    assert (world.frozen, world.job.counts.held_ns) == ([], 0)


class Library:
    """NVML of one process."""

    def uses(self):
        return [Use(0, os.getpid(), GIB, 30)]


@pytest.mark.parametrize("is_over", [True, False])
def test_driver_that_hangs_keeps_gandivad_from_nothing(world, monkeypatch, caplog, is_over):
    world.homes = {os.getpid(): 1}
    go_on, answers = threading.Event(), []

    def load():
        answers.append(go_on.wait(20))
        return Library()

    monkeypatch.setattr(nvml, "load", load)
    monkeypatch.setattr(strangers, "ANSWER_S", 0.01)
    monkeypatch.setattr(strangers, "LOOK_S", 0.01)

    async def serve():
        task = asyncio.create_task(world.strangers.run())
        await until(lambda: "NVML has not answered within 0.01 s" in caplog.text)
        assert world.node.nvml is None and world.node.card_bytes(0) == 0
        if is_over:
            go_on.set()
            await until(lambda: world.job.usage.memory == GIB)
        task.cancel()

    asyncio.run(serve())
    assert answers == [True] * is_over, "the end did not wait either"
    go_on.set()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_nodes_shows_them(world, child):
    world.homes = {child.pid: 1}
    world.strangers.take([Use(1, child.pid, GIB, 30)])
    report = make_report(world.node)
    assert views._strangers(report) == [{"gpu": 1, "pid": child.pid, "job_id": 1, "memory_bytes": GIB}]
    assert views._odd(report) == "1 process(es) on GPUs not given to them"


def test_a_trusted_job_that_was_caught_is_trusted_no_more(world, monkeypatch):
    """Whatever later plans say, and a gandivad that is started anew; it is taken into its group at once."""
    taken_in = []
    monkeypatch.setattr(type(world.node.freezer), "adopt", lambda _, resident: taken_in.append(resident))
    world.homes = {os.getpid(): 1}
    world.job.is_trusted, world.job.state, world.job.since_ns = True, SUSPENDED, world.clock.mono()
    for _ in range(2):
        take_after(world, 5, Use(0, os.getpid(), GIB, 40))
    assert (world.frozen, taken_in) == ([world.job], [world.job])
    world.node.freezer.set_trust(world.job, True)
    (row,) = state_of(world.node)["jobs"]
    later, _ = read_job(row, "n1")
    world.node.freezer.set_trust(later, True)
    assert not world.job.is_trusted and not later.is_trusted


def test_trust_that_the_site_takes_back_is_no_charge_against_the_job(world):
    world.job.is_trusted = True
    world.node.freezer.set_trust(world.job, False)
    assert not world.job.is_trusted
    world.node.freezer.set_trust(world.job, True)
    assert world.job.is_trusted


def test_rates_of_a_job_that_uses_no_gpu_are_not_told(world):
    world.homes = {os.getpid(): 1}
    world.job.gauge.alone.windows = [(10, 500_000_000)] * 8
    world.job.gauge.packed.windows = [(5, 500_000_000)] * 8
    train(world, DOUBT_LOOKS, 0)
    (told,) = make_report(world.node).residents
    assert (told.rate_alone, told.rate_packed) == (20.0, 10.0)
    train(world, 2, 0)
    (told,) = make_report(world.node).residents
    assert (told.rate_alone, told.rate_packed) == (0.0, 0.0)


def idle_s(world):
    (told,) = [item for item in make_report(world.node).residents if item.job_id == 1]
    return told.idle_s


def test_how_long_its_gpus_were_idle_counts_while_it_holds_them(world):
    world.homes = {os.getpid(): 1}
    take_after(world, 5)
    assert idle_s(world) == 5, "it has not even opened its GPU"
    take_after(world, 5, Use(0, os.getpid(), GIB, 0))
    assert idle_s(world) == 10
    take_after(world, 5, Use(0, os.getpid(), GIB, -1))
    assert idle_s(world) == 10, "how busy it is nobody knows"
    take_after(world, 0.5, Use(0, os.getpid(), GIB, -1, True))
    take_after(world, 0.5, Use(0, os.getpid(), GIB, 0), Use(0, os.getpid(), GIB, -1, True))
    assert idle_s(world) == 11, "the driver has no sample of it"
    world.job.state, world.job.since_ns = SUSPENDED, world.clock.now_ns
    take_after(world, 500)
    world.job.state, world.job.since_ns = RUNNING, world.clock.now_ns
    take_after(world, 3, Use(0, os.getpid(), GIB, 0))
    assert idle_s(world) == 14, "what is parked is not idle"
    take_after(world, 5, Use(0, os.getpid(), GIB, 7))
    assert idle_s(world) == 0


def test_of_one_that_idles_for_long_whole_minutes_are_told(world):
    take_after(world, 3599)
    assert idle_s(world) == 3540
