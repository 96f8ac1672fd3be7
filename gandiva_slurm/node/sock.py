"""The jobs' door: a unix socket on which tasks are bound and ranks get their pages.

Anybody may connect (0666); who he is comes from the socket, and everything has a size, a number and a
deadline.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
import struct
from collections import Counter
from pathlib import Path

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.node import hello, pages, procs
from gandiva_slurm.node.binding import Admission, Peer
from gandiva_slurm.node.procs import ProcId

#: A connection is over after this: SPANK gives up after 0.5 s, a rank after 1 s.
DEADLINE_S = 2.0
#: Connections of one user, and of all, at a time; who comes beyond that is refused, or waits in the backlog.
PER_USER, IN_ALL, BACKLOG = 256, 1024, 512
_CREDENTIALS = struct.Struct("=iII")

log = logging.getLogger(__name__)


class SocketServer:
    """Serves the node's unix socket (`listen` makes it)."""

    def __init__(self, door: socket.socket, admission: Admission) -> None:
        self._door = door
        self._admission = admission
        self._users: Counter[int] = Counter()
        self._room = asyncio.Semaphore(IN_ALL)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Accept for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                link, _ = await loop.sock_accept(self._door)
            except OSError as err:
                self._room.release()
                log.error("socket: %s", err.strerror)
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._serve(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: socket.socket) -> None:
        with link:
            uid = -1
            try:
                peer = peer_of(link)
                uid = peer.uid
                self._users[uid] += 1
                if self._users[uid] <= PER_USER:
                    async with asyncio.timeout(DEADLINE_S):
                        await self._talk(link, peer)
            except (PeerError, OSError, TimeoutError) as err:
                log.info("socket: uid %d: %s", uid, err or type(err).__name__)
            except Exception:
                log.exception("socket: uid %d: a message could not be served", uid)
            finally:
                self._users[uid] -= 1
                self._users += Counter()
                self._room.release()

    async def _talk(self, link: socket.socket, peer: Peer) -> None:
        line = await _line(link)
        if line.startswith(b"BIND"):
            await self._bind(link, peer, line)
        else:
            await self._hello(link, peer, line)

    async def _bind(self, link: socket.socket, peer: Peer, line: bytes) -> None:
        try:
            words = self._admission.bind(peer, hello.parse_bind(line))
            answer = "OK " + " ".join(f"{name}={value}" for name, value in words.items())
        except PeerError as err:
            log.warning("task of uid %d: %s", peer.uid, err)
            answer = f"NO {err}"
        await asyncio.get_running_loop().sock_sendall(link, (answer.replace("\n", " ") + "\n").encode())

    async def _hello(self, link: socket.socket, peer: Peer, line: bytes) -> None:
        try:
            greeting = hello.parse_hello(line)
            resident, rank = self._admission.greet(peer, greeting)
        except PeerError as err:
            refusal = json.dumps({"ok": False, "why": str(err)}) + "\n"
            await asyncio.get_running_loop().sock_sendall(link, refusal.encode())
            raise
        try:
            _send_page(link, rank.page.fd, self._admission.answer())
            told = hello.parse_object(await _line(link)).get("page_fd")
            if not isinstance(told, int) or not 0 <= told < 1 << 31:
                raise PeerError("a rank did not tell its page's descriptor")
            self._admission.seat(resident, rank, greeting, told)
        except BaseException:
            rank.page.close()
            raise
        # A client of an older version is gone by now.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(link, b'{"seated": true}\n')


def listen(path: Path) -> socket.socket:
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
        new.chmod(0o666)
        door.listen(BACKLOG)
        os.replace(new, path)
    except OSError as err:
        door.close()
        raise PeerError(f"cannot listen on {path}: {err.strerror}; is its directory there?") from err
    return door


def peer_of(link: socket.socket) -> Peer:
    """Return who is at the other end, by the kernel's word; PeerError when it is gone."""
    pid, uid, _ = _CREDENTIALS.unpack(
        link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    proc = procs.read_proc(pid) if pid > 0 else None
    if proc is None:
        raise PeerError(f"the process that connected (pid {pid}) is not there")
    return Peer(ProcId(pid, proc.start), uid)


async def _line(link: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while not data.endswith(b"\n"):
        part = await loop.sock_recv(link, hello.MAX_LINE)
        data += part
        if not part or len(data) > hello.MAX_LINE:
            raise PeerError("the connection ended before its line did" if not part else "a line is too long")
    return data


def _send_page(link: socket.socket, fd: int, answer: dict[str, object]) -> None:
    """Send the page in one message: a fresh connection's buffer takes it whole, or it is not served."""
    given = pages.reopen(fd)
    try:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [given]))
        link.sendmsg([json.dumps(answer).encode() + b"\n"], [rights])
    finally:
        os.close(given)
