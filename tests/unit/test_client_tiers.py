"""What a parked rank says it holds, with a CUDA that is played."""

import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from gandiva_slurm.client import guards, offload
from gandiva_slurm.client.rank import longest_drain_s
from gandiva_slurm.client.signals import Deferral
from gandiva_slurm.client.tiers import BestTier, HoldTier, Released


class Cuda:
    """Two devices, one in use; `busy` is how often an event says that it has not happened yet."""

    def __init__(self, busy=0, initialized=True, capturing=False):
        self.busy, self.initialized, self.capturing = busy, initialized, capturing
        self.recorded, self.is_cached = [], True

    def is_initialized(self):
        return self.initialized

    def is_current_stream_capturing(self):
        return self.capturing

    def device_count(self):
        return 2

    def memory_allocated(self, device):
        return (0, 4096)[device]

    def memory_reserved(self, device):
        return (0, 6144 + 10240 * self.is_cached)[device]

    def empty_cache(self):
        self.is_cached = False

    def max_memory_allocated(self, device):
        return (0, 8192)[device]

    def current_stream(self, device):
        return device

    def Event(self):
        return SimpleNamespace(record=self.recorded.append, query=self.query)

    def query(self):
        self.busy -= 1
        return self.busy < 0


@pytest.fixture
def play(monkeypatch):
    def _play(cuda, compiling=False):
        torch = SimpleNamespace(cuda=cuda, compiler=SimpleNamespace(is_compiling=lambda: compiling))
        monkeypatch.setitem(sys.modules, "torch", torch)
        return cuda

    return _play


def test_hold_tier_waits_for_the_device_and_says_what_it_holds(play):
    cuda = play(Cuda(busy=3))
    assert HoldTier().release() == Released(0, 6144, 8192), "what the cache alone had is given back"
    assert cuda.recorded == [1], "only the device in use"
    HoldTier().restore()


def test_device_that_stays_busy_is_an_error(play):
    play(Cuda(busy=1 << 60))
    with pytest.raises(TimeoutError, match=r"device 1 was still busy 0\.01 s"):
        HoldTier().release(0.01)


def test_without_cuda_nothing_is_held(play, monkeypatch):
    play(Cuda(initialized=False))
    assert HoldTier().release() == Released(0, 0)
    monkeypatch.delitem(sys.modules, "torch")
    assert HoldTier().release() == Released(0, 0)


def test_no_place_to_park_while_capturing_or_compiling(play, monkeypatch):
    play(Cuda())
    assert guards.is_fit_to_park()
    play(Cuda(capturing=True))
    assert not guards.is_fit_to_park()
    play(Cuda(capturing=True, initialized=False))
    assert guards.is_fit_to_park(), "asking a CUDA not in use would initialise it"
    play(Cuda(), compiling=True)
    assert not guards.is_fit_to_park()
    monkeypatch.delitem(sys.modules, "torch")
    assert guards.is_fit_to_park()


def test_loader_worker_is_recognised(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.data", raising=False)
    assert not guards.is_loader_worker()
    info = None
    monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(get_worker_info=lambda: info))
    assert not guards.is_loader_worker()
    info = object()
    assert guards.is_loader_worker()


def test_handler_that_raises_keeps_no_other_from_its_signal():
    came = []

    def raises(number, frame):
        raise InterruptedError(number)

    before = {signal.SIGUSR1: signal.signal(signal.SIGUSR1, raises)}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, lambda number, frame: came.append(number))
    try:
        deferral = Deferral()
        deferral.begin()
        for number in before:
            signal.raise_signal(number)
        assert deferral.is_called() and not came
        with pytest.raises(InterruptedError):
            deferral.end()
        assert came == [signal.SIGUSR2] and not deferral.is_called()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_first_park_waits_no_longer_than_others(play, monkeypatch):
    """The tier `torch` tries its way with a few bytes, which would wait for all that is queued."""
    play(Cuda(busy=1 << 60))
    done, made = threading.Event(), []
    monkeypatch.setattr(Cuda, "synchronize", lambda self, device: done.wait(30), raising=False)
    monkeypatch.setattr(offload, "TorchTier", lambda *parts: made.append(parts))
    with pytest.raises(TimeoutError):
        BestTier({}).release(0.01)
    done.set()
    assert made == []


@pytest.mark.parametrize(
    ("step_s", "deadline_s", "drain_s"),
    [(0.1, 30, 2), (0.75, 30, 3), (10, 30, 10), (10, 0.5, 2)],
)
def test_a_park_waits_for_four_steps_within_a_third_of_what_the_node_gives(step_s, deadline_s, drain_s):
    assert longest_drain_s(int(step_s * 1e9), deadline_s) == drain_s
