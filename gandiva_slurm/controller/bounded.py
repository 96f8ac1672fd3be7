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

#: Less than nodes go on by their last plan when they hear nothing (`model.span`).
DEADLINE_S = 10.0
#: How long a policy that took too long is not asked again: so much of the time can be lost to it.
REST_S = 60.0
#: Not the signal of itimers: those are others'.
_SIGNAL = signal.SIGVTALRM


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
            raise TooSlow(f"took more than {self._deadline_s:g} s; it is asked again within {REST_S:g} s")
        try:
            with _deadline(self._deadline_s):
                return self._policy.decide(view)
        except _Over:
            self._policy, self._rest_until_s = self._make(), self._clock() + REST_S
            raise TooSlow(f"took more than {self._deadline_s:g} s; it begins anew in {REST_S:g} s") from None


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    """Raise _Over in here when the time is over. In another thread than the main one there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked = True

    def end(number: int, frame: FrameType | None) -> None:
        if is_asked:
            raise _Over

    before = signal.signal(_SIGNAL, end)
    watch = threading.Timer(limit_s, signal.pthread_kill, (threading.get_ident(), _SIGNAL))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        is_asked = False
        watch.cancel()
        watch.join()  # lest its signal come when the handler of before is back
        signal.signal(_SIGNAL, before)
