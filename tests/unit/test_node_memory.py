"""GPU memory as a node knows it: from its ranks' pages, from the site, from NVML; the library is played."""

from types import SimpleNamespace

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import nvml
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.memory import SANE_BYTES, Memory, card_bytes, memory_of
from gandiva_slurm.node.nvml import Nvml, Use
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.wire import page as wire
from tests.node_bench import Bench

KEY = JobKey(7, 0)


@pytest.fixture
def job():
    processes = JobProcesses(KEY, 1001, "n1", set(), set())
    resident = Resident(KEY, "user1", (0, 1), 100, 0, processes, 0, state=RUNNING)
    for number in range(2):
        rank = Rank(ProcId(10 + number, 1), number, Page.make(KEY, number, 2, 0), None)
        resident.join(rank, 2, "h:1")
    yield resident
    for rank in resident.ranks:
        rank.page.close()


def tell(rank, live=0, peak=0, held=0, ooms=0):
    rank.page.write([(wire.W_LIVE, live), (wire.W_PEAK, peak), (wire.W_HELD, held), (wire.W_OOMS, ooms)])


def test_ranks_are_summed_and_the_peak_is_known_when_all_have_told_it(job):
    one, two = job.ranks
    tell(one, 5, 50, 3, 1)
    assert memory_of(job) == Memory(5, 0, 0, 1)
    tell(two, 6, 60, 4, 1)
    assert memory_of(job) == Memory(11, 110, 0, 2)
    job.state = SUSPENDED
    assert memory_of(job).held == 7
    job.is_frozen = True
    assert memory_of(job).held == 110, "a frozen one has all of it"


def test_nonsense_is_bounded(job):
    for rank in job.ranks:
        tell(rank, *[(1 << 64) - 1] * 4)
    assert max(memory_of(job)) == SANE_BYTES


def test_the_site_may_say_what_a_gpu_has_else_the_library(job, tmp_path):
    node = Bench(tmp_path, 2).node
    assert card_bytes(node, job) == 0
    node.nvml = SimpleNamespace(cards=lambda: (80, 40))
    assert card_bytes(node, job) == 40, "the smallest counts"
    assert node.card_bytes(2) == 0
    object.__setattr__(node.settings, "card_bytes", 16)
    assert card_bytes(node, job) == 16


class Fake:
    """pynvml with two GPUs; on the second the driver tells less."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.asked = []

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=(80, 40)[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if handle:
            return [SimpleNamespace(pid=22, usedGpuMemory=None)]
        return [SimpleNamespace(pid=20, usedGpuMemory=7), SimpleNamespace(pid=21, usedGpuMemory=8)]

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        self.asked.append((handle, since))
        if handle:
            raise self.NVMLError("not supported")
        rows = [(20, 100, 30), (20, 101, 50)]
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in rows if t > since]


def test_the_library_tells_memory_and_how_busy_each_process_keeps_its_gpu():
    fake = Fake()
    library = Nvml(fake)
    assert library.cards() == (80, 40)
    assert library.uses() == [Use(0, 20, 7, 40), Use(0, 21, 8, -1, True), Use(1, 22, 0, -1)]
    assert [use.percent for use in library.uses()] == [-1, -1, -1], "no sample is counted twice"
    assert fake.asked[-2:] == [(0, 101), (1, 0)]


def test_clients_of_mps_are_processes_too_each_once(monkeypatch):
    fake = Fake()
    clients = [SimpleNamespace(pid=21, usedGpuMemory=9), SimpleNamespace(pid=23, usedGpuMemory=5)]
    ask = lambda handle: [] if handle else clients  # noqa: E731
    monkeypatch.setattr(fake, "nvmlDeviceGetMPSComputeRunningProcesses", ask, raising=False)
    assert [(use.pid, use.memory) for use in Nvml(fake).uses()] == [(20, 7), (21, 9), (23, 5), (22, 0)]


def test_a_gpu_that_is_lost_tells_nothing(monkeypatch):
    fake = Fake()
    library = Nvml(fake)

    def lost(handle):
        raise fake.NVMLError("GPU is lost")

    monkeypatch.setattr(fake, "nvmlDeviceGetComputeRunningProcesses", lost)
    assert library.uses() == []


def test_without_a_driver_there_is_no_library(monkeypatch):
    def fail():
        raise Fake.NVMLError("driver not loaded")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(nvmlInit=fail))
    assert nvml.load() is None
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.load() is None


def test_where_no_process_used_a_gpu_the_driver_says_not_found():
    class Quiet(Fake):
        def nvmlDeviceGetProcessUtilization(self, handle, since):
            error = self.NVMLError("Not Found")
            error.value = 6 if handle == 0 else 3
            raise error

    assert Nvml(Quiet()).uses() == [Use(0, 20, 7, -1, True), Use(0, 21, 8, -1, True), Use(1, 22, 0, -1)]
