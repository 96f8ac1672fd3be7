"""How a rank behaves while it shares its GPU with another job's: within a memory cap, and a part of the time.

The node says so by two words of the page: THROTTLE is 0 while it has the GPU alone, else its duty in percent;
MEM_CAP holds meanwhile, in bytes, 0 for none. Looked at only at a boundary with a THROTTLE that is not 0, so
that a rank alone pays for nothing but the comparison; with a duty, between the layers of a step as well. What
fails here never reaches the script.
"""

from __future__ import annotations

from time import monotonic_ns, sleep
from typing import Any, Dict, List

from gandiva_slurm.client import accelerator
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.in_step import Layers
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.spill import mine as spill
from gandiva_slurm.wire.page import (
    NEVER,
    W_AT,
    W_BEAT,
    W_LIVE,
    W_MEM_CAP,
    W_OOMS,
    W_PEAK,
    W_SPILL,
    W_SPILLED,
    W_THROTTLE,
)

#: THROTTLE of a rank that may go as fast as it can.
FULL = 100
#: A pause ends so soon after the node has changed its mind, and when the node has been silent for so long.
SLICE_S, SILENT_NS = 2e-3, 5_000_000_000
#: Within a step it pauses once a part of it took so long: as a GPU's own slices between processes.
PART_NS = 2_000_000
#: How often its memory is told while it shares.
TELL_NS = 1_000_000_000


class Share:
    """A rank's side of sharing."""

    def __init__(self, words: memoryview) -> None:
        """Nothing is shared yet; `words` are the page's."""
        self.words = words
        #: The cap that holds, and the bytes of host memory that torch counts within it.
        self._cap, self._spare = 0, 0
        #: What each device was capped at before we came, as a part of its memory.
        self._before: Dict[int, float] = {}
        #: The boundary that the step under way began at, once the one before it had been waited for; else 0.
        self._since_ns = 0
        #: How much longer than it was to the last pause was.
        self._over_ns = 0
        self._told_ns = 0
        self._is_broken = False
        self._layers = Layers(self._within)

    def heed(self) -> int:
        """At a boundary: take the node's word on cap and duty, and pause for as long as the duty asks.

        Return the THROTTLE word with which it need not be called: none while there is something to undo.
        """
        words = self.words
        duty, cap = words[W_THROTTLE], words[W_MEM_CAP]
        try:
            self._bound(cap if duty else 0)
            if duty and cap:
                self._offer(cap, words[W_SPILL])
            self._tell()
            if 0 < duty < FULL:
                _finish_step()
                self._pause(duty)
                self._layers.watch()
            else:
                self._layers.leave()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._break(err)
        self._since_ns = monotonic_ns() if 0 < duty < FULL else 0
        return NEVER if duty else 0

    def rest(self) -> None:
        """The rank has been parked: that time was no step's."""
        self._since_ns = 0

    def wake(self) -> None:
        """Its memory is about to come back: alone it needs no pool, which would count as the GPU's."""
        cuda = accelerator.in_use() if spill.size and not self.words[W_THROTTLE] else None
        if cuda is not None:
            spill.give_back(cuda)
            self._bound(0)

    def end(self) -> None:
        """It is no rank any more: steps are left alone."""
        self._layers.leave()

    def _offer(self, cap: int, size: int) -> None:
        cuda = accelerator.in_use() if size > spill.size else None
        if cuda is not None and not self._is_broken:
            total = cuda.get_device_properties(cuda.current_device()).total_memory
            spill.offer(cuda, min(size, total - cap))  # torch bounds both together by what the GPU has
            self._bound(cap)

    def _bound(self, cap: int) -> None:
        if (cap, spill.size) == (self._cap, self._spare) or self._is_broken:
            return
        cuda = accelerator.in_use()
        if cuda is None:
            return
        devices = devices_of(cuda) if cap else list(self._before)
        for device in devices:
            self._bound_device(cuda, device, cap)
        self._cap, self._spare = (cap, spill.size) if devices else (0, 0)

    def _bound_device(self, cuda: Any, device: int, cap: int) -> None:
        total = cuda.get_device_properties(device).total_memory
        ask = getattr(cuda, "get_per_process_memory_fraction", lambda device: 1.0)
        before = self._before.setdefault(device, ask(device))
        spared = spill.size / total  # torch counts it as the device's
        if not cap:
            cuda.set_per_process_memory_fraction(min(1.0, self._before.pop(device) + spared), device)
            return
        # Never below what it has needed so far: the cap is there for the other's sake, not to end this one.
        spill.used(cuda)
        least = max(cap, spill.peak(cuda, [device]))
        cuda.set_per_process_memory_fraction(min(1.0, min(before, least / total) + spared), device)
        if cuda.memory_reserved(device) - spill.size > least:
            cuda.empty_cache()

    def _tell(self) -> None:
        now = monotonic_ns()
        if now - self._told_ns >= TELL_NS:
            self._told_ns = now
            tell_memory(self.words)

    def _within(self) -> None:
        """Between two layers: pause once the part of the step since the last pause has been long enough."""
        duty = self.words[W_THROTTLE]
        if not self._since_ns or not 0 < duty < FULL or self.words[W_AT] != NEVER:
            return
        try:
            _finish_layer()
            if monotonic_ns() - self._since_ns >= PART_NS:
                self._pause(duty)
                self._since_ns = monotonic_ns()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._layers.leave()
            say(f"it pauses between its steps only ({type(err).__name__}: {err}); training goes on")

    def _pause(self, duty: int) -> None:
        """Wait until what was done since the last pause has taken `duty` percent of the time since then."""
        now = monotonic_ns()
        took = now - self._since_ns if self._since_ns else 0
        until, words = now + took * (FULL - duty) // duty - self._over_ns, self.words
        while now < until and words[W_AT] == NEVER and words[W_THROTTLE] == duty:
            if now - words[W_BEAT] > SILENT_NS:
                return
            sleep(min(SLICE_S, (until - now) / 1e9))
            now = monotonic_ns()
        self._over_ns = min(now - until, took) if now > until else 0

    def _break(self, err: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            say(f"its GPU memory cannot be bounded ({type(err).__name__}: {err}); training goes on without")


def devices_of(cuda: Any) -> List[int]:
    """Return the devices on which this process has memory."""
    return [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]


def tell_memory(words: memoryview) -> None:
    """Write what its tensors take now and took at most (1: nothing), and how often memory ran out."""
    cuda = accelerator.in_use()
    if cuda is None:
        words[W_PEAK] = 1
        return
    devices, spilled = devices_of(cuda), spill.used(cuda)
    words[W_LIVE] = sum(cuda.memory_allocated(device) for device in devices) - spilled
    words[W_PEAK] = max(1, spill.peak(cuda, devices))
    words[W_SPILLED] = spill.most
    words[W_OOMS] = ooms()


def ooms() -> int:
    """Return how often this process asked for more GPU memory than there was."""
    cuda = accelerator.in_use()
    if cuda is None:
        return 0
    return sum(cuda.memory_stats(device).get("num_ooms", 0) for device in devices_of(cuda))


def _finish_layer() -> None:
    """Wait for what this thread has queued: it takes no longer than one layer."""
    cuda = accelerator.in_use()
    if cuda is not None:
        cuda.current_stream().synchronize()


def _finish_step() -> None:
    """Wait for the GPU: a step that is only queued has not been taken yet."""
    cuda = accelerator.in_use()
    if cuda is not None:
        for device in devices_of(cuda):
            cuda.synchronize(device)
