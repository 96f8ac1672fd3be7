"""The tier `vmm` with a saver and a CUDA that are played, and the order in which tiers are tried."""

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from gandiva_slurm.client import choice, host, notice, tiers, vmm
from gandiva_slurm.client.choice import AUTO, CPU, KEEP, TORCH, VMM, Facts, movers
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.tiers import BestTier, Released
from gandiva_slurm.client.vmm import VmmTier
from gandiva_slurm.wire.page import HELD_BECAUSE, TIER_HOLD, TIER_VMM

MIB = 1 << 20
USED = 100 * MIB
ON_CUDA = Facts(AUTO, True, "", {})


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (ON_CUDA, (TORCH, VMM)),
        (ON_CUDA._replace(saver="not preloaded"), (TORCH,)),
        (ON_CUDA._replace(never={TORCH: "too old"}), (VMM,)),
        (ON_CUDA._replace(saver="no", never={TORCH: "too old"}), ()),
        (ON_CUDA._replace(wish=KEEP), ()),
        (ON_CUDA._replace(is_on_cuda=False), ()),
        (Facts(CPU, False, "", {}), (TORCH,)),
        (Facts(CPU, False, "", {TORCH: "broken"}), ()),
    ],
)
def test_order_of_movers(facts, want):
    assert movers(facts) == want


class Machine:
    """One GPU with a torch and a saver on it: what is paused is free for others."""

    def __init__(self):
        self.free, self.calls, self.is_paused = 0, [], False
        self.does_nothing = False
        self.torch_memory_saver = SimpleNamespace(pause=self.pause, resume=self.resume, _impl=None)

    def pause(self):
        assert not self.is_paused, "that would end the process"
        self.is_paused = True
        self.calls.append("pause")
        self.free += 0 if self.does_nothing else USED

    def resume(self):
        assert self.is_paused and (self.does_nothing or self.free >= USED), "that would end the process"
        self.is_paused = False
        self.calls.append("resume")
        self.free -= 0 if self.does_nothing else USED


class Cuda:
    """torch.cuda, as far as tiers ask it; its memory is a captured graph's."""

    def __init__(self, machine):
        self._machine = machine

    def is_initialized(self):
        return True

    def get_allocator_backend(self):
        return "native"

    def memory_snapshot(self):
        return [{"segment_pool_id": (0, 1), "total_size": USED}]

    def device_count(self):
        return 2

    def memory_allocated(self, device):
        return (90 * MIB, 0)[device]

    def max_memory_allocated(self, device):
        return (95 * MIB, 0)[device]

    def memory_reserved(self, device):
        return (USED, 0)[device]

    def mem_get_info(self, device):
        return (self._machine.free, 1 << 40)

    def synchronize(self, device):
        pass

    def empty_cache(self):
        pass

    def current_stream(self, device):
        return SimpleNamespace(cuda_stream=0)

    def Event(self):
        return SimpleNamespace(record=lambda stream: None, query=lambda: True)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    made.group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    made.torch = ModuleType("torch")
    made.torch.cuda, made.torch.distributed = Cuda(made), made.group
    module = ModuleType(vmm.MODULE)
    module.torch_memory_saver = made.torch_memory_saver
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    monkeypatch.setitem(sys.modules, vmm.MODULE, module)
    monkeypatch.setattr(host, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.setattr(vmm, "AGAIN_S", 0.001)
    for name in ("GANDIVA_TIER", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "/some/where/torch_memory_saver_hook_mode_preload.abi3.so")
    for name in vmm.SWITCHES:
        monkeypatch.setenv(name, "1")
    return made


@pytest.fixture
def tier(machine):
    from gandiva_slurm.client.device import Cuda as Device

    return VmmTier(machine.torch, Device(machine.torch))


def test_environment_of_the_saver_is_probed(machine, monkeypatch):
    assert vmm.why_not() == ""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert "expandable_segments" in vmm.why_not()
    monkeypatch.setenv("TMS_INIT_ENABLE_CPU_BACKUP", "0")
    assert "TMS_INIT_ENABLE_CPU_BACKUP is not 1" in vmm.why_not(), "what it took away would be lost"
    monkeypatch.delenv("LD_PRELOAD")
    assert "not preloaded" in vmm.why_not()


def test_memory_goes_and_comes(machine, tier):
    assert tier.release() == Released(90 * MIB, 0, 95 * MIB)
    assert machine.free == USED
    tier.restore()
    tier.restore()
    assert machine.calls == ["pause", "resume"] and machine.free == 0


def test_it_is_never_resumed_into_a_full_card(machine, tier):
    tier.release()
    machine.free -= 1
    with pytest.raises(MemoryError, match="GPU 0 has 99 MiB free, and 100 are needed"):
        tier.restore()
    timer = threading.Timer(0.05, setattr, (machine, "free", USED))
    timer.start()
    tier.restore_at_last()
    timer.join()
    assert machine.calls == ["pause", "resume"]


def test_saver_that_frees_nothing_is_not_believed(machine, tier):
    machine.does_nothing = True
    tier._cuda.memory_reserved = lambda device: 0 if device else USED
    tier._free = lambda number: 10 * USED
    with pytest.raises(Refused, match="no more memory free than before"):
        tier.release()
    assert machine.calls == ["pause", "resume"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            lambda m: setattr(host, "free_bytes", lambda: USED),
            "takes 100 MiB of host memory, and 36 are free",
        ),
        (lambda m: setattr(m.torch_memory_saver, "_impl", SimpleNamespace(_mem_pools={1: 2})), "script uses"),
        (lambda m: setattr(m.torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync"), "MallocAsync"),
        (lambda m: m.group.__dict__.update(NCCL), "NCCL may have shown"),
    ],
)
def test_refused_by_name_before_anything_moves(machine, tier, monkeypatch, how, why):
    monkeypatch.setattr(host, "local_world", lambda: 1)
    how(machine)
    with pytest.raises(Refused, match=why):
        tier.release()
    assert machine.calls == []


NCCL = {
    "is_initialized": lambda: True,
    "get_world_size": lambda: 2,
    "get_backend": lambda: "cpu:gloo,cuda:nccl",
}


def test_pause_that_raises_leaves_the_signals_alone(machine, tier):
    def pause():
        raise AssertionError("invalid LD_PRELOAD")

    tier._saver.pause = pause
    with pytest.raises(AssertionError):
        tier.release()
    tier.restore()
    assert machine.calls == [] and not tier.is_called()


class NoTorch:
    """The tier `torch` where CUDA graphs are."""

    def __init__(self, device, error):
        self.device, self.error = device, error

    def release(self, drain_s):
        raise self.error


@pytest.fixture
def best(machine, tier):
    made = BestTier({})
    made._movers = {TORCH: NoTorch(tier.device, Refused("it has captured CUDA graphs"))}
    return made


def test_next_tier_is_taken_where_the_first_refuses(machine, best):
    done = best.release()
    assert best.number == TIER_VMM and done == Released(90 * MIB, 0, 95 * MIB)
    best.restore()
    assert machine.calls == ["pause", "resume"] and not best.is_called()


def test_all_reasons_are_told_where_none_works(machine, best):
    machine.torch_memory_saver._impl = SimpleNamespace(_mem_pools={1: 2})
    done = best.release()
    assert best.number == TIER_HOLD and done.held == USED
    assert done.why == HELD_BECAUSE + "it has captured CUDA graphs; the script uses torch_memory_saver itself"


def test_tier_that_keeps_failing_is_not_tried_again(machine, best):
    best._movers[TORCH].error = OSError("broken")
    for _ in range(tiers.MOST_FAILURES):
        best.release()
        best.restore()
    assert choice.movers(best._facts()) == (VMM,)
    best.release()
    assert best.number == TIER_VMM
    best.restore()


def test_busy_device_is_waited_for_once(machine, best, capsys):
    best._movers[TORCH].error = TimeoutError("still busy")
    done = best.release()
    assert best.number == TIER_HOLD and "still busy" in done.why and machine.calls == []


def test_saver_that_is_not_installed_is_refused_for_good(machine, best, monkeypatch):
    monkeypatch.setitem(sys.modules, vmm.MODULE, None)
    assert "cannot be imported" in best.release().why
    assert choice.movers(best._facts()) == (TORCH,)
