"""What a daemon tells systemd, by sd_notify(3): that it serves, and again and again that it is not stuck."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
from collections.abc import Callable

#: So many signs of life within the time after which systemd ends and starts again what gives none.
SIGNS = 4


def notify(state: str) -> None:
    """Tell systemd a state, such as READY=1; nothing where it did not start this process."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.setblocking(False)
        link.sendto(state.encode(), address)


def period_s() -> float:
    """Return within how many seconds systemd wants a sign of life (WatchdogSec); 0 where it wants none."""
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    given = os.environ.get("WATCHDOG_USEC", "") if is_ours else ""
    return int(given) / 1e6 if given.isdigit() else 0.0


async def feed(is_well: Callable[[], bool] = lambda: True) -> None:
    """Say READY=1, then give signs of life from the loop that serves, while it `is_well`, for ever.

    The SIGABRT of systemd's watchdog writes to the log where each thread stood.
    """
    faulthandler.enable()
    notify("READY=1")
    rest_s = period_s() / SIGNS
    while rest_s:
        if is_well():
            notify("WATCHDOG=1")
        await asyncio.sleep(rest_s)
    await asyncio.Event().wait()
