"""What root's socket has a task wait for: a restore for as long as it takes, all else within a bound."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from gandiva_slurm.model.errors import PeerBusy
from gandiva_slurm.node import procs, sock
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.elsewhere import Restoring
from tests import patience

BIND = b"BIND 2 7 1 batch 0 - -\n"


class Around:
    """The rest of gandivad: `busy` is what its restorer says until `until_s`."""

    def __init__(self, busy: type[PeerBusy]) -> None:
        self.busy, self.until_s = busy, 0.0

    def bind(self, peer: Peer, bind: Any) -> dict[str, str]:
        return {"GANDIVA_JOB": str(bind.key.job_id)}

    async def offers(self, peer: Peer) -> bool:
        return True

    def await_plan(self, key: Any) -> None:
        """One names it."""

    def heed_unfit(self, key: Any) -> None:
        """It is restored here."""

    def ask(self, peer: Peer, key: Any) -> dict[str, str]:
        if asyncio.get_running_loop().time() < self.until_s:
            raise self.busy("its time is not over")
        return {}


async def asked_for(busy: type[PeerBusy], times: float, patch: pytest.MonkeyPatch) -> bytes:
    """What a task is told in the end that asks again whenever it is told LATER; `times` the bound it is."""
    bound_s = 2 * patience.slowness()
    patch.setattr(sock, "ROOT_DEADLINE_S", bound_s)
    loop, around = asyncio.get_running_loop(), Around(busy)
    speech: Any = sock.Speech(around, around)  # type: ignore[arg-type]
    mine, link = socket.socketpair()
    mine.setblocking(False)
    link.setblocking(False)
    proc = procs.read_proc(os.getpid())
    assert proc is not None
    with mine:
        talk = loop.create_task(speech.with_root(link, Peer(proc.id, 0)))
        talk.add_done_callback(lambda done: link.close())
        await loop.sock_sendall(mine, b"TASK 5001\n")
        assert await loop.sock_recv(mine, 100) == b"READY IMAGE\n"
        around.until_s, told = loop.time() + times * bound_s, b"LATER"
        while told.startswith(b"LATER"):
            await asyncio.sleep(0.02)
            try:
                await loop.sock_sendall(mine, BIND)
                told = await loop.sock_recv(mine, 1000)
            except (BrokenPipeError, ConnectionResetError):
                told = b""
        try:
            await talk
        except TimeoutError:
            assert not told
    return told


async def test_a_restore_is_waited_for_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked_for(Restoring, 2.5, monkeypatch) == b"OK GANDIVA_JOB=7\n"


async def test_nothing_else_is_waited_for_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked_for(PeerBusy, 5, monkeypatch) == b""
