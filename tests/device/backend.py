"""torch.card: the simulated card under the names that torch.cuda has, as far as the client asks for them."""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

#: The device's name in PyTorch: tensor.to("card").
NAME = "card"
#: What a process needs in its environment: the library, and the card's files (a:b).
LIBRARY, CARDS = "GANDIVA_CARD_LIBRARY", "GANDIVA_CARDS"


#: What gandivad's own code reads a card by, as it reads NVML.
NVML = Path(__file__).parent / "nvml"


def environment(library: Path, *cards: Path) -> dict[str, str]:
    """Return the words by which a process, and gandivad, has these cards; PYTHONPATH has the clone's root."""
    return {
        LIBRARY: str(library),
        CARDS: ":".join(map(str, cards)),
        "GANDIVA_ACCELERATOR": NAME,
        "PYTHONPATH": os.pathsep.join(map(str, (NVML, NVML.parents[2]))),
        "OMP_NUM_THREADS": "1",
    }


class Stream(torch.Stream):
    """A stream with the number that torch.cuda's have."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device(NAME, index(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """Its number in memory_snapshot()."""
        return int(self.stream_id)


def external_stream(handle: int, device: Any = None) -> Stream:
    """Return the stream of that number."""
    kind = torch.accelerator.current_stream(index(device)).device_type
    made: Stream = Stream(stream_id=handle, device_index=index(device), device_type=kind)
    return made


def default_stream(device: Any = None) -> Stream:
    """Return the stream that all begins on."""
    return external_stream(0, device)


def index(device: Any = None) -> int:
    """Return a device's number; without any the current one's."""
    if device is None:
        return int(torch.accelerator.current_device_index())
    if isinstance(device, int):
        return device
    found = torch.device(device).index
    return int(torch.accelerator.current_device_index()) if found is None else found


def current_stream(device: Any = None) -> Stream:
    """Return this thread's stream on a device."""
    found = torch.accelerator.current_stream(index(device))
    made: Stream = Stream(
        stream_id=found.stream_id, device_index=found.device_index, device_type=found.device_type
    )
    return made


@contextlib.contextmanager
def stream(one: Any) -> Iterator[Any]:
    """Let this thread queue its work on a stream."""
    before = current_stream(one.device)
    torch.accelerator.set_stream(one)
    try:
        yield one
    finally:
        torch.accelerator.set_stream(before)


_SEGMENT = ("address", "total_size", "stream", "pool", "allocated_size")


def memory_snapshot(mempool_id: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return the segments of all devices, or those of a pool."""
    found = []
    for device in range(_ops().device_count()):
        flat = _ops().snapshot(device)
        for at in range(0, len(flat), len(_SEGMENT)):
            segment = dict(zip(_SEGMENT, flat[at:], strict=False))
            segment |= {"device": device, "segment_pool_id": (0, segment.pop("pool"))}
            if mempool_id in (None, segment["segment_pool_id"]):
                found.append(segment)
    return found


class MemPool:
    """A pool of the host's memory, whatever its allocator; with `use_on_oom` for what finds no room."""

    id = (0, 1)

    def __init__(self, allocator: Any = None, use_on_oom: bool = False) -> None:
        _ops().fall_back_on(self.id[1] if use_on_oom else 0)

    def __del__(self) -> None:
        _ops().fall_back_on(0)
        torch.accelerator.empty_cache()

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return its segments."""
        return memory_snapshot(self.id)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Allocate in a pool."""
    _ops().use_pool(pool.id[1])
    try:
        yield
    finally:
        _ops().use_pool(0)


class CUDAPluggableAllocator:
    """Stands for an allocator's library; what it would do, the card's pools do."""

    def __init__(self, path: str, alloc: str, free: str) -> None:
        self.names = (path, alloc, free)

    def allocator(self) -> Any:
        """Return what a pool is given."""
        return self


_parts: dict[int, float] = {}


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process have a part of the card's memory at most."""
    _parts[index(device)] = fraction
    total = get_device_properties(device).total_memory
    _ops().bound(index(device), int(fraction * total))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the part of the card's memory that this process may have."""
    return _parts.get(index(device), 1.0)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return what is free of the card's memory, and how much there is; it begins a context."""
    free, total = _ops().memory_info(index(device))
    return int(free), int(total)


def get_device_properties(device: Any = None) -> Any:
    """Return what is known of the card."""
    return types.SimpleNamespace(name=get_device_name(device), total_memory=mem_get_info(device)[1])


def get_device_name(device: Any = None) -> str:
    """Return the card's name."""
    return "simulated card"


def manual_seed_all(seed: int) -> None:
    """Let all devices draw from a seed."""
    for device in range(_ops().device_count()):
        _ops().seed(device, seed)


def queue_work(seconds: float, device: Any = None) -> None:
    """Have the current stream busy for so much longer: a step whose kernels are queued."""
    _ops().queue_work(index(device), seconds)


def set_pace(kernel_s: float = 0.0, bytes_per_s: int = 0) -> None:
    """Say what a kernel takes, and how many bytes a second are copied (0: all at once)."""
    _ops().set_pace(kernel_s, bytes_per_s)


def _ops() -> Any:
    return torch.ops.gandiva_card


def _of_accelerator(name: str) -> Any:
    call = getattr(torch.accelerator, name)

    @functools.wraps(call)
    def asked(device: Any = None) -> Any:
        return call(index(device))

    return asked


#: What torch.accelerator knows of any device, and torch.cuda has under the same name.
_SHARED = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
)


def install(library: str = "") -> Any:
    """Load the library and have torch.card; return it."""
    if hasattr(torch, NAME):
        return getattr(torch, NAME)
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(library or os.environ[LIBRARY])
    ops, module = _ops(), types.ModuleType(f"torch.{NAME}")
    own = (current_stream, default_stream, stream, memory_snapshot, mem_get_info, get_device_properties)
    own += (get_device_name, set_per_process_memory_fraction, get_per_process_memory_fraction)
    own += (manual_seed_all, queue_work, set_pace, MemPool, use_mem_pool, CUDAPluggableAllocator)
    module.__dict__.update({call.__name__: call for call in own})
    module.__dict__.update({name: _of_accelerator(name) for name in _SHARED})
    module.__dict__.update(
        synchronize=lambda device=None: ops.synchronize(index(device)),
        Stream=Stream,
        ExternalStream=external_stream,
        Event=functools.partial(torch.Event, NAME),
        device=lambda device: torch.accelerator.device_index(index(device)),
        current_device=torch.accelerator.current_device_index,
        device_count=ops.device_count,
        empty_cache=torch.accelerator.empty_cache,
        is_available=lambda: ops.device_count() > 0,
        is_initialized=ops.is_initialized,
        is_current_stream_capturing=lambda: False,
        get_allocator_backend=lambda: "native",
        get_rng_state=lambda device=None: ops.get_rng_state(index(device)),
        set_rng_state=lambda state, device=None: ops.set_rng_state(index(device), state),
        manual_seed=lambda seed: ops.seed(index(), seed),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        _is_in_bad_fork=ops.is_forked,
        _lazy_init=lambda: None,
    )
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module
