"""gandivad put together: takes over what the last one left, then serves controller, tasks and ranks.

Killed at any point it can be started again. Stopped by SIGTERM it leaves everything as it is: running jobs
run on, parked ranks have their wake-by time, and the guard bounds what is frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import aiohttp

from gandiva_slurm import watchdog
from gandiva_slurm.node import door, guard, lock, server, sock
from gandiva_slurm.node.adopt import Adoption
from gandiva_slurm.node.attribution import Attribution
from gandiva_slurm.node.binding import Admission
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.fetching import fetcher
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.isolation import LOOK_S, Isolation
from gandiva_slurm.node.lost import Lost
from gandiva_slurm.node.members import Membership, membership
from gandiva_slurm.node.peers import Helper, Peers
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.restorer import Restorer
from gandiva_slurm.node.settings import NodeSettings
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.span import Spans
from gandiva_slurm.node.strangers import Strangers
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.slurm.port import SlurmPort
from gandiva_slurm.wire.auth import Signer

#: A guard that died is replaced; it is looked at so often.
_GUARD_LOOK_S = 5.0
#: A park takes as long as the daemon is late: it goes before training processes, and sleeps nearly always.
_NICE = -10

log = logging.getLogger(__name__)


class Daemon:
    """One gandivad. `find` tells a process's job: a test without Slurm has its own."""

    def __init__(
        self,
        settings: NodeSettings,
        signer: Signer,
        slurm: SlurmPort,
        find: Callable[[int], Membership | None] = membership,
        look_s: float = LOOK_S,
    ) -> None:
        self.settings = settings
        self._signer = signer
        self._slurm = slurm
        self._find = find
        self._look_s = look_s
        self._stop = asyncio.Event()
        self._failed = False
        self._guard: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT (0), or a fault of ours (1: to be started again)."""
        held = lock.take(self.settings.state_dir)
        try:
            return await self._run()
        finally:
            os.close(held)

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.set_exception_handler(self._on_fault)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        node = Node(self.settings)
        self.node = node
        self._guard = guard.start(self.settings)
        node.events.write("start", pid=os.getpid(), guard=self._guard.pid)
        slicer = Slicer(node)
        watcher = Watcher(node, slicer)
        planning = Planning(node, slicer, watcher)
        spans = Spans(node, slicer)
        Adoption(node, slicer, watcher, planning).run()
        node.save()
        isolation = Isolation(node, slicer, watcher, self._slurm, self._look_s)
        helper = Helper(node, self._slurm, isolation.look_soon)
        runner = await server.serve(node, planning, spans, helper, self._signer)
        session = aiohttp.ClientSession()
        admission = Admission(node, slicer, watcher, self._find)
        restorer = Restorer(node, slicer, watcher, fetcher(node, session, self._signer))
        speech = sock.Speech(admission, restorer)
        sockets = self._listen()
        roots = door.Door(sockets[0], speech.with_root, None, None)
        doors = door.Door(sockets[1], speech.with_anybody, sock.DEADLINE_S, door.Rates())
        parts = (
            slicer.run(),
            slicer.switcher.run(),
            spans.run(),
            watcher.run(),
            restorer.run(),  # before any task is answered
            roots.run(),
            doors.run(),
            isolation.ask_for_ever(Peers(node, self._signer, session, isolation.bounds.kept_back)),
            isolation.watch_for_ever(),
            Strangers(node, slicer.switcher.stop_processes, self._find, slicer.fill).run(),
            Lost(node, admission).run(),
            Attribution(node).run(),
            Imager(node, slicer).run(),
            self._keep_guard(),
            watchdog.feed(),
        )
        tasks = [loop.create_task(part) for part in parts]
        for task in tasks:
            task.add_done_callback(self._on_end)
        where = node.settings.node, self.settings.socket, self.settings.port
        log.info("gandivad of node %s: serving %s and port %d", *where)
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        await session.close()
        for each in sockets:
            each.close()
        node.save()
        node.events.write("stop")
        return 1 if self._failed else 0

    def _listen(self) -> list[socket.socket]:
        """Root's first: where it is missing beside the other, a gandivad of an older release serves."""
        return [door.listen(self.settings.root_socket, 0o600), door.listen(self.settings.socket, 0o666)]

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self._failed = True
        log.critical(
            "a part of gandivad ended; it stops and is to be started again", exc_info=task.exception()
        )
        self._stop.set()

    def _on_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed: what it left half done is set right by starting anew."""
        self._failed = True
        log.critical(
            "gandivad stops and is to be started again: %s",
            context["message"],
            exc_info=context.get("exception"),
        )
        self._stop.set()

    async def _keep_guard(self) -> None:
        while True:
            await asyncio.sleep(_GUARD_LOOK_S)
            if self._guard is not None and self._guard.poll() is not None:
                log.warning("the guard process ended; a new one is started")
                self._guard = guard.start(self.settings)
