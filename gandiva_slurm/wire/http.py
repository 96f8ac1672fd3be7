"""Signed messages over HTTP: one POST there, one signed answer back.

What is signed is bound to its use: a request carries the path it was meant for, an answer the SHA-256 of the
request it answers, so that neither can be sent again elsewhere. Every wait has a deadline, every body a
bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import AuthError, GandivaError, PeerError
from gandiva_slurm.wire.auth import MAX_CREDENTIAL_BYTES, Signer
from gandiva_slurm.wire.door import Guest, Route
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
#: Questions of one user that are being answered at a time.
QUESTIONS_PER_USER = 32
#: The longest sentence taken from a peer that refuses.
_MAX_SENTENCE = 500

Handler = Callable[[bytes, int], Awaitable[bytes]]
T = TypeVar("T")

often = Often(logging.getLogger(__name__))


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
    signer: Signer,
    allow: Callable[[int], bool],
    handler: Handler,
    limit: int | None = None,
    per_user: int | None = None,
) -> Route:
    """Return an aiohttp handler that checks the signature and the uid, then signs what `handler` returns.

    `allow` says whether a uid may call at all; `handler` gets the payload and the uid; `limit` is the largest
    request in bytes, `per_user` how many of a uid's are answered at a time.
    """

    asking: Counter[int] = Counter()

    async def answered(request: web.BaseRequest, guest: Guest) -> web.StreamResponse:
        body = await _body(request, limit or MAX_REQUEST_BYTES)
        bound, uid = await _signing(lambda: signer.verify(body))
        if not allow(uid):
            return _refuse(403, f"uid {uid} may not call {request.path} here", request)
        payload = _unbind(request.path, bound, request.path)
        guest.is_known = True
        if per_user and asking[uid] >= per_user:
            return _refuse(429, f"{per_user} questions of uid {uid} are being answered; ask again", request)
        with _counted(asking, uid):
            answer = await handler(payload, uid)
            digest = hashlib.sha256(body).hexdigest()
            return web.Response(body=await _signing(lambda: signer.sign(_bind(digest, answer))))

    async def route(request: web.BaseRequest, guest: Guest) -> web.StreamResponse:
        guest.is_known = False
        try:
            return await answered(request, guest)
        except AuthError as err:
            return _refuse(401, str(err), request)
        except TimeoutError:
            return _refuse(408, "the request, or munged here, took too long", request)
        except GandivaError as err:
            return _refuse(400, str(err), request)
        except Exception:
            often.error(f"{request.path} 500", f"{request.path} from {request.remote} failed")
            return web.Response(status=500, text="internal error; the daemon's log has the details")

    return route


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


async def _body(request: web.BaseRequest, limit: int) -> bytes:
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            return await _read(request.content, limit, "request")
    except (GandivaError, TimeoutError):
        raise
    except Exception as err:  # it is cut off, or coded as it must not be
        raise PeerError(f"the request cannot be read to its end ({type(err).__name__})") from err


@contextlib.contextmanager
def _counted(counts: Counter[int], uid: int) -> Iterator[None]:
    counts[uid] += 1
    try:
        yield
    finally:
        counts[uid] -= 1
        if not counts[uid]:
            del counts[uid]


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


def _refuse(status: int, sentence: str, request: web.BaseRequest) -> web.Response:
    kind = f"{request.path} {status}"
    often.warning(kind, f"{request.path} from {request.remote} refused: {sentence}")
    return web.Response(status=status, text=sentence)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
