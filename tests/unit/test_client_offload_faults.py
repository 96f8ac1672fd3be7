"""What keeps the tier `torch` from moving memory, and what it leaves behind when something fails: nothing."""

import os
import queue
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from gandiva_slurm.client import host, notice, offload, roots, tiers
from gandiva_slurm.client.device import CpuGauge, Cuda
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.tiers import BestTier
from gandiva_slurm.wire.page import TIER_HOLD, TIER_TORCH
from tests import offload_kit as kit


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.setattr(offload, "AGAIN_S", 0.001)
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    monkeypatch.delenv("RANK", raising=False)


class Training:
    """A model, its optimizer, and the tier that knows of both."""

    def __init__(self):
        self.model = kit.net("cpu")
        self.optimizer = torch.optim.Adam(self.model.parameters())
        seen = {1: lambda: self.model, 2: lambda: self.optimizer}
        self.tier = BestTier(seen)
        self.train()

    def train(self):
        self.model(torch.randn(2, kit.WIDTH)).sum().backward()
        self.optimizer.step()

    def is_out(self):
        return self.model[0].weight.untyped_storage().nbytes() == 0

    def weights(self):
        return [value.tolist() for value in self.model.parameters()]


def park_and_go_on(training):
    """A park that moves all, and brings it back."""
    before = training.weights()
    done = training.tier.release()
    assert training.tier.number == TIER_TORCH and done.why == "" and training.is_out()
    training.tier.restore()
    assert training.weights() == before
    training.train()


def assert_held(training, why):
    """A park that holds, and says why."""
    before = training.weights()
    done = training.tier.release()
    assert training.tier.number == TIER_HOLD and done.released == 0 and done.held > 0
    assert why in done.why and not training.is_out()
    training.tier.restore()
    assert training.weights() == before
    training.train()


def test_process_without_cuda_holds_as_ever(monkeypatch):
    training = Training()
    for wish in ("", "auto", "hold", "nonsense"):
        monkeypatch.setenv("GANDIVA_TIER", wish)
        assert training.tier.release() == tiers.Released(0, 0)
        assert training.tier.number == TIER_HOLD and not training.is_out()


def test_unknown_wish_is_told(monkeypatch, capsys):
    monkeypatch.setenv("GANDIVA_TIER", "nonsense")
    assert not tiers.wants_to_move()
    assert "GANDIVA_TIER is 'nonsense'" in capsys.readouterr().err


def test_shared_parameters_are_refused_by_name(capsys):
    training = Training()
    training.model[0].bias.data = training.model[0].bias.data.clone().share_memory_()
    assert_held(training, "are shared with other processes")
    assert_held(training, "are shared with other processes")
    assert capsys.readouterr().err.count("stays on the GPU while it is parked") == 1, "said once"


def test_memory_of_numpy_is_refused_by_name():
    training = Training()
    bias = training.model[0].bias
    bias.data = torch.from_numpy(bias.detach().numpy().copy())
    assert_held(training, "memory that is not torch's own")
    bias.data = bias.data.clone()
    park_and_go_on(training)


def test_foreign_thread_inside_torch_is_refused_until_it_is_gone():
    training, orders, stands = Training(), queue.Queue(), threading.Event()

    def inside(module, args):
        stands.set()
        orders.get(timeout=30)

    guest = torch.nn.Linear(2, 2)
    guest.register_forward_pre_hook(inside)
    thread = threading.Thread(target=guest, args=(torch.ones(2),), name="evaluation")
    thread.start()
    try:
        assert stands.wait(30)
        assert_held(training, "another thread is inside torch: evaluation in torch.nn.modules.module")
    finally:
        orders.put(None)
        thread.join(30)
    park_and_go_on(training)


def test_too_little_host_memory_is_refused(monkeypatch):
    training = Training()
    park_and_go_on(training)
    monkeypatch.setattr(host, "free_bytes", lambda: 0)
    park_and_go_on(training)  # its pinned memory is kept
    training.model.register_buffer("large", torch.zeros(2 << 20))
    assert_held(training, "MiB of host memory more, and 0 are free")


def test_copy_that_takes_too_long_leaves_all_as_it_was(monkeypatch):
    training = Training()
    park_and_go_on(training)
    monkeypatch.setattr(offload, "COPY_S", -1.0)
    assert_held(training, "copying it to the host took longer")
    monkeypatch.undo()
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    park_and_go_on(training)


def fail(times, error):
    """A function that fails so often, then does nothing."""
    left = [error] * times

    def function(*args, **kwargs):
        if left:
            raise left.pop()

    return function


def test_failure_when_all_is_gone_is_undone():
    training = Training()
    park_and_go_on(training)
    mover = training.tier._mover
    mover.device.empty_cache = fail(1, RuntimeError("driver gone"))
    assert_held(training, "RuntimeError: driver gone")
    park_and_go_on(training)


def test_what_fails_again_and_again_is_given_up():
    training = Training()
    park_and_go_on(training)
    training.tier._mover._copy = fail(99, RuntimeError("no copy"))
    for _ in range(tiers.MOST_FAILURES):
        assert_held(training, "no copy")
    del training.tier._mover._copy
    assert_held(training, "failed 3 times, and is not tried again")


def test_restore_that_finds_no_memory_stays_parked_and_is_tried_again():
    training = Training()
    before = training.weights()
    park_and_go_on(training)
    before = training.weights()
    training.tier.release()
    mover = training.tier._mover
    mover.device.drain = fail(4, torch.OutOfMemoryError("CUDA out of memory"))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            training.tier.restore()
        assert training.is_out(), "nothing of it lies on the device meanwhile"
    training.tier.restore_at_last()
    assert training.weights() == before


def test_signal_waits_for_the_memory_to_be_back():
    training, served = Training(), []
    before = training.weights()
    old = signal.signal(signal.SIGUSR1, lambda number, frame: served.append(training.weights()))
    try:
        training.tier.release()
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while not training.tier.is_called():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert served == []
        training.tier.restore_at_last()
        assert served == [before] and not training.tier.is_called()
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(served) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_childs_end_does_not_end_the_park():
    training, served = Training(), []
    old = signal.signal(signal.SIGCHLD, lambda number, frame: served.append(training.is_out()))
    try:
        training.tier.release()
        signal.raise_signal(signal.SIGCHLD)
        assert not training.tier.is_called() and served == []
        training.tier.restore()
        assert served == [False]
    finally:
        signal.signal(signal.SIGCHLD, old)


def test_interrupt_comes_out_when_the_memory_is_back():
    training = Training()
    before = training.weights()
    training.tier.release()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        training.tier.restore_at_last()
    assert training.weights() == before
    park_and_go_on(training)


class Hidden:
    """Keeps a tensor where only the heap's walk finds it."""

    __slots__ = ("tensor",)


def test_heap_is_walked_once_and_only_for_much(monkeypatch):
    model, hidden = kit.net("cpu"), Hidden()
    hidden.tensor = torch.zeros(1000)
    hidden.tensor.fill_(3.0)
    device = CpuGauge(torch)
    walked = []
    monkeypatch.setattr(roots, "script_variables", lambda: [])
    monkeypatch.setattr(roots.gc, "get_objects", lambda: walked.append(1) or [hidden.tensor, model[0].weight])
    finder = roots.Roots(torch, device, {1: lambda: model})
    known = sum(value.nbytes for value in model.parameters())
    assert len(finder.find(known + 4000)) == 4 and not walked, "not for so little"
    monkeypatch.setattr(roots, "HEAP_FLOOR", 100)
    for live in (known + 4000, known + 9000):
        assert len(finder.find(live)) == 5 and walked == [1]
    hidden.tensor = None
    assert len(finder.find(known + 9000)) == 4 and walked == [1]


def addresses():
    """What is found in the variables of those who call this."""
    haul = roots.Haul(torch, CpuGauge(torch))
    haul.explore(roots.script_variables())
    return set(haul.storages)


def hold_for_a_while():
    """Have tensors in variables; tell whether they were found, and what is left when a variable is deleted."""
    tensor, box = torch.zeros(3), {"deep": [(torch.ones(3),)]}
    keys = {thing.untyped_storage()._cdata for thing in (tensor, box["deep"][0][0])}
    is_found = keys <= addresses()
    left = weakref.ref(tensor)
    del tensor
    return is_found, left()


def test_variables_of_running_functions_are_found_and_kept_no_longer():
    # A function of its own: pytest's assertions call locals(), whose callers are left alone.
    assert hold_for_a_while() == (True, None)


def test_variables_that_a_script_shows_itself_are_left_alone():
    tensor, shown = torch.zeros(3), locals()
    addresses()
    assert shown.get("tensor", tensor) is tensor

    class Body:
        inside = torch.zeros(4)
        is_found = inside.untyped_storage()._cdata in addresses()

    assert Body.is_found and Body.inside.shape == (4,)


class Odd(torch.Tensor):
    """A tensor that does not tell what it stands on."""

    def untyped_storage(self):
        raise NotImplementedError("no storage here")


def test_tensor_of_an_unknown_kind_is_passed_by():
    training = Training()
    training.model.odd = torch.zeros(3).as_subclass(Odd)
    park_and_go_on(training)


def test_modules_are_watched_for_the_first_steps_only():
    rank, model, late = Rank(""), kit.net("cpu"), torch.nn.Linear(2, 2)
    roots.watch_modules(rank, torch)
    model(torch.zeros(1, kit.WIDTH))
    rank.seq = roots.WATCHED_BOUNDARIES
    model(torch.zeros(1, kit.WIDTH))
    late(torch.zeros(2))
    assert {id(module) for module in model.modules()} == set(rank.seen) and id(late) not in rank.seen
    del model
    assert rank.seen == {}


def test_what_only_a_graph_has_saved_is_found_by_it_alone(monkeypatch):
    """The gauge counts what Python cannot see; without the walk along graphs it would be held."""
    monkeypatch.setattr(roots.Haul, "_look_at_graph", lambda self, node: None)
    torch.manual_seed(1)
    with kit.AllStorages() as storages:
        parks = kit.Parks(kit.ExactGauge(storages), 1, 1)
        kit.train(kit.kept_graph, "cpu", 1, parks.between)
    assert parks.said[0][2] > 0


class PlayedCuda:
    """A CUDA with one device in use and whatever memory it is said to have."""

    def __init__(self, segments, backend="native"):
        self.segments, self.backend = segments, backend
        self.is_busy = threading.Event()
        self.synchronize = lambda device: None

    def get_allocator_backend(self):
        return self.backend

    def memory_snapshot(self):
        return self.segments

    def empty_cache(self):
        self.segments = [segment for segment in self.segments if segment["total_size"]]

    def device_count(self):
        return 2

    def memory_reserved(self, device):
        return (4096, 0)[device]

    def current_stream(self, device):
        return SimpleNamespace(cuda_stream=7)


def played(*segments, backend="native"):
    found = [
        {"address": at, "total_size": 100, "stream": stream, "device": 0, "segment_pool_id": pool}
        for at, stream, pool in segments
    ]
    core = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None)
    return Cuda(SimpleNamespace(cuda=PlayedCuda(found, backend), _C=core))


def soon():
    return time.monotonic() + 5


def test_captured_graphs_are_refused():
    with pytest.raises(Refused, match="captured CUDA graphs"):
        played((1000, 7, (0, 0)), (2000, 7, (0, 1))).begin(soon())


def test_memory_that_a_graph_has_left_is_none_in_the_way():
    device = played((1000, 7, (0, 0)), (2000, 7, (0, 1)))
    device._cuda.segments[1]["total_size"] = 0
    device.begin(soon())


def test_other_allocators_are_refused():
    with pytest.raises(Refused, match="cudaMallocAsync"):
        played(backend="cudaMallocAsync").begin(soon())


def test_memory_of_other_streams_stays():
    device = played((1000, 7, (0, 0)), (2000, 9, (0, 0)))
    device.begin(soon())
    at = [
        SimpleNamespace(data_ptr=lambda address=address: address)
        for address in (1000, 1099, 2000, 2099, 2100)
    ]
    assert [device.is_movable(storage) for storage in at] == [True, True, False, False, True]


def test_device_that_stays_busy_is_waited_for_in_bounds():
    device, done = played(), threading.Event()
    device._cuda.synchronize = lambda number: done.wait(30)
    with pytest.raises(TimeoutError, match="still busy"):
        device.drain(time.monotonic() + 0.05)
    done.set()


def test_slabs_are_cut_kept_and_given_back():
    made = []

    def allocate(size, is_pinned):
        made.append((size, is_pinned))
        return torch.empty(size, dtype=torch.uint8)

    slabs = host.Slabs(allocate, budget=3 * host.MIB)
    slabs.make_room(5 * host.MIB)
    assert made == [(8 * host.MIB, False)], "more than the budget is pageable"
    slabs.give_back()
    slabs.make_room(host.MIB)
    slabs.make_room(3 * host.MIB)
    assert made[1:] == [(host.MIB, True), (2 * host.MIB, True)]
    pieces = [*slabs.take(host.MIB - 10), *slabs.take(20)]
    assert [(at, len(piece)) for at, piece in pieces] == [(0, host.MIB - 10), (0, 10), (10, 10)]
    slabs.give_back()
    assert len(slabs.slabs) == 2 and len(made) == 3


def test_pinned_memory_that_cannot_be_had_is_pageable():
    def allocate(size, is_pinned):
        if is_pinned:
            raise RuntimeError("cudaHostAlloc")
        return torch.empty(size, dtype=torch.uint8)

    slabs = host.Slabs(allocate, budget=8 * host.MIB)
    slabs.make_room(2 * host.MIB)
    slabs.give_back()
    assert slabs.slabs == []


def test_budget_is_named_or_a_part_of_what_the_job_may_use(monkeypatch):
    monkeypatch.setenv("GANDIVA_PINNED_MIB", "64")
    assert host.pinned_budget() == 64 * host.MIB
    monkeypatch.delenv("GANDIVA_PINNED_MIB")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(host, "_limits", lambda: [(1 << 20, 1 << 19), (1 << 50, 0)])
    assert host.pinned_budget() == 1 << 17
    assert host.free_bytes() == 1 << 19


CGROUPS = {
    2: ("0::/job/step\n", "job", "memory.max", "memory.current", "inactive_file 10\nanon 5\n"),
    1: (
        "4:cpu:/\n5:memory:/job/step\n0::/other\n",
        "memory/job",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file 10\ninactive_file 1\n",
    ),
}


@pytest.mark.parametrize("version", CGROUPS)
def test_limits_of_cgroups_around_the_job_count(version, tmp_path, monkeypatch):
    lines, directory, limit, used, cached = CGROUPS[version]
    monkeypatch.setattr(host, "_CGROUPS", str(tmp_path))
    (tmp_path / directory / "step").mkdir(parents=True)
    (tmp_path / directory / limit).write_text("1000\n")
    (tmp_path / directory / used).write_text("600\n")
    (tmp_path / directory / "memory.stat").write_text(cached)
    (tmp_path / directory / "step" / limit).write_text("max\n")
    (tmp_path / "own").write_text(lines)
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *args, **kwargs: real(
            tmp_path / "own" if path == "/proc/self/cgroup" else path, *args, **kwargs
        ),
    )
    assert host._limits() == [(1000, 590)]
