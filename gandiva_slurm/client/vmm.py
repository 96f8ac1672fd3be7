"""The tier `vmm`: torch_memory_saver takes the memory behind addresses away, and the addresses stay.

So captured CUDA graphs, and what only C++ knows of, survive. It must be preloaded (LD_PRELOAD) and keep
copies (TMS_INIT_ENABLE=1 and TMS_INIT_ENABLE_CPU_BACKUP=1 in the environment). Where CUDA fails it, out of
memory above all, it ends the process: nothing can be undone, so room is looked for before it is called.
Source: torch_memory_saver 0.0.10.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Dict

from gandiva_slurm.client import accelerator, host
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.guards import refuse_other_allocators, refuse_other_threads
from gandiva_slurm.client.signals import Deferral
from gandiva_slurm.client.tiers import DRAIN_S, Released
from gandiva_slurm.wire.page import TIER_VMM

MODULE = "torch_memory_saver"
#: How its environment must be.
SWITCHES = ("TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP")
#: Longest that copying back may take, and the time between two tries.
COPY_S, AGAIN_S = 20.0, 0.1
#: It is not believed when the device has not this much more free afterwards, of what was in use.
SEEN_PART = 0.5


def why_not() -> str:
    """Say why the saver cannot be used in this process, "" where it can; asks the environment alone."""
    if accelerator.kind() != accelerator.CUDA:
        return f"{MODULE} knows CUDA alone"
    if MODULE not in os.environ.get("LD_PRELOAD", ""):
        return f"{MODULE} is not preloaded"
    for name in SWITCHES:
        if os.environ.get(name) != "1":
            return f"{MODULE} is preloaded, and {name} is not 1"
    options = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:True" in options:
        return f"{MODULE} does not work with expandable_segments"
    return ""


class VmmTier:
    """Has the saver pause and resume all memory of torch's allocator; copies are on the host meanwhile."""

    number = TIER_VMM

    def __init__(self, torch: Any, device: Any) -> None:
        """Refused where the saver is not installed."""
        self.device = device
        self._torch, self._cuda = torch, torch.cuda
        try:
            self._saver = importlib.import_module(MODULE).torch_memory_saver
        except (ImportError, AttributeError) as err:
            raise Refused(f"{MODULE} is preloaded and cannot be imported ({err})") from err
        self._signals = Deferral()
        #: By device: the bytes that were taken away and are not back yet.
        self._gone: Dict[int, int] = {}

    def is_called(self) -> bool:
        """Return True when a signal waits for its handler, which needs the memory."""
        return self._signals.is_called()

    def kept(self) -> Dict[int, Any]:
        """The saver's copies cannot be read."""
        return {}

    def release(self, drain_s: float = DRAIN_S) -> Released:
        """Take all memory away; Refused when it is better left, and everything is as before."""
        self.device.drain(time.monotonic() + drain_s)
        self._check()
        self.device.empty_cache()
        live, peak = self.device.live(), self.device.peak()
        used = {number: self._cuda.memory_reserved(number) for number in range(self._cuda.device_count())}
        used = {number: size for number, size in used.items() if size}
        total = sum(used.values())
        room = host.free_bytes() // host.local_world() - host.SPARE
        if total > room:
            raise Refused(f"that takes {total >> 20} MiB of host memory, and {max(0, room) >> 20} are free")
        free = sum(self._free(number) for number in used)
        self._signals.begin()
        try:
            self._saver.pause()
        except Exception:
            self._signals.end()
            raise
        self._gone = used
        if sum(self._free(number) for number in used) - free < total * SEEN_PART:
            self.restore_at_last()
            raise Refused(f"{MODULE} paused, and the GPU has no more memory free than before")
        return Released(live, 0, peak)

    def restore(self) -> None:
        """Have the memory back where it was; MemoryError, and nothing has changed, while there is no room."""
        for number, size in self._gone.items():
            free = self._free(number)
            if free < size:
                raise MemoryError(f"GPU {number} has {free >> 20} MiB free, and {size >> 20} are needed")
        if self._gone:
            self._saver.resume()
            self._gone = {}
            self.device.drain(time.monotonic() + COPY_S)
        self._signals.end()

    def restore_at_last(self) -> None:
        """Restore, however often it takes: without its memory the script must not go on."""
        while True:
            try:
                return self.restore()
            except MemoryError:
                time.sleep(AGAIN_S)

    def _check(self) -> None:
        refuse_other_threads()
        refuse_other_allocators(self._cuda)
        if getattr(getattr(self._saver, "_impl", None), "_mem_pools", None):
            raise Refused(f"the script uses {MODULE} itself")
        group = self._torch.distributed
        is_gang = group.is_available() and group.is_initialized() and group.get_world_size() > 1
        if is_gang and "nccl" in group.get_backend():
            raise Refused("NCCL may have shown its memory to other ranks")

    def _free(self, number: int) -> int:
        return int(self._cuda.mem_get_info(number)[0])
