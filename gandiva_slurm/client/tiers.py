"""How a parked rank gives its device back: a tier releases at PARKED and restores before the next step.

`BestTier` moves its memory off the device where that can be done (client/offload), and holds it elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Dict, NamedTuple, Optional

from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.notice import say
from gandiva_slurm.wire.page import HELD_BECAUSE, TIER_HOLD

#: Longest wait for the device to finish the step it was given.
DRAIN_S = 2.0
#: After so many failures other than refusals, moving memory is not tried any more.
MOST_FAILURES = 3
#: What GANDIVA_TIER may say; CPU is a device that tests can do without a GPU.
AUTO, KEEP, CPU = "auto", "hold", "torch-cpu"
#: Two reasons that differ in digits alone are the same.
_NO_DIGITS = str.maketrans("", "", "0123456789")


class Released(NamedTuple):
    """Bytes of device memory a tier gave back, and what stays held."""

    released: int
    held: int
    #: The most that was ever in use.
    peak: int = 0
    #: Why memory was not moved although it might have been; "" where all is as it should be.
    why: str = ""


class HoldTier:
    """Keeps all memory; the rank only gives the device no work. Every tier has these members."""

    number = TIER_HOLD

    def release(self) -> Released:
        """Wait until the device is idle and say what stays on it; TimeoutError when that takes too long."""
        cuda = cuda_in_use()
        if cuda is None:
            return Released(0, 0)
        devices = [device for device in range(cuda.device_count()) if cuda.memory_allocated(device)]
        for device in devices:
            _drain(cuda, device, time.monotonic() + DRAIN_S)
        peak = sum(cuda.max_memory_allocated(device) for device in devices)
        return Released(0, sum(cuda.memory_allocated(device) for device in devices), peak)

    def restore(self) -> None:
        """Nothing was taken away."""

    def restore_at_last(self) -> None:
        """Nothing was taken away."""

    def is_called(self) -> bool:
        """Return True when the memory is wanted back though nobody resumes; here it never went."""
        return False


class BestTier:
    """The best tier there is for this process now: `torch` where CUDA is in use and it works, else `hold`."""

    def __init__(self, seen: Dict[int, Callable[[], Any]]) -> None:
        """`seen`, by weak reference, is what the script trains with; it may grow."""
        self._seen = seen
        self._hold = HoldTier()
        self._mover: Any = None
        #: The tier of the newest park.
        self._used: Any = self._hold
        self._failures = 0
        #: The reason last said; with other numbers in it, it is the same.
        self._said = ""
        #: Why this process moves nothing, for good.
        self._never = ""

    @property
    def number(self) -> int:
        """The number of the tier of the newest park."""
        return int(self._used.number)

    def release(self) -> Released:
        """Give back what can be given back; what cannot be moved is held, and the answer says why."""
        self._used = self._hold
        try:
            mover = self._make_mover()
            if mover is None:
                return self._hold.release()
            done: Released = mover.release()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            return self._hold_instead(err)
        self._used, self._failures = mover, 0
        return done

    def restore(self) -> None:
        """Take back what was given back."""
        self._used.restore()

    def restore_at_last(self) -> None:
        """Take it back, however often that must be tried."""
        self._used.restore_at_last()

    def is_called(self) -> bool:
        """Return True when a signal waits for its handler, which needs the memory."""
        return bool(self._used.is_called())

    def _make_mover(self) -> Any:
        if self._never:
            raise Refused(self._never)
        if self._mover is None and wants_to_move():
            from gandiva_slurm.client import device, offload

            torch = sys.modules["torch"]
            kind = device.CpuGauge if _wish() == CPU else device.Cuda
            try:
                self._mover = offload.TorchTier(torch, kind(torch), self._seen)
            except Refused as err:
                self._never = str(err)
                raise
        return self._mover

    def _hold_instead(self, err: Exception) -> Released:
        why = str(err) if isinstance(err, Refused) else f"{type(err).__name__}: {err}"
        self._failures += not isinstance(err, (Refused, TimeoutError))
        if self._failures >= MOST_FAILURES:
            self._never = f"it failed {MOST_FAILURES} times, and is not tried again ({why})"
        why = HELD_BECAUSE + why
        if why.translate(_NO_DIGITS) != self._said.translate(_NO_DIGITS):
            self._said = why
            say(why)
        done = self._hold.release()
        if not done.held and self._mover is not None:
            done = done._replace(held=self._mover.device.live())
        return done._replace(why=why)


def wants_to_move() -> bool:
    """Return True where a parked rank's memory is to leave its device: CUDA is in use, or a test says so."""
    wish = _wish()
    if "torch" not in sys.modules or wish == KEEP:
        return False
    return wish == CPU or cuda_in_use() is not None


def _wish() -> str:
    wish = os.environ.get("GANDIVA_TIER") or AUTO
    if wish not in (AUTO, KEEP, CPU):
        say(f"GANDIVA_TIER is {wish!r}, which is none of {AUTO}, {KEEP} and {CPU}; {AUTO} it is")
        return AUTO
    return wish


def cuda_in_use() -> Optional[Any]:
    """Return torch.cuda where the script has initialised it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _drain(cuda: Any, device: int, deadline: float) -> None:
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    while not event.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"device {device} was still busy {DRAIN_S:g} s after the step")
        time.sleep(0.0002)
