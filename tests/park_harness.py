"""A stand-in for gandivad around one gang: the real pages and the real coordinator, and nothing else of it.

`python -m tests.park_harness SOCKET WORLD PHASE [RANKS]` serves a gang, parks it, and kills itself in PHASE.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.pages import Page, reopen
from gandiva_slurm.node.park import Gang, Write
from gandiva_slurm.wire.page import W_BEAT, W_SEQ
from tests import patience

#: gandivad ticks this often while a park or a resume is under way.
TICK_S = 0.0005


@dataclass
class Peer:
    """A rank that said hello: its process, its message and its page."""

    pid: int
    hello: dict
    page: Page
    page_fd: int


class Harness:
    """Plays the node for one gang: `serve`, then `park` and `resume` at will."""

    def __init__(self, path: str, world: int, answer: dict | None = None) -> None:
        self.world = world
        self.peers: dict[int, Peer] = {}
        self.gang = Gang(world)
        self.answer = answer or {"ok": True}
        self._beaten_ns = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)

    def serve(self, deadline_s: float = 60.0, boundaries: int = 3) -> None:
        """Wait until every rank has registered and passed some boundaries."""
        self.wait(
            lambda: len(self.peers) == self.world and all(v[W_SEQ] >= boundaries for v in self.views()),
            "all ranks to register",
            deadline_s,
            self.accept,
        )

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        deadline_s: float = 30.0,
        between: Callable[[], object] | None = None,
    ) -> None:
        """Wait for `condition`, beating meanwhile."""

        def look() -> bool:
            self.beat()
            if between:
                between()
            return condition()

        wait_until(look, f"{what}, {self.gang.stand}", deadline_s)

    def park(self, deadline_s: float = 30.0) -> float:
        """Park the gang, whatever it takes; return how long it took in seconds."""
        start = time.monotonic()
        self.begin_park()
        self.wait(lambda: self.gang.phase in ("parked", "running"), "the park", deadline_s, self.tick)
        return time.monotonic() - start

    def begin_park(self, bound_s: float = 600.0) -> None:
        """Give the order only."""
        now_ns = time.monotonic_ns()
        self.write(self.gang.park(self.views(), now_ns, now_ns + int(bound_s * 1e9)))

    def resume(self, deadline_s: float = 30.0) -> float:
        """Resume the gang; return how long it took in seconds."""
        start = time.monotonic()
        self.write(self.gang.resume(self.views(), time.monotonic_ns()))
        self.wait(lambda: self.gang.phase == "running", "the resume", deadline_s, self.tick)
        return time.monotonic() - start

    def take_over(self, known: list[list[int]]) -> None:
        """Adopt ranks by their pid and page descriptor, as gandivad does when it restarts."""
        for rank, (pid, page_fd) in enumerate(known):
            self.peers[rank] = Peer(pid, {}, open_page(pid, page_fd), page_fd)
        self.write(self.gang.adopt(self.views(), time.monotonic_ns()))
        if self.gang.phase == "parked":
            self.write(self.gang.resume(self.views(), time.monotonic_ns()))
        self.wait(lambda: self.gang.phase == "running", "the adopted gang to run", 30, self.tick)

    def tick(self) -> None:
        """Let the coordinator look once."""
        self.write(self.gang.tick(self.views(), self.alive(), time.monotonic_ns()))

    def views(self) -> list[tuple[int, ...]]:
        return [self.peers[rank].page.read() for rank in sorted(self.peers)]

    def alive(self) -> list[bool]:
        return [is_alive(self.peers[rank].pid) for rank in sorted(self.peers)]

    def write(self, writes: list[Write]) -> None:
        for rank, words in writes:
            self.peers[rank].page.write(words)

    def beat(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._beaten_ns > 500_000_000:
            self._beaten_ns = now_ns
            for peer in self.peers.values():
                peer.page.write([(W_BEAT, now_ns)])

    def close(self) -> None:
        self._listener.close()
        for peer in self.peers.values():
            peer.page.close()

    def accept(self) -> bool:
        """Greet a rank if one knocks."""
        knocks = bool(select.select([self._listener], [], [], 0)[0])
        if knocks:
            self.accept_one()
        return knocks

    def accept_one(self) -> None:
        """Wait for a rank and greet it; one that has given up meanwhile knocks again."""
        link, _ = self._listener.accept()
        with link, contextlib.suppress(OSError, ValueError):
            link.settimeout(5 * patience.slowness())
            self._greet(link)

    def _greet(self, link: socket.socket) -> None:
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        reader = link.makefile("rb")
        hello = json.loads(reader.readline())
        answer = json.dumps(self.answer).encode() + b"\n"
        if not self.answer.get("ok"):
            link.sendall(answer)
            return
        page = Page.make(JobKey(1, 0), hello["rank"], self.world, time.monotonic_ns())
        fd = reopen(page.fd)
        try:
            link.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))])
            page_fd = json.loads(reader.readline())["page_fd"]
        except (OSError, ValueError):
            page.close()
            raise
        finally:
            os.close(fd)
        self.peers[hello["rank"]] = Peer(pid, hello, page, page_fd)


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Poll until `condition`; AssertionError names what did not come. A machine may get busy meanwhile."""
    from_s, end_s = time.monotonic(), patience.deadline(deadline_s)
    while not condition():
        end_s = max(end_s, from_s + deadline_s * patience.slowness())
        assert time.monotonic() < end_s, f"waited {deadline_s:g} s in vain for {what}"
        time.sleep(TICK_S)


def open_page(pid: int, page_fd: int) -> Page:
    """Open the page that a rank keeps open under `page_fd`."""
    return Page(os.open(f"/proc/{pid}/fd/{page_fd}", os.O_RDWR | os.O_CLOEXEC))


def map_words(fd: int, size: int) -> memoryview:
    """Map a page as a rank does."""
    return memoryview(mmap.mmap(fd, size)).cast("Q")


def is_alive(pid: int) -> bool:
    """True while a process runs; one that waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def die_in_phase(harness: Harness, phase: str) -> None:
    """Park the gang and resume it, again and again, until the coordinator enters `phase`; then be killed.

    "between" is when the first page of a commit is written and the others are not.
    """
    if phase == "between":
        write_all = harness.write
        harness.write = lambda writes: _die_between(harness, writes, write_all)  # type: ignore[method-assign]
    while True:
        harness.begin_park(bound_s=0.0)
        _die_if(harness, phase)
        harness.wait(
            lambda: harness.gang.phase in ("parked", "running"), "a park", 30, lambda: _step(harness, phase)
        )
        harness.write(harness.gang.resume(harness.views(), time.monotonic_ns()))
        _die_if(harness, phase)
        harness.wait(lambda: harness.gang.phase == "running", "a resume", 30, harness.tick)


def _step(harness: Harness, phase: str) -> None:
    harness.tick()
    _die_if(harness, phase)


def _die_if(harness: Harness, phase: str) -> None:
    if harness.gang.phase == phase:
        os.kill(os.getpid(), signal.SIGKILL)


def _die_between(harness: Harness, writes: list[Write], write_all: Callable[[list[Write]], None]) -> None:
    if harness.gang.phase == "committing" and writes:
        write_all(writes[:1])
        os.kill(os.getpid(), signal.SIGKILL)
    write_all(writes)


def main(path: str, world: int, phase: str, known: str = "") -> None:
    """Serve new ranks or take over `known` ones, say who they are, die in `phase`."""
    harness = Harness(path, world, {"ok": True, "wake_grace_s": 0})
    if known:
        harness.take_over(json.loads(known))
    else:
        harness.serve()
    print(json.dumps([[peer.pid, peer.page_fd] for _, peer in sorted(harness.peers.items())]), flush=True)
    die_in_phase(harness, phase)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
