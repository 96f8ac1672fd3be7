"""A policy that may not think for long: gandivactld does nothing else meanwhile.

A thread of its own sends the main thread a signal when the time is over; the handler raises where the policy
is, be it in a loop or asleep. What the policy knew may be half changed by then: the engine has it begin anew,
after a rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gandiva_slurm.engine.apply.decider import TooSlow
from gandiva_slurm.policy.port import Plan, Policy, View

#: Nodes go on by their last plan for longer than that without a word from gandivactld (`model.span`).
DEADLINE_S = 10.0
#: Not SIGALRM, which other timers of the process use; and after how long it is sent again.
_SIGNAL, _AGAIN_S = signal.SIGVTALRM, 1.0


class _Over(BaseException):
    """The time is over. Not an Exception, lest a policy take it for one of its own."""


def ask(policy: Policy, view: View, deadline_s: float = DEADLINE_S) -> Plan:
    """Ask a policy. TooSlow: it does not answer in time."""
    try:
        with _deadline(deadline_s):
            return policy.decide(view)
    except _Over:
        raise TooSlow(f"took more than {deadline_s:g} s") from None


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
