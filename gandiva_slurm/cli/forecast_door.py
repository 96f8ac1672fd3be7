"""Where `gandiva forecast` is asked of jobs that are not submitted yet: a unix socket beside its file.

gandivactld alone asks there, for users whom it knows (ADR 0057). One question a connection, a line each way;
each has a child of its own with a bound on its time, so that what becomes of it is nobody else's trouble.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gandiva_slurm.controller.foretold import MOST_QUESTION, SOCKET_NAME
from gandiva_slurm.logs import warn_once
from gandiva_slurm.model.errors import GandivaError

#: Questions that are answered at a time; others wait in the kernel, and some there.
MOST, BACKLOG = 2, 64
#: What a question may take in all, its asker's slowness included.
DEADLINE_S = 3.0

log = logging.getLogger(__name__)


class Door:
    """Listens, and answers by children."""

    def __init__(self, folder: Path, answer: Callable[[str], Mapping[str, object]]) -> None:
        """`answer` runs in a child. GandivaError: nothing can be listened at in this folder."""
        self._answer = answer
        self._listener = _listen(folder / SOCKET_NAME)
        #: the children that answer, by a descriptor that is ready when it has ended
        self._children: dict[int, int] = {}

    def answer_for(self, seconds: float, until: int | None = None) -> bool:
        """Answer for so long, or until this descriptor is ready: True."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            watched = [*self._children, *([] if until is None else [until])]
            if len(self._children) < MOST:
                watched.append(self._listener.fileno())
            ready, _, _ = select.select(watched, [], [], left_s)
            for ended in self._children.keys() & {*ready}:
                os.waitpid(self._children.pop(ended), 0)
                os.close(ended)
            if until in ready:
                return True
            if self._listener.fileno() in ready:
                self._let_in()
        return False

    def close(self) -> None:
        """Listen no longer, in a child that has other things to do."""
        self._listener.close()

    def _let_in(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError as err:  # it has left, or there are too many files
            log.debug("nobody was let in: %s", err)
            return
        with link:
            if _uid(link) not in (0, os.geteuid()):
                return
            try:
                child = os.fork()
            except OSError as err:
                warn_once(log, f"a question has no answer: {err}")
                return
            if child == 0:
                self._serve(link)
        self._children[os.pidfd_open(child)] = child

    def _serve(self, link: socket.socket) -> None:
        """Answer in this child, and end it."""
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
            self.close()
            link.setblocking(True)
            told = self._answer(_line(link))
            link.sendall(json.dumps(told).encode() + b"\n")
        except Exception:  # the border of a process that ends here
            log.exception("a question has no answer")
        finally:
            os._exit(0)


def _listen(path: Path) -> socket.socket:
    """Listen there for this user alone, in place of a process that is gone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as err:
        listener.close()
        raise GandivaError(f"controller.state_dir: cannot listen at {path}: {err}") from err
    return listener


def _uid(link: socket.socket) -> int:
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[1])


def _line(link: socket.socket) -> str:
    """Read up to the end of a line."""
    text = b""
    while not text.endswith(b"\n"):
        more = link.recv(MOST_QUESTION + 1 - len(text))
        text += more
        if not more or len(text) > MOST_QUESTION:
            raise GandivaError(f"a question is one line of {MOST_QUESTION} bytes at most")
    return text.decode()
