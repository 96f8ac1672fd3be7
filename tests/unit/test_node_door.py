"""The door of a unix socket: how many connections one user has at a time, how often one may come."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.node import door
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.door import Door, Rates
from tests.patience import deadline

UID, OTHER = 5001, 5002


def test_a_bucket_gives_what_it_has_and_then_so_many_a_second() -> None:
    rates = Rates()
    assert sum(rates.take(UID, 100.0) for _ in range(2000)) == door.BURST
    assert sum(rates.take(UID, 100 + at / 2000) for at in range(4000)) == pytest.approx(2 * door.PER_S, abs=1)
    assert rates.take(OTHER, 102.0), "another's is its own"
    assert sum(rates.take(UID, 1e6) for _ in range(2000)) == door.BURST, "it is never more than full"


def test_users_who_were_long_away_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_MANY_USERS", 10)
    rates = Rates()
    for uid in range(1000):
        assert rates.take(uid, float(uid))
    assert len(rates._left) <= 11


async def served(path: Path, rates: Rates | None, wanted: int) -> tuple[int, int]:
    """Open `wanted` connections, which say nothing; how many are closed at once, how many served."""
    begun: list[Peer] = []
    is_over = asyncio.Event()

    async def talk(link: socket.socket, peer: Peer) -> None:
        begun.append(peer)
        await is_over.wait()

    listening = door.listen(path, 0o600)
    task = asyncio.create_task(Door(listening, talk, 60.0, rates).run())
    links = []
    for _ in range(wanted):
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        link.connect(str(path))
        links.append(link)
    end_s = deadline(30.0)
    while len(begun) + closed(links) < wanted:
        assert asyncio.get_running_loop().time() < end_s
        await asyncio.sleep(0.01)
    result = closed(links), len(begun)
    is_over.set()
    for link in links:
        link.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    listening.close()
    return result


def closed(links: list[socket.socket]) -> int:
    """How many of these the other side has closed."""
    count = 0
    for link in links:
        try:
            count += link.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            continue
    return count


def test_one_user_has_so_many_connections_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PER_USER", 20)
    assert asyncio.run(served(tmp_path / "s", Rates(), 50)) == (30, 20)


def test_and_comes_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BURST", 10.0)
    monkeypatch.setattr(door, "PER_S", 0.001)
    assert asyncio.run(served(tmp_path / "s", Rates(), 50)) == (40, 10)


def test_roots_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PER_USER", 20)
    assert asyncio.run(served(tmp_path / "s", None, 50)) == (0, 50)


async def test_what_strangers_say_is_a_line_a_minute_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(door, "often", Often(logging.getLogger("door")))
    said = 0

    async def talk(link: socket.socket, peer: Peer) -> None:
        nonlocal said
        said += 1
        raise (PeerError("x" * 5000) if said % 2 else RuntimeError("a mistake"))

    listening = door.listen(tmp_path / "sock", 0o600)
    task = asyncio.create_task(Door(listening, talk, 60.0, None).run())
    for _ in range(40):
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "sock"))
        writer.close()
    end_s = deadline(30.0)
    while said < 40:
        assert asyncio.get_running_loop().time() < end_s
        await asyncio.sleep(0.01)
    task.cancel()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and max(map(len, lines)) < 400
