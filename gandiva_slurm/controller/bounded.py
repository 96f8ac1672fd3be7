"""A policy that may not think for long: gandivactld does nothing else meanwhile.

A thread of its own sends the main thread a signal when the time is over; the handler raises where the policy
is, be it in a loop or asleep. What the policy knew may be half changed by then: it begins anew, after a rest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.port import Maker, Plan, Policy, View

#: Nodes go on by their last plan for longer than that without a word from gandivactld (`model.span`).
DEADLINE_S = 10.0
#: How long a policy that took too long is not asked again.
REST_S = 60.0
#: Not SIGALRM, which other timers of the process use; and after how long it is sent again.
_SIGNAL, _AGAIN_S = signal.SIGVTALRM, 1.0


class TooSlow(GandivaError):
    """A policy that thinks for longer than it may."""


class _Over(BaseException):
    """The time is over. Not an Exception, lest a policy take it for one of its own."""


class Bounded:
    """What `make` makes, asked with a deadline."""

    def __init__(
        self, make: Maker, deadline_s: float = DEADLINE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._deadline_s, self._clock = make, deadline_s, clock
        self._policy: Policy = make()
        self._rest_until_s = float("-inf")
        self.name = self._policy.name
        self.fits_memory = bool(getattr(self._policy, "fits_memory", False))

    def decide(self, view: View) -> Plan:
        """Ask the policy. TooSlow: it does not answer in time, or has not not long ago."""
        if self._clock() < self._rest_until_s:
            raise self._too_slow()
        try:
            with _deadline(self._deadline_s):
                return self._policy.decide(view)
        except _Over:
            self._rest_until_s = self._clock() + REST_S
            self._policy = self._make()
            raise self._too_slow() from None

    def _too_slow(self) -> TooSlow:
        return TooSlow(f"took more than {self._deadline_s:g} s; it begins anew {REST_S:g} s after that")


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    """Raise _Over in here when the time is over. In another thread than the main one there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked, over, main = True, threading.Event(), threading.get_ident()

    def end(number: int, frame: FrameType | None) -> None:
        if is_asked:
            raise _Over

    def watch() -> None:
        wait_s = limit_s
        while not over.wait(wait_s):  # again: what a destructor raises is lost
            signal.pthread_kill(main, _SIGNAL)
            wait_s = _AGAIN_S

    before, watcher = signal.signal(_SIGNAL, end), threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()
        yield
    finally:
        is_asked = False
        over.set()
        if watcher.ident is not None:
            watcher.join()  # lest its signal come when the handler of before is back
        signal.signal(_SIGNAL, before)
