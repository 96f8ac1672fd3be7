"""How the processes that show others what gandivactld tells ask it: beside their loop, never in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(ask: Callable[[], T]) -> Future[T]:
    """Ask in a thread that the process's end does not wait for."""
    answer: Future[T] = Future()

    def run() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(ask())
        except Exception as err:
            answer.set_exception(err)

    threading.Thread(target=run, name="asking", daemon=True).start()
    return answer
