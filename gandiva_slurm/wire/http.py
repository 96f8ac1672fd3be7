"""Signed messages over HTTP: one POST there, one signed answer back.

What is signed is bound to its use: a request carries the path it was meant for, an answer the SHA-256 of the
request it answers, so that neither can be sent again elsewhere. Every wait has a deadline, every body a
bound.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from gandiva_slurm.model.errors import AuthError, GandivaError, PeerError
from gandiva_slurm.wire.auth import MAX_CREDENTIAL_BYTES, Signer
from gandiva_slurm.wire.messages import MAX_BYTES

#: The largest request body: a message and its credential.
MAX_REQUEST_BYTES = MAX_BYTES + MAX_CREDENTIAL_BYTES
#: The largest question of a user: no more than that is kept in memory before its signature is checked.
MAX_QUESTION_BYTES = 256 * 1024
#: The largest answer: the accounts of some hundred thousand jobs.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
#: How long a peer may take to send its request, and munged to check or sign it (munged answers in 1 ms).
READ_DEADLINE_S = 10.0
SIGN_DEADLINE_S = 5.0
#: The longest sentence taken from a peer that refuses.
_MAX_SENTENCE = 500

Handler = Callable[[bytes, int], Awaitable[bytes]]
Route = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

log = logging.getLogger(__name__)


async def post(
    session: aiohttp.ClientSession,
    url: str,
    signer: Signer,
    payload: bytes,
    timeout_s: float,
    want_uids: frozenset[int],
) -> bytes:
    """Send a signed payload and return the payload of the answer, signed by one of `want_uids`.

    PeerError when the peer does not answer within `timeout_s` in all, or refuses; AuthError when a signature
    cannot be made or is not what it must be.
    """
    path = urlsplit(url).path
    try:
        async with asyncio.timeout(timeout_s):
            request = await _in_thread(lambda: signer.sign(_bind(path, payload)))
            body = await _exchange(session, url, request)
            bound, uid = await _in_thread(lambda: signer.verify(body))
    except TimeoutError as err:
        raise PeerError(f"{url}: no answer within {timeout_s:g} s; is the daemon there up?") from err
    if uid not in want_uids:
        raise AuthError(f"{url}: answered by uid {uid}, expected one of {sorted(want_uids)}; refused")
    return _unbind(hashlib.sha256(request).hexdigest(), bound, url)


def signed_route(
    signer: Signer, allow: Callable[[int], bool], handler: Handler, limit: int | None = None
) -> Route:
    """Return an aiohttp handler that checks the signature and the uid, then signs what `handler` returns.

    `allow` says whether a uid may call at all; `handler` gets the payload and the uid; `limit` is the largest
    request in bytes.
    """

    async def route(request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                body = await _read(request.content, limit or MAX_REQUEST_BYTES, "request")
            bound, uid = await _signing(lambda: signer.verify(body))
            if not allow(uid):
                return _refuse(403, f"uid {uid} may not call {request.path} here", request)
            payload = _unbind(request.path, bound, request.path)
            answer = await handler(payload, uid)
            digest = hashlib.sha256(body).hexdigest()
            return web.Response(body=await _signing(lambda: signer.sign(_bind(digest, answer))))
        except AuthError as err:
            return _refuse(401, str(err), request)
        except TimeoutError:
            return _refuse(408, "the request, or munged here, took too long", request)
        except GandivaError as err:
            return _refuse(400, str(err), request)
        except Exception:
            log.exception("%s from %s failed", request.path, request.remote)
            return web.Response(status=500, text="internal error; the daemon's log has the details")

    return route


async def listen(routes: Mapping[str, Route], host: str, port: int) -> web.AppRunner:
    """Serve POST on these paths; returns the runner (`await runner.cleanup()` ends it)."""
    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    for path, route in routes.items():
        app.router.add_post(path, route)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=60, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as err:
        await runner.cleanup()
        text = f"cannot listen on {host}:{port}: {err.strerror}; is another daemon running there?"
        raise PeerError(text) from err
    return runner


async def _exchange(session: aiohttp.ClientSession, url: str, request: bytes) -> bytes:
    try:
        async with session.post(url, data=request) as response:
            if response.status == 200:
                return await _read(response.content, MAX_ANSWER_BYTES, "answer")
            text = await _read(response.content, 64 * 1024, "refusal")
            sentence = text[:_MAX_SENTENCE].decode(errors="replace")
    except (aiohttp.ClientError, OSError) as err:
        raise PeerError(f"{url}: cannot be reached ({err}); is the daemon there up?") from err
    kind = AuthError if response.status in (401, 403) else PeerError
    raise kind(f"{url}: refused: {_printable(sentence)}")


async def _read(stream: aiohttp.StreamReader, limit: int, what: str) -> bytes:
    parts, size = [], 0
    async for part in stream.iter_any():
        size += len(part)
        if size > limit:
            raise PeerError(f"{what} longer than {limit} bytes; refused")
        parts.append(part)
    return b"".join(parts)


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _signing(call: Callable[[], T]) -> T:
    async with asyncio.timeout(SIGN_DEADLINE_S):
        return await _in_thread(call)


def _bind(context: str, payload: bytes) -> bytes:
    return context.encode() + b"\n" + payload


def _unbind(context: str, bound: bytes, where: str) -> bytes:
    head, _, payload = bound.partition(b"\n")
    if head != context.encode():
        raise AuthError(f"{where}: a message signed for another use was sent here; refused")
    return payload


def _refuse(status: int, sentence: str, request: web.Request) -> web.Response:
    log.warning("%s from %s refused: %s", request.path, request.remote, sentence)
    return web.Response(status=status, text=sentence)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
