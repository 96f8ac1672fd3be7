"""Whose exception is it? While a rank waits, the script's signal handlers run, and may raise on purpose."""

from __future__ import annotations

import signal
from typing import Any, Set


def is_from_signal_handler(err: BaseException) -> bool:
    """Return True when `err` was raised in one of the script's signal handlers: then it is the script's."""
    handlers = _handler_codes()
    trace = err.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handler_codes() -> Set[Any]:
    codes = set()
    for number in range(1, signal.NSIG):
        try:
            handler = signal.getsignal(number)
        except ValueError:
            continue
        if callable(handler):
            function = getattr(handler, "__func__", handler)
            codes.add(getattr(function, "__code__", getattr(type(handler).__call__, "__code__", None)))
    return codes - {None}
