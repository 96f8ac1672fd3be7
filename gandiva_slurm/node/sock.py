"""What tasks and ranks say to gandivad, on two unix sockets.

Anybody may connect to the node's socket (0666), where ranks get their pages: whose a process is comes from
the socket, and everything has a size, a number and a deadline. Only root may connect to the other (0600):
there slurmstepd says, in the hook that Slurm runs as root, whose task it starts, and no user can keep that
out by a flood. The node's socket takes BIND as well: of older plugins, and where the other broke off.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import socket

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import PeerBusy, PeerError
from gandiva_slurm.node import hello, pages
from gandiva_slurm.node.binding import Admission, Peer
from gandiva_slurm.node.door import MOST_SHOWN
from gandiva_slurm.node.elsewhere import Elsewhere, Restoring
from gandiva_slurm.node.restorer import JobOver, Restorer

#: A connection is over after this: a rank gives up after 1 s, and what binds a task comes again.
DEADLINE_S = 2.0
#: One of root's lasts from the hook of root to that of the user, and while no plan has come. It begins anew
#: while an image is fetched or restored, which has a bound of its own.
ROOT_DEADLINE_S = 600.0
#: What an answer begins with that has a task wait, and wait longer: older plugins know "LATER " alone.
LATER, RESTORING = "LATER", "LATER restoring:"

log = logging.getLogger(__name__)
#: On the socket of all: any user may bring these about.
often = Often(log)


class Speech:
    """Answers tasks and ranks."""

    def __init__(self, admission: Admission, restorer: Restorer) -> None:
        self._admission = admission
        self._restorer = restorer

    async def with_anybody(self, link: socket.socket, peer: Peer) -> None:
        """A task's BIND or a rank's hello, from a process of any user."""
        line = await _line(link)
        if line.startswith(b"BIND"):
            answer = self._answer(peer, line, is_roots=False)
            if not answer:
                return  # the plugin asks again; any answer to BIND 1 would let the task begin
            if not answer.startswith("OK"):
                often.warning("BIND", _refusal(peer, answer))
            await _say(link, answer)
        else:
            await self._hello(link, peer, line)

    async def with_root(self, link: socket.socket, peer: Peer) -> None:
        """A task whose user root names; it asks again on the same connection while it is to wait."""
        if peer.uid != 0:
            raise PeerError("this socket is root's")
        async with asyncio.timeout(ROOT_DEADLINE_S) as bound:
            await self._with_task(link, peer, bound)

    async def _with_task(self, link: socket.socket, peer: Peer, bound: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        task = Peer(peer.proc, hello.parse_task(await _line(link)))
        has_image = await self._restorer.offers(task)
        await _say(link, "READY IMAGE" if has_image else "READY")
        answer = ""
        while not answer or answer.startswith(LATER):
            last, answer = answer, self._answer(task, await _line(link), has_image)
            if answer != last and not answer.startswith("OK"):
                log.warning("%s", _refusal(task, answer))
            if answer.startswith(RESTORING):
                bound.reschedule(loop.time() + ROOT_DEADLINE_S)
            await _say(link, answer)

    def _answer(self, peer: Peer, line: bytes, has_image: bool = False, is_roots: bool = True) -> str:
        try:
            bind = hello.parse_bind(line)
            if has_image:
                self._restorer.await_plan(bind.key)
            words = self._admission.bind(peer, bind)
            if bind.step == "batch":
                self._restorer.heed_unfit(bind.key)
            if has_image:
                words |= self._restorer.ask(peer, bind.key)
            elif bind.step == "batch" and not is_roots:
                words |= self._restorer.keep_image(peer, bind.key)
            return "OK " + " ".join(f"{name}={value}" for name, value in words.items())
        except JobOver as err:
            return f"END {err}"
        except PeerError as err:
            if isinstance(err, Elsewhere) and not is_roots:
                return ""
            is_to_wait = isinstance(err, PeerBusy) and line.startswith(b"BIND 2")
            later = RESTORING if isinstance(err, Restoring) else LATER
            return f"{later if is_to_wait else 'NO'} {err}"

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


def _refusal(peer: Peer, answer: str) -> str:
    return f"task of uid {peer.uid}: {answer.partition(' ')[2][:MOST_SHOWN]}"


async def _say(link: socket.socket, answer: str) -> None:
    await asyncio.get_running_loop().sock_sendall(link, (answer.replace("\n", " ") + "\n").encode())


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
