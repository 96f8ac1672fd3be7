"""Who goes when a door has too many connections, and what one user may ask at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp
import pytest

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire import door, http
from tests.controller.plain_signer import PlainSigner
from tests.ports import free_port

ROOT = frozenset({0})
SIGNED = PlainSigner(3).sign(b"/v1/echo\nhello")
ASKS = b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(SIGNED) + SIGNED


async def echo(payload: bytes, uid: int) -> bytes:
    return payload


@pytest.fixture
async def port(monkeypatch):
    """A door with room for few: 4 of an address, 6 in all."""
    monkeypatch.setattr(door, "PER_ADDRESS", 4)
    monkeypatch.setattr(door, "IN_ALL", 6)
    port = free_port()
    route = http.signed_route(PlainSigner(0), lambda uid: uid == 3, echo)
    opened = await door.open_door({"/v1/echo": route}, "127.0.0.1", port)
    yield port
    await opened.cleanup()


@pytest.fixture
async def connect(port):
    """Return a function that connects from an address."""
    async with contextlib.AsyncExitStack() as stack:

        async def _connect(address: str = "127.0.0.1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            stack.callback(writer.close)
            return reader, writer

        yield _connect


async def asked(link) -> bool:
    """Ask, and tell whether an answer came."""
    reader, writer = link
    with contextlib.suppress(ConnectionError):
        writer.write(ASKS)
        return (await reader.read(1000)).startswith(b"HTTP/1.1 200")
    return False


async def test_who_has_proved_nothing_goes_first_and_the_oldest_of_them(connect):
    known = await connect()
    assert await asked(known)
    silent = [await connect() for _ in range(10)]
    assert await asked(await connect())
    assert await silent[0][0].read(1) == b""
    assert await asked(known)


async def test_those_who_ask_for_nothing_now_make_room_too(connect):
    known = [await connect() for _ in range(4)]
    assert all([await asked(link) for link in known])
    assert await asked(await connect())
    assert [await asked(link) for link in known] == [False, True, True, True]


async def test_where_all_are_too_many_the_address_with_most_makes_room(connect):
    silent = [await connect("127.0.0.2") for _ in range(4)]
    others = [await connect(f"127.0.0.{last}") for last in (3, 4, 5)]
    assert await asked(await connect())
    assert [await link[0].read(1) for link in silent[:2]] == [b"", b""]
    assert all([await asked(link) for link in others])


async def test_a_user_is_answered_so_many_questions_at_a_time():
    may_go = asyncio.Event()

    async def wait(payload: bytes, uid: int) -> bytes:
        await may_go.wait()
        return payload

    port = free_port()
    route = http.signed_route(PlainSigner(0), lambda uid: True, wait, per_user=2)
    opened = await door.open_door({"/v1/echo": route}, "127.0.0.1", port)

    def post(session, uid: int):
        return http.post(session, f"http://127.0.0.1:{port}/v1/echo", PlainSigner(uid), b"x", 30, ROOT)

    async with aiohttp.ClientSession() as session:
        asking = [asyncio.create_task(post(session, 3)) for _ in range(3)]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(PeerError, match="2 questions of uid 3 are being answered"):
            done.pop().result()
        another = asyncio.create_task(post(session, 4))
        may_go.set()
        assert await another == b"x"
        assert (await asyncio.gather(*asking, return_exceptions=True)).count(b"x") == 2
    await opened.cleanup()


def test_what_comes_often_is_a_line_a_minute_a_kind(caplog):
    now_s = [0.0]
    often = Often(logging.getLogger(__name__), lambda: now_s[0])
    for now_s[0] in (0.0, 1.0, 59.0, 60.0):
        often.warning("a", f"at {now_s[0]:g}")
        often.warning("b", "b")
    more = " (and 2 more since the last such line)"
    assert caplog.messages == ["at 0", "b", f"at 60{more}", f"b{more}"]
