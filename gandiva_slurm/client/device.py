"""The devices whose memory the tier `torch` moves: those of client/accelerator, and for tests the CPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence

from gandiva_slurm.client import accelerator
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.guards import refuse_other_allocators
from gandiva_slurm.client.spill import mine as spill


class Elsewhere(NamedTuple):
    """Device memory, from its start to its end, of another stream than its device's current one."""

    start: int
    end: int
    device: int
    #: the stream's handle, as torch's snapshots have it
    stream: int


class Cuda:
    """All devices of this process that are CUDA's, or work alike."""

    #: Memory that nothing found accounts for is looked for in the script's variables above this many bytes.
    slack = 1 << 20

    def __init__(self, torch: Any) -> None:
        """Take torch, whose devices are initialised."""
        self._torch, self._cuda = torch, accelerator.of(torch)
        self.kind = accelerator.kind()
        self._elsewhere: List[Elsewhere] = []
        self._waiters: List[threading.Thread] = []

    def begin(self, deadline: float) -> None:
        """Come to rest, and Refused where addresses may not change; TimeoutError when it stays busy."""
        self.drain(deadline)
        refuse_other_allocators(self._cuda)
        segments = self._cuda.memory_snapshot()
        if _has_pools(segments):
            self.empty_cache()  # of a graph that is gone, memory may be left
            segments = self._cuda.memory_snapshot()
        if _has_pools(segments):
            raise Refused("it has captured CUDA graphs, or has a memory pool of its own")
        getattr(self._torch._C, "_cuda_clearCublasWorkspaces", int)()
        streams = {device: self._cuda.current_stream(device).cuda_stream for device in self._in_use()}
        others = [one for one in segments if one["stream"] != streams.get(one["device"])]
        self._elsewhere = [
            Elsewhere(one["address"], one["address"] + one["total_size"], one["device"], one["stream"])
            for one in others
        ]

    def is_movable(self, storage: Any) -> bool:
        """Return True for memory of any stream that can be made current again to allocate it there."""
        return hasattr(self._cuda, "ExternalStream") or self.stream_of(storage) is None

    def stream_of(self, storage: Any) -> Optional[Elsewhere]:
        """Return the stream that a storage's memory belongs to, None for its device's current one.

        It must come back there: torch gives it on, once freed, in that stream's order (FSDP2's gradients).
        """
        address = storage.data_ptr()
        return next((found for found in self._elsewhere if found.start <= address < found.end), None)

    def allocating(self, where: Optional[Elsewhere]) -> ContextManager[Any]:
        """Let what is allocated meanwhile be that stream's."""
        if where is None:
            return contextlib.nullcontext()
        default = self._cuda.default_stream(where.device)
        is_default = where.stream == default.cuda_stream
        made = default if is_default else self._cuda.ExternalStream(where.stream, where.device)
        allocating: ContextManager[Any] = self._cuda.stream(made)
        return allocating

    def size(self, storage: Any) -> int:
        """Return what was asked for when a storage was allocated."""
        return int(storage.nbytes())

    def live(self) -> int:
        """Return the bytes in use by tensors."""
        return sum(self._cuda.memory_allocated(device) for device in self._devices())

    def held(self) -> int:
        """Return the bytes that no other process can have: what is cached, too; not what was spilled."""
        return sum(int(self._cuda.memory_reserved(device)) for device in self._devices()) - spill.size

    def asked(self, live: int) -> int:
        """Return how many of the live bytes were asked for: a block may have 1 MiB more than its tensor."""
        stats = [self._cuda.memory_stats(device) for device in self._in_use()]
        return min(live, sum(int(found.get("requested_bytes.all.current", live)) for found in stats))

    def peak(self) -> int:
        """Return the most that was ever in use there."""
        return spill.peak(self._cuda, self._devices())

    def drain(self, deadline: float) -> None:
        """Wait until all streams are idle; TimeoutError when that takes too long."""
        devices = self._in_use()
        waiter = threading.Thread(target=self._synchronize, args=(devices,), daemon=True)
        waiter.start()
        # Those of drains that took too long, too: a park refuses while other threads are inside torch.
        self._waiters = [one for one in self._waiters if one.is_alive()] + [waiter]
        for one in self._waiters:
            one.join(max(0.0, deadline - time.monotonic()))
        if any(one.is_alive() for one in self._waiters):
            raise TimeoutError(f"devices {devices} were still busy")

    def empty_cache(self) -> None:
        """Give free memory back to the driver, where others can have it."""
        self._cuda.empty_cache()

    def begin_copies(self, works: Sequence[Callable[[], Any]]) -> List[Any]:
        """Begin copies, in this order, beside what the current stream does; return a mark for each."""
        stream = self._cuda.Stream()
        stream.wait_stream(self._cuda.current_stream())
        marks = []
        with self._cuda.stream(stream):
            for work in works:
                work()
                marks.append(stream.record_event())
        return marks

    def is_one(self) -> bool:
        """Return True when this process uses one device, the current one."""
        return self._in_use() == [self._cuda.current_device()]

    def wait_for(self, mark: Any) -> None:
        """Let what the current stream does next wait for a mark; the host does not."""
        self._cuda.current_stream().wait_event(mark)

    def is_there(self, mark: Any) -> bool:
        """Return True when a mark has been reached."""
        return bool(mark.query())

    def settle(self, mark: Any) -> None:
        """Wait for a mark."""
        mark.synchronize()

    def allocate(self, size: int, is_pinned: bool) -> Any:
        """Return that many bytes of host memory."""
        return self._torch.empty(size, dtype=self._torch.uint8, device="cpu", pin_memory=is_pinned)

    def _devices(self) -> range:
        return range(self._cuda.device_count())

    def _in_use(self) -> List[int]:
        return [device for device in self._devices() if self._cuda.memory_reserved(device)]

    def _synchronize(self, devices: List[int]) -> None:
        for device in devices:
            self._cuda.synchronize(device)


def has_pools(cuda: Any) -> bool:
    """Return True where memory belongs to a CUDA graph, or to a pool of the script's own."""
    return _has_pools(cuda.memory_snapshot())


def _has_pools(segments: List[Dict[str, Any]]) -> bool:
    """Return True where memory belongs to a graph, or is registered: its addresses may not change."""
    ours = ((0, 0), spill.pool_id)
    return any(tuple(segment.get("segment_pool_id", (0, 0))) not in ours for segment in segments)


class CpuGauge:
    """The CPU as if it were a device, to test with (GANDIVA_TIER=torch-cpu): all tensors seen count."""

    kind = "cpu"
    slack = 0

    def __init__(self, torch: Any) -> None:
        """Nothing is counted yet."""
        self._torch = torch
        self._peak = 0
        self._mine: Dict[int, Any] = {}

    def begin(self, deadline: float) -> None:
        """Nothing is under way on a CPU."""

    def is_movable(self, storage: Any) -> bool:
        """All but what we keep ourselves."""
        return storage._cdata not in self._mine

    def stream_of(self, storage: Any) -> None:
        """A CPU has no streams."""

    def allocating(self, where: None) -> ContextManager[Any]:
        """Allocate as ever."""
        return contextlib.nullcontext()

    def size(self, storage: Any) -> int:
        """Return what a storage takes."""
        return int(storage.nbytes())

    def live(self) -> int:
        """Return the bytes of all tensors that Python knows of."""
        tensor, found = self._torch.Tensor, {}
        for thing in gc.get_objects():
            kind = type(thing)
            if kind is tensor or kind is self._torch.nn.Parameter:
                storage = thing.untyped_storage() if thing.layout is self._torch.strided else None
                if storage is not None and storage.device.type == "cpu" and self.is_movable(storage):
                    found[storage._cdata] = self.size(storage)
        self._peak = max(self._peak, sum(found.values()))
        return sum(found.values())

    def held(self) -> int:
        """Return the bytes of all tensors that Python knows of."""
        return self.live()

    def asked(self, live: int) -> int:
        """Return how many of the live bytes were asked for."""
        return live

    def peak(self) -> int:
        """Return the most that was ever counted."""
        return self._peak

    def drain(self, deadline: float) -> None:
        """Nothing is under way on a CPU."""

    def empty_cache(self) -> None:
        """A CPU has no cache of torch's."""

    def begin_copies(self, works: Sequence[Callable[[], Any]]) -> List[threading.Event]:
        """Copy in this order, in a thread of its own; return a mark for each."""
        marks = [threading.Event() for _ in works]

        def run() -> None:
            for work, mark in zip(works, marks):  # noqa: B905 (3.8)
                work()
                mark.set()

        threading.Thread(target=run, daemon=True).start()
        return marks

    def is_one(self) -> bool:
        """There is one CPU."""
        return True

    def wait_for(self, mark: threading.Event) -> None:
        """Wait for a mark."""
        mark.wait()

    settle = wait_for

    def is_there(self, mark: threading.Event) -> bool:
        """Return True when a mark has been reached."""
        return mark.is_set()

    def allocate(self, size: int, is_pinned: bool) -> Any:
        """Return that many bytes of host memory."""
        made = self._torch.empty(size, dtype=self._torch.uint8, device="cpu")
        self._mine[made.untyped_storage()._cdata] = made
        return made
