"""While a rank's device memory is away, the script's signal handlers may not touch it.

Any operation on a released tensor ends the process. So Python's handlers are put aside; a signal that comes
is noted, the rank takes its memory back and leaves the park, and then its handler runs.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Dict, List

#: Signals that come of themselves, as when a child of some monitor ends: they wait for the park's end.
_PATIENT = frozenset((signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGPROF, signal.SIGVTALRM))


class Deferral:
    """Puts the script's handlers aside from `begin` to `end`; only in the main thread, where they run."""

    def __init__(self) -> None:
        """Nothing is put aside yet."""
        self.pending: List[int] = []
        self._kept: Dict[int, Any] = {}

    def is_called(self) -> bool:
        """Return True when a signal came whose handler should not wait for the park's end."""
        return not _PATIENT.issuperset(self.pending)

    def begin(self) -> None:
        """Note signals from now on."""
        if self._kept or threading.current_thread() is not threading.main_thread():
            return
        for number in range(1, signal.NSIG):
            handler = _handler(number)
            if callable(handler):
                self._kept[number] = handler
                signal.signal(number, self._note)

    def end(self) -> None:
        """Put the handlers back, and let them have what came meanwhile; what they raise is the script's."""
        while self._kept:
            number, handler = self._kept.popitem()
            signal.signal(number, handler)
        if self.pending:
            try:
                signal.raise_signal(self.pending.pop(0))
            finally:
                self.end()

    def _note(self, number: int, frame: Any) -> None:
        if number not in self.pending:
            self.pending.append(number)


def _handler(number: int) -> Any:
    try:
        return signal.getsignal(number)
    except ValueError:
        return None
