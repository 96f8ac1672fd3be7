"""The devices whose memory the tier `torch` moves, with a CUDA that is played, and the host memory for it."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from gandiva_slurm.client import host
from gandiva_slurm.client.device import Cuda
from gandiva_slurm.client.errors import Refused


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


def test_memory_of_another_stream_is_allocated_there_again():
    device = played((1000, 7, (0, 0)), (2000, 9, (0, 0)), (3000, 0, (0, 0)))
    cuda = device._cuda
    cuda.default_stream = lambda number: SimpleNamespace(cuda_stream=0, device=number)
    cuda.ExternalStream = lambda handle, number: SimpleNamespace(cuda_stream=handle, device=number)
    cuda.stream = lambda stream: contextlib.nullcontext((stream.cuda_stream, stream.device))
    device.begin(soon())
    entered = []
    for address in (1000, 1099, 2000, 2099, 2100, 3050):
        storage = SimpleNamespace(data_ptr=lambda address=address: address)
        assert device.is_movable(storage)
        with device.allocating(device.stream_of(storage)) as where:
            entered.append(where)
    assert entered == [None, None, (9, 0), (9, 0), None, (0, 0)]


def test_memory_of_other_streams_stays_where_this_torch_knows_no_way_to_them():
    device = played((1000, 7, (0, 0)), (2000, 9, (0, 0)))
    device.begin(soon())
    at = [SimpleNamespace(data_ptr=lambda address=address: address) for address in (1000, 2000)]
    assert [device.is_movable(storage) for storage in at] == [True, False]


def test_what_a_block_has_beyond_its_tensor_is_nobodys():
    device, whole, live = played(), torch.empty(1_300_000, dtype=torch.uint8).untyped_storage(), 2 << 20
    device._cuda.memory_stats = lambda number: {"requested_bytes.all.current": 1_300_000}
    assert device.asked(live) == device.size(whole) == 1_300_000
    device._cuda.memory_stats = lambda number: {}
    assert device.asked(live) == live, "an older torch does not tell"


def test_what_is_held_is_what_nobody_else_can_have():
    device = played()
    device._cuda.memory_allocated = lambda number: 512
    assert device.held() == 4096


def test_device_that_stays_busy_is_waited_for_in_bounds():
    device, done = played(), threading.Event()
    device._cuda.synchronize = lambda number: done.wait(30)
    with pytest.raises(TimeoutError, match="still busy"):
        device.drain(time.monotonic() + 0.05)
    done.set()


def test_a_drain_waits_for_those_before_it_that_took_too_long():
    """A park refuses while another thread is inside torch, and these are."""
    device, done = played(), threading.Event()
    device._cuda.synchronize = lambda number: done.wait(30)
    with pytest.raises(TimeoutError):
        device.drain(time.monotonic() + 0.01)
    device._cuda.synchronize = lambda number: None
    with pytest.raises(TimeoutError):
        device.drain(time.monotonic() + 0.01)
    done.set()
    device.drain(soon())
    assert not any(waiter.is_alive() for waiter in device._waiters)


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
    first, second = slabs.slabs
    assert [(piece.slab is second, piece.start, piece.length) for piece in pieces] == [
        (False, 0, host.MIB - 10),
        (False, host.MIB - 10, 10),
        (True, 0, 10),
    ]
    assert (len(first), len(second)) == (host.MIB, 2 * host.MIB)
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
