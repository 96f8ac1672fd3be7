"""Connections of somebody who says nothing, or little: many at a time, from an address of the loopback."""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests import patience

DEADLINE_S = 60.0
#: More than a daemon has descriptors for under systemd (1024), and no more than this machine minds.
MANY = 2000

T = TypeVar("T")


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Let this process have as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def silent(port: int, count: int = MANY, address: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """So many connections to a port of 127.0.0.1, from `address`; all are made when it begins."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(many_descriptors())
        links = [stack.enter_context(_begin(port, address)) for _ in range(count)]
        for link in links:
            until(lambda link=link: _is_made(link))
        yield links


def _begin(port: int, address: str) -> socket.socket:
    link = socket.socket()
    link.setblocking(False)
    link.bind((address, 0))
    code = link.connect_ex(("127.0.0.1", port))
    assert code in (0, errno.EINPROGRESS), code
    return link


def _is_made(link: socket.socket) -> bool:
    poll = select.poll()
    poll.register(link, select.POLLOUT)
    return bool(poll.poll(100))


def closed(links: list[socket.socket]) -> int:
    """How many of these the other end has closed."""
    return sum(1 for link in links if _is_closed(link))


def _is_closed(link: socket.socket) -> bool:
    try:
        return link.recv(1 << 16, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def highest_descriptor(pid: int) -> int:
    """The highest that a process has open."""
    return max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())


def until(condition: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Wait for a condition."""
    end_s = patience.deadline(deadline_s)
    while not (value := condition()):
        assert time.monotonic() < end_s, "never came"
        time.sleep(0.02)
    return value
