"""One signed POST there, one signed answer back, and what is refused on the way."""

import asyncio

import aiohttp
import pytest

from gandiva_slurm.model.errors import AuthError, PeerError
from gandiva_slurm.wire import http
from gandiva_slurm.wire.door import open_door
from tests.controller.plain_signer import PlainSigner
from tests.ports import free_port


async def echo(payload: bytes, uid: int) -> bytes:
    return b"%d:" % uid + payload


@pytest.fixture
async def serve():
    runners = []

    async def _serve(
        handler=echo, signer=None, allow=lambda uid: uid < 10, path="/v1/echo", limit=None
    ) -> str:
        port = free_port()
        route = http.signed_route(signer or PlainSigner(0), allow, handler, limit)
        runners.append(await open_door({path: route}, "127.0.0.1", port))
        return f"http://127.0.0.1:{port}{path}"

    yield _serve
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


ROOT = frozenset({0})


async def test_payload_and_uid_arrive_and_the_answer_comes_back(serve, session):
    url = await serve()
    assert await http.post(session, url, PlainSigner(3), b"hello\n", 5, ROOT) == b"3:hello\n"


async def test_uid_that_may_not_call_is_refused(serve, session):
    url = await serve()
    with pytest.raises(AuthError, match="uid 77 may not call /v1/echo"):
        await http.post(session, url, PlainSigner(77), b"", 5, ROOT)


async def test_a_route_may_take_less_than_others(serve, session):
    url = await serve(limit=200)
    assert await http.post(session, url, PlainSigner(3), b"x" * 50, 5, ROOT) == b"3:" + b"x" * 50
    with pytest.raises(PeerError, match="longer than 200 bytes"):
        await http.post(session, url, PlainSigner(3), b"x" * 500, 5, ROOT)


async def test_answer_of_a_stranger_is_refused(serve, session):
    url = await serve(signer=PlainSigner(42))
    with pytest.raises(AuthError, match=r"answered by uid 42, expected one of \[0\]"):
        await http.post(session, url, PlainSigner(3), b"", 5, ROOT)


async def test_unsigned_request_is_refused(serve, session):
    async with session.post(await serve(), data=b"plain") as response:
        assert response.status == 401
        assert b"not signed" in await response.read()


async def test_message_signed_for_another_path_is_refused(serve, session):
    url = await serve()
    signed = PlainSigner(3).sign(b"/v1/other\npayload")
    async with session.post(url, data=signed) as response:
        assert (response.status, await response.text()) == (
            401,
            "/v1/echo: a message signed for another use was sent here; refused",
        )


async def test_answer_to_another_request_is_refused(serve, session):
    class Stale(PlainSigner):
        def sign(self, payload: bytes) -> bytes:
            return super().sign(b"0" * 64 + b"\n" + payload.partition(b"\n")[2])

    url = await serve(signer=Stale(0))
    with pytest.raises(AuthError, match="signed for another use"):
        await http.post(session, url, PlainSigner(3), b"", 5, ROOT)


async def test_handler_that_raises_is_an_internal_error_without_details(serve, session):
    async def broken(payload: bytes, uid: int) -> bytes:
        raise ValueError("secret")

    with pytest.raises(PeerError, match="internal error") as caught:
        await http.post(session, await serve(broken), PlainSigner(3), b"", 5, ROOT)
    assert "secret" not in str(caught.value)


async def test_handlers_own_sentence_reaches_the_caller(serve, session):
    async def refusing(payload: bytes, uid: int) -> bytes:
        raise PeerError("NodePlan: not JSON")

    with pytest.raises(PeerError, match="refused: NodePlan: not JSON"):
        await http.post(session, await serve(refusing), PlainSigner(3), b"", 5, ROOT)


async def test_silent_peer_is_given_up_at_the_deadline(serve, session):
    async def silent(payload: bytes, uid: int) -> bytes:
        await asyncio.sleep(30)
        return b""

    with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
        await http.post(session, await serve(silent), PlainSigner(3), b"", 0.2, ROOT)


async def test_absent_peer_is_named(session):
    with pytest.raises(PeerError, match="cannot be reached"):
        await http.post(session, f"http://127.0.0.1:{free_port()}/v1/x", PlainSigner(3), b"", 5, ROOT)


async def test_request_over_the_bound_is_refused(serve, session, monkeypatch):
    monkeypatch.setattr(http, "MAX_REQUEST_BYTES", 1000)
    with pytest.raises(PeerError, match="longer than 1000 bytes"):
        await http.post(session, await serve(), PlainSigner(3), b"x" * 2000, 5, ROOT)


async def test_answer_over_the_bound_is_refused(serve, session, monkeypatch):
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(PeerError, match="longer than 1000 bytes"):
        await http.post(session, await serve(), PlainSigner(3), b"x" * 2000, 5, ROOT)


async def test_two_daemons_on_one_port_are_told_apart(serve):
    url = await serve()
    with pytest.raises(PeerError, match="is another daemon running there"):
        await open_door({}, "127.0.0.1", int(url.split(":")[2].split("/")[0]))
