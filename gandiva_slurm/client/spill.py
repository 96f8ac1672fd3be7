"""Host memory for what finds no room on the GPU: an opportunistic job gets slower instead of ending.

Torch falls back to a pool that is there for it (`torch.cuda.MemPool`, use_on_oom) when the GPU, or the cap
that a rank has there, is full. It takes only what the pool has already: here it is filled, a block a
boundary, with memory of the host that the GPU can use. What was spilled goes back to the GPU at the next park
and resume, if it has room. One pool a process, for its current device.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gandiva_slurm.client import accelerator
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.host import SPARE, free_bytes, local_world
from gandiva_slurm.client.notice import say

MIB = 1 << 20
#: The C library beside this file, of spill.c; `make setup` builds it. As spill.so it would hide this module.
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libspill.so")
#: What is added at one boundary, at most: pinning takes some 0.45 s a GiB. A larger tensor finds no room.
#: Less than the second is not added.
BLOCK, LEAST = 512 * MIB, 32 * MIB
#: Tensors of up to 1 MiB have segments of their own in torch's pools, of 2 MiB: how many such tensors.
SMALL = 16


class Spill:
    """The pool of this process."""

    def __init__(self) -> None:
        """There is none yet."""
        self._pool: Any = None
        self._allocator: Any = None
        self._is_over = False
        #: bytes of the pool, which torch counts as the GPU's, and the most of them that was seen in use
        self.size = 0
        self.most = 0
        #: the most that was in use on the GPU before there was a pool
        self._floor = 0

    @property
    def pool_id(self) -> Optional[Tuple[int, int]]:
        """The pool's number in torch's snapshots; None: there is none."""
        return tuple(self._pool.id) if self._pool is not None else None

    def offer(self, cuda: Any, size: int) -> None:
        """Have a pool of this many bytes in the end: add a block, if the host has as much to spare."""
        step = min(size - self.size, BLOCK) // (2 * MIB) * 2 * MIB
        if self._is_over or step < LEAST or step > free_bytes() // local_world() - SPARE:
            return
        device = cuda.current_device()
        part, total = cuda.get_per_process_memory_fraction(device), _total(cuda, device)
        was = self.size
        try:
            cuda.set_per_process_memory_fraction(min(1.0, part + step / total), device)
            self._add(cuda, step)
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._is_over = True
            say(f"it cannot spill into host memory ({type(err).__name__}: {err}); its cap stays as it is")
        finally:
            cuda.set_per_process_memory_fraction(min(1.0, part + (self.size - was) / total), device)

    def used(self, cuda: Any) -> int:
        """Return the bytes of tensors that are in the pool now."""
        if self._pool is None:
            return 0
        now = sum(int(segment["allocated_size"]) for segment in self._segments(cuda))
        self.most = max(self.most, now)
        return now

    def peak(self, cuda: Any, devices: Iterable[int]) -> int:
        """Return the most that was ever in use on these devices, without what was spilled."""
        devices = list(devices)
        most = sum(int(cuda.max_memory_allocated(device)) for device in devices)
        if not self.size and not self.most:
            return most
        # What was spilled is looked at now and then; that it was no more than this is certain.
        bound = sum(int(cuda.max_memory_reserved(device)) for device in devices) - self.size
        return max(self._floor, min(most - self.most, bound))

    def give_back(self, cuda: Any) -> None:
        """Have no pool any more, where no tensor is in it."""
        if self._pool is not None and not self.used(cuda):
            self._pool, self.size = None, 0
            cuda.empty_cache()

    def _segments(self, cuda: Any) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = cuda.memory_snapshot(self._pool.id)
        return found

    def _add(self, cuda: Any, size: int) -> None:
        torch, device = sys.modules["torch"], f"{accelerator.kind()}:{cuda.current_device()}"
        if self._pool is None:
            if not os.path.exists(LIBRARY):
                raise FileNotFoundError(f"{LIBRARY} is not built: make spill")
            names = ("gandiva_spill_alloc", "gandiva_spill_free")
            self._allocator = cuda.CUDAPluggableAllocator(LIBRARY, *names)
            self._pool = cuda.MemPool(self._allocator.allocator(), use_on_oom=True)
        self._floor = self.peak(cuda, [cuda.current_device()])
        smalls = 0 if self.size else SMALL
        with cuda.use_mem_pool(self._pool):
            made = [torch.empty(MIB, dtype=torch.uint8, device=device) for _ in range(smalls)]
            made.append(torch.empty(size - smalls * MIB, dtype=torch.uint8, device=device))
        made.clear()
        cuda.reset_peak_memory_stats(cuda.current_device())  # filling it was no use of the GPU's memory
        self.size = sum(int(segment["total_size"]) for segment in self._segments(cuda))


def _total(cuda: Any, device: int) -> int:
    return int(cuda.get_device_properties(device).total_memory)


#: One a process.
mine = Spill()
