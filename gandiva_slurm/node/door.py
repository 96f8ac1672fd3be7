"""A unix socket's door: who may come in, how many at a time, how often; who may not costs next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.node import procs
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.procs import ProcId

#: Connections of one user, and of all, at a time; who comes beyond that is refused, or waits in the backlog.
PER_USER, IN_ALL, BACKLOG = 256, 1024, 512
#: One user's connections: so many at once, then so many a second. A node's ranks come once in their lives.
BURST, PER_S = 512.0, 50.0
#: Between two turns of the loop at most so many are accepted, then it does other work for a moment.
AT_ONCE, BREATH_S = 64, 0.01
#: After an error of accept (no descriptors left) it is tried again.
RETRY_S = 0.1
_MANY_USERS = 1024
#: The most characters that the log has of a sentence with a stranger's words in it.
MOST_SHOWN = 300
_CREDENTIALS = struct.Struct("=iII")

Talk = Callable[[socket.socket, Peer], Awaitable[None]]

often = Often(logging.getLogger(__name__))


class Rates:
    """A bucket of tokens for each user: a connection takes one, and they come back with time."""

    def __init__(self) -> None:
        #: what each user had left, and when; who is not in here has a full bucket
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, now_s: float) -> bool:
        """Return whether this user may come in now."""
        left, then_s = self._left.get(uid, (BURST, now_s))
        left = min(BURST, left + (now_s - then_s) * PER_S)
        may_enter = left >= 1
        self._left[uid] = (left - 1 if may_enter else left, now_s)
        if len(self._left) > _MANY_USERS:
            old_s = now_s - BURST / PER_S
            self._left = {uid: has for uid, has in self._left.items() if has[1] > old_s}
        return may_enter


class Door:
    """Accepts on a listening socket; each connection that may come in is served by `talk`, in a task."""

    def __init__(
        self, door: socket.socket, talk: Talk, deadline_s: float | None, rates: Rates | None
    ) -> None:
        self._door = door
        self._talk = talk
        #: None: `talk` has its own
        self._deadline_s = deadline_s
        #: None: users are not told apart, for only root can connect
        self._rates = rates
        self._users: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def run(self) -> None:
        """Accept for ever."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._door, self._accept, loop)
        try:
            await loop.create_future()
        finally:
            self._is_over = True
            loop.remove_reader(self._door)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(AT_ONCE):
            if len(self._tasks) >= IN_ALL:
                break
            try:
                link, _ = self._door.accept()
            except BlockingIOError:
                return
            except OSError as err:
                often.warning("accept", f"socket: {err.strerror}")
                self._rest(loop, RETRY_S)
                return
            self._welcome(loop, link)
        self._rest(loop, BREATH_S)

    def _rest(self, loop: asyncio.AbstractEventLoop, time_s: float) -> None:
        loop.remove_reader(self._door)
        loop.call_later(time_s, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_over:
            loop.add_reader(self._door, self._accept, loop)

    def _welcome(self, loop: asyncio.AbstractEventLoop, link: socket.socket) -> None:
        pid, uid = _credentials(link)
        if not self._may_enter(uid, loop.time()):
            link.close()
            return
        link.setblocking(False)
        self._users[uid] += 1
        task = loop.create_task(self._serve(link, pid, uid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may_enter(self, uid: int, now_s: float) -> bool:
        if self._rates is None:
            return True
        return self._users[uid] < PER_USER and self._rates.take(uid, now_s)

    async def _serve(self, link: socket.socket, pid: int, uid: int) -> None:
        with link:
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._talk(link, _peer(pid, uid))
            except (PeerError, OSError, TimeoutError) as err:
                why = str(err)[:MOST_SHOWN] or type(err).__name__
                often.info("refused", f"socket: uid {uid}: {why}")
            except Exception:
                often.error("not served", f"socket: uid {uid}: a message could not be served")
            finally:
                self._users[uid] -= 1
                self._users += Counter()


def listen(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at `path`, put there by rename: there is always one."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise PeerError(f"{path} is there and is no socket; remove it, or set node.socket in gandiva.yaml")
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        door.bind(str(new))
        new.chmod(mode)
        door.listen(BACKLOG)
        os.replace(new, path)
    except OSError as err:
        door.close()
        raise PeerError(f"cannot listen on {path}: {err.strerror}; is its directory there?") from err
    return door


def peer_of(link: socket.socket) -> Peer:
    """Return who is at the other end, by the kernel's word; PeerError when it is gone."""
    return _peer(*_credentials(link))


def _credentials(link: socket.socket) -> tuple[int, int]:
    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _peer(pid: int, uid: int) -> Peer:
    proc = procs.read_proc(pid) if pid > 0 else None
    if proc is None:
        raise PeerError(f"the process that connected (pid {pid}) is not there")
    return Peer(ProcId(pid, proc.start), uid)
