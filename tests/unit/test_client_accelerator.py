"""Which of torch's modules the client asks for devices."""

import sys
from types import SimpleNamespace

import pytest

from gandiva_slurm.client import accelerator, guards, rng, vmm


class Device:
    """One of torch's modules for devices."""

    def __init__(self, is_initialized):
        self.is_initialized = lambda: is_initialized
        self.is_current_stream_capturing = lambda: True


@pytest.fixture
def torch(monkeypatch):
    made = SimpleNamespace(cuda=Device(True), card=Device(True))
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_cuda_unless_another_is_named(torch, monkeypatch):
    assert accelerator.kind() == "cuda" and accelerator.of(torch) is accelerator.in_use() is torch.cuda
    monkeypatch.setenv("GANDIVA_ACCELERATOR", "card")
    assert accelerator.kind() == "card" and accelerator.of(torch) is accelerator.in_use() is torch.card


def test_one_that_torch_does_not_have_yet_is_cudas(torch, monkeypatch):
    monkeypatch.setenv("GANDIVA_ACCELERATOR", "other")
    assert accelerator.of(torch) is torch.cuda


def test_nothing_is_in_use_before_the_script_has_begun(torch, monkeypatch):
    torch.cuda = Device(False)
    assert accelerator.in_use() is None and guards.is_fit_to_park() and rng._devices() == []
    monkeypatch.delitem(sys.modules, "torch")
    assert accelerator.in_use() is None


def test_the_named_one_is_asked(torch, monkeypatch):
    torch.cuda = Device(False)
    monkeypatch.setenv("GANDIVA_ACCELERATOR", "card")
    assert not guards.is_fit_to_park(), "it captures"


def test_the_saver_is_for_cuda_alone(monkeypatch):
    monkeypatch.setenv("GANDIVA_ACCELERATOR", "card")
    monkeypatch.setenv("LD_PRELOAD", "/lib/torch_memory_saver.so")
    assert vmm.why_not() == "torch_memory_saver knows CUDA alone"
