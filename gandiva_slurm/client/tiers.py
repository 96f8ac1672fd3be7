"""How a parked rank gives its device back: a tier releases at PARKED and restores before the next step.

`BestTier` tries those that move memory off the device, in the order of client/choice, and holds it elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple

from gandiva_slurm.client import accelerator, choice, nccl
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.spill import mine as spill
from gandiva_slurm.wire.page import HELD_BECAUSE, TIER_HOLD

#: A park waits at least so long for the device to finish what it was given (rank.py: for long steps longer).
DRAIN_S = 2.0
#: After so many failures other than refusals, moving memory is not tried any more.
MOST_FAILURES = 3
#: Two reasons that differ in digits alone are the same.
_NO_DIGITS = str.maketrans("", "", "0123456789")


class Released(NamedTuple):
    """Bytes of device memory a tier gave back, and what stays held: what no other process can have."""

    released: int
    held: int
    #: The most that was ever in use.
    peak: int = 0
    #: Why memory was not moved although it might have been; "" where all is as it should be.
    why: str = ""


class HoldTier:
    """Keeps all memory; the rank only gives the device no work. Every tier has these members."""

    number = TIER_HOLD

    def release(self, drain_s: float = DRAIN_S) -> Released:
        """Wait until the device is idle, give back what is only cached, and say what stays.

        TimeoutError when the device is busy for longer than `drain_s`.
        """
        cuda = accelerator.in_use()
        if cuda is None:
            return Released(0, 0)
        devices = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
        for device in devices:
            _drain(cuda, device, drain_s)
        cuda.empty_cache()
        held = sum(cuda.memory_reserved(device) for device in devices) - spill.size
        return Released(0, held, max(held, spill.peak(cuda, devices)))

    def restore(self) -> None:
        """Nothing was taken away."""

    def restore_at_last(self) -> None:
        """Nothing was taken away."""

    def is_called(self) -> bool:
        """Return True when the memory is wanted back though nobody resumes; here it never went."""
        return False

    def kept(self) -> Dict[int, Any]:
        """Return what of it can be read on the host, by its storage."""
        return {}


class BestTier:
    """The first tier that works for this process now, in the order of `choice`; else `hold`."""

    def __init__(self, seen: Dict[int, Callable[[], Any]]) -> None:
        """`seen`, by weak reference, is what the script trains with; it may grow."""
        self._seen = seen
        self._hold = HoldTier()
        self._movers: Dict[str, Any] = {}
        self._gauge: Any = None
        #: The tier of the newest park.
        self._used: Any = self._hold
        #: Communicators that are suspended while it is parked.
        self._suspended: List[Any] = []
        #: By tier: failures in a row that were no refusals, and why it moves nothing any more, for good.
        self._failures: Dict[str, int] = {}
        self._never: Dict[str, str] = {}
        #: The reason last said; with other numbers in it, it is the same.
        self._said = ""

    @property
    def number(self) -> int:
        """The number of the tier of the newest park."""
        return int(self._used.number)

    def release(self, drain_s: float = DRAIN_S) -> Released:
        """Give back what can be given back; what cannot be moved is held, and the answer says why."""
        self._used = self._hold
        if not wants_to_move():
            return self._hold.release(drain_s)
        if nccl.is_wanted():
            self._hold.release(drain_s)  # nothing may be under way
            self._suspended = nccl.suspend()
        try:
            return self._move_away(drain_s)
        except BaseException:
            nccl.resume(self._suspended)
            raise

    def _move_away(self, drain_s: float) -> Released:
        whys = list(self._never.values())
        for name in choice.movers(self._facts()):
            try:
                done: Released = self._mover(name, drain_s).release(drain_s)
            except Exception as err:
                if is_from_signal_handler(err):
                    raise
                whys.append(self._note_failure(name, err))
                if isinstance(err, TimeoutError):
                    break  # the device is busy for all of them
            else:
                self._used = self._movers[name]
                self._failures.pop(name, None)
                return done
        return self._hold_because("; ".join(whys), drain_s)

    def restore(self) -> None:
        """Take back what was given back."""
        self._used.restore()
        nccl.resume(self._suspended)

    def restore_at_last(self) -> None:
        """Take it back, however often that must be tried."""
        self._used.restore_at_last()
        nccl.resume(self._suspended)

    def is_called(self) -> bool:
        """Return True when a signal waits for its handler, which needs the memory."""
        return bool(self._used.is_called())

    def kept(self) -> Dict[int, Any]:
        """Return what the newest park moved to where it can be read on the host, by its storage."""
        return dict(self._used.kept())

    def _facts(self) -> choice.Facts:
        from gandiva_slurm.client.vmm import why_not

        return choice.Facts(_wish(), accelerator.in_use() is not None, why_not(), self._never)

    def _mover(self, name: str, drain_s: float) -> Any:
        if name not in self._movers:
            from gandiva_slurm.client import device, offload, vmm

            torch = sys.modules["torch"]
            gauge = self._gauge or (device.CpuGauge if _wish() == choice.CPU else device.Cuda)(torch)
            self._gauge = gauge
            gauge.drain(time.monotonic() + drain_s)  # what a tier tries first would wait without a bound
            try:
                self._movers[name] = (
                    vmm.VmmTier(torch, gauge)
                    if name == choice.VMM
                    else offload.TorchTier(torch, gauge, self._seen)
                )
            except Refused as err:
                self._never[name] = str(err)
                raise
        return self._movers[name]

    def _note_failure(self, name: str, err: Exception) -> str:
        why = str(err) if isinstance(err, Refused) else f"{type(err).__name__}: {err}"
        if not isinstance(err, (Refused, TimeoutError)):
            self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures.get(name, 0) >= MOST_FAILURES:
            self._never[name] = why = f"it failed {MOST_FAILURES} times, and is not tried again ({why})"
        return why

    def _hold_because(self, why: str, drain_s: float) -> Released:
        why = HELD_BECAUSE + why
        if why.translate(_NO_DIGITS) != self._said.translate(_NO_DIGITS):
            self._said = why
            say(why)
        done = self._hold.release(drain_s)
        if not done.held:
            devices: List[Any] = [mover.device for mover in self._movers.values()]
            done = done._replace(held=max((device.held() for device in devices), default=0))
        return done._replace(why=why)


def wants_to_move() -> bool:
    """Return True where a parked rank's memory is to leave its device: CUDA is in use, or a test says so."""
    wish = _wish()
    if "torch" not in sys.modules or wish == choice.KEEP:
        return False
    return wish == choice.CPU or accelerator.in_use() is not None


def _wish() -> str:
    wish = os.environ.get("GANDIVA_TIER") or choice.AUTO
    wishes = (choice.AUTO, choice.KEEP, choice.CPU)
    if wish not in wishes:
        say("GANDIVA_TIER is {!r}, which is none of {}, {} and {}; auto it is".format(wish, *wishes))
        return choice.AUTO
    return wish


def _drain(cuda: Any, device: int, drain_s: float) -> None:
    deadline = time.monotonic() + drain_s
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    while not event.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"device {device} was still busy {drain_s:g} s after the step")
        time.sleep(0.0002)
