"""A TCP door that nobody keeps shut: who says nothing is shown out, who crowds makes way for the next.

A connection has some seconds for the head of its first request. Where an address has too many, or all
together have, the next one is let in and the oldest goes: first of those without a good signature, then of
those that ask for nothing now. So a crowd from one address keeps no other address out, nor those at its own
who say at once what they want.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import PeerError

#: How long a connection may take to say the head of its first request.
HEAD_S = 5.0
#: A daemon that was busy then has read nothing of it: it looks once more after this.
ONCE_MORE_S = 1.0
#: Connections of one address, and of all, at a time; of all no more than half of the descriptors.
PER_ADDRESS, IN_ALL = 256, 2048
#: Who knocks while others are let in waits in the kernel.
BACKLOG = 1024
#: What a daemon needs descriptors for beside connections: files, commands, sockets, ranks' pages.
OTHERS = 2048
#: Descriptors that no connection takes, for what cannot be put off: the node's state, its jobs in /proc.
SPARE = 64
#: After an error of accept(), which is of no connection of ours.
PAUSE_S = 0.1
KEEPALIVE_S = 60.0
CLOSING_S = 1.0

log = logging.getLogger(__name__)
often = Often(log)


@dataclass(eq=False)
class Guest:
    """A connection."""

    address: str
    transport: asyncio.Transport
    deadline: asyncio.TimerHandle | None = None
    #: its last request had a good signature, of somebody who may ask here
    is_known: bool = False
    #: a request of its is being answered
    is_asking: bool = False


Route = Callable[[web.BaseRequest, Guest], Awaitable[web.StreamResponse]]


def _leave_spare(link: socket.socket) -> None:
    """Close a connection that takes one of the last descriptors; OSError says so."""
    if link.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE:
        link.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Door:
    """Listens at sockets and answers what is asked there by `routes`; `cleanup` ends it.

    A route that ends in / has what lies in that directory and has no route of its own.
    """

    def __init__(self, routes: Mapping[str, Route], doors: Iterable[socket.socket], method: str) -> None:
        self._routes = routes
        self._method = method
        self._guests: dict[web.RequestHandler, Guest] = {}
        #: those of each address, the oldest first
        self._of: dict[str, dict[Guest, None]] = {}
        self._most = min(IN_ALL, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._server = _Server(self)
        self._doors = list(doors)
        self._tasks = [asyncio.create_task(self._accept(door)) for door in self._doors]

    async def cleanup(self) -> None:
        """Listen no longer, and close what is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors:
            door.close()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSING_S)

    async def _accept(self, door: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, _ = await loop.sock_accept(door)
                _leave_spare(link)
                await loop.connect_accepted_socket(self._server, link)
            except OSError as err:
                often.warning("accept", f"no more connections are taken for a moment: {err.strerror}")
                await asyncio.sleep(PAUSE_S)

    def enter(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A connection came: another goes for it, or it goes itself, where there is no room."""
        guest = Guest(str((transport.get_extra_info("peername") or ("nowhere",))[0]), transport)
        theirs = self._of.setdefault(guest.address, {})
        if len(theirs) >= PER_ADDRESS:
            self._make_room(guest, theirs)
        elif len(self._guests) >= self._most:
            self._make_room(guest, max(self._of.values(), key=len))
        self._guests[handler] = guest
        self._of.setdefault(guest.address, {})[guest] = None
        loop = asyncio.get_running_loop()
        guest.deadline = loop.call_later(HEAD_S, self._is_late, guest)

    def leave(self, handler: web.RequestHandler) -> None:
        """A connection is closed."""
        guest = self._guests.pop(handler, None)
        if guest is not None:
            _heard(guest)
            self._forget(guest)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request whose head is there."""
        guest = self._guests.get(request.protocol)
        if guest is None:  # it is gone
            return web.Response(status=408)
        _heard(guest)
        route = self._routes.get(request.path) or self._routes.get(request.path.rpartition("/")[0] + "/")
        if route is None or request.method != self._method:
            status = 404 if route is None else 405
            often.warning(str(status), f"a request from {request.remote} for what is not there was refused")
            return web.Response(status=status, text="nothing is served there")
        guest.is_asking = True
        try:
            return await route(request, guest)
        finally:
            guest.is_asking = False

    def _make_room(self, guest: Guest, theirs: dict[Guest, None]) -> None:
        """End one of these, or else the guest that comes; each is closed in a moment."""
        going = next((each for each in theirs if not each.is_known), None)
        going = going or next((each for each in theirs if not each.is_asking), guest)
        often.warning("crowd", f"{len(theirs)} connections from {going.address}: one goes for the next")
        self._forget(going)
        going.transport.abort()

    def _forget(self, guest: Guest) -> None:
        theirs = self._of.get(guest.address, {})
        theirs.pop(guest, None)
        if not theirs:
            self._of.pop(guest.address, None)

    def _is_late(self, guest: Guest) -> None:
        loop = asyncio.get_running_loop()
        guest.deadline = loop.call_later(ONCE_MORE_S, self._show_out, guest)

    def _show_out(self, guest: Guest) -> None:
        often.info("silent", f"a connection from {guest.address} asked for nothing within {HEAD_S:g} s")
        guest.transport.abort()


def open_socket_door(routes: Mapping[str, Route], path: str, method: str = "POST") -> Door:
    """Serve this method at a unix socket, for its owner and group; PeerError where that cannot be had."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        mask = os.umask(0o117)
        try:
            door.bind(path)
        finally:
            os.umask(mask)
        door.listen(BACKLOG)
        door.setblocking(False)
    except OSError as err:
        door.close()
        raise PeerError(f"cannot listen at {path}: {err.strerror}; is its directory there and ours?") from err
    return Door(routes, [door], method)


def _clear(path: str) -> None:
    """Remove the socket of one that is gone; OSError where somebody listens there, or it is another file."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "it is there, and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


async def open_door(routes: Mapping[str, Route], host: str, port: int, method: str = "POST") -> Door:
    """Serve this method on these paths; PeerError where that cannot be listened at."""
    loop, doors = asyncio.get_running_loop(), list[socket.socket]()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            doors.append(socket.create_server(address[:2], family=family, backlog=BACKLOG))
            doors[-1].setblocking(False)
    except OSError as err:
        for door in doors:
            door.close()
        text = f"cannot listen on {host}:{port}: {err.strerror}; is another daemon running there?"
        raise PeerError(text) from err
    return Door(routes, doors, method)


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: a default of 1024 is soon used up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < IN_ALL + OTHERS:
        log.warning(
            "this daemon may open %d files, and %d are well: raise its hard limit (LimitNOFILE of its unit)",
            most,
            IN_ALL + OTHERS,
        )


class _Server(web.Server):
    """aiohttp's server, which tells the door who comes and goes."""

    def __init__(self, door: Door) -> None:
        super().__init__(door.answer, access_log=None, keepalive_timeout=KEEPALIVE_S, logger=_Junk())
        self._door = door

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._door.enter(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._door.leave(handler)


class _Junk:
    """What aiohttp logs is about what others sent: a line a minute, and no traceback."""

    def exception(self, text: str, *args: object, exc_info: object = None) -> None:
        told = " ".join(str(exc_info).split())[:200]
        often.warning("junk", f"{text % args}: {type(exc_info).__name__}: {told}")

    def debug(self, text: str, *args: object, **more: object) -> None:
        log.debug(text, *args)

    warning = debug


def _heard(guest: Guest) -> None:
    if guest.deadline is not None:
        guest.deadline.cancel()
        guest.deadline = None
