"""Who speaks: messages signed with munge, the way Slurm signs its own.

A signed message is one credential line, a newline, and the message itself; the credential holds the message's
SHA-256 and tells the sender's uid. So messages have no size limit of munge's (1 MiB), and like Slurm's they
are authentic but not secret. munged refuses a credential seen before or older than its lifetime.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
from typing import Any, Protocol

from gandiva_slurm.model.errors import AuthError

#: The longest credential line accepted; a munge credential over 32 bytes has about 190.
MAX_CREDENTIAL_BYTES = 4096
#: Where munged listens unless told otherwise (only for messages; libmunge knows it by itself).
DEFAULT_SOCKET = "/run/munge/munge.socket.2"

# munge.h: munge_opt and munge_err
_OPT_SOCKET = 8
_NO_DAEMON = frozenset({6, 7})
_EXPIRED, _REWOUND, _REPLAYED = 15, 16, 17


class Signer(Protocol):
    """Signs bytes as the calling user, and tells who signed. Both calls may block: use an executor."""

    def sign(self, payload: bytes) -> bytes:
        """Return the payload with the caller's signature; AuthError when that cannot be had."""
        ...

    def verify(self, credential: bytes) -> tuple[bytes, int]:
        """Return (payload, uid of the signer); AuthError when it is not, or no longer, valid."""
        ...


class MungeSigner:
    """The signer of production: libmunge by ctypes, one context a call (contexts are not thread-safe)."""

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket or None
        self._lib = _library()

    def sign(self, payload: bytes) -> bytes:
        """Return `credential newline payload`."""
        return self._encode(hashlib.sha256(payload).digest()) + b"\n" + payload

    def verify(self, credential: bytes) -> tuple[bytes, int]:
        """Split, have munged check the credential, and compare the digest."""
        line, newline, payload = credential.partition(b"\n")
        if not newline or len(line) > MAX_CREDENTIAL_BYTES or not line.startswith(b"MUNGE:"):
            raise AuthError("the message is not signed with munge; is the other side a gandiva daemon?")
        digest, uid = self._decode(line)
        if digest != hashlib.sha256(payload).digest():
            raise AuthError(f"the message was altered after uid {uid} signed it")
        return payload, uid

    def _encode(self, data: bytes) -> bytes:
        out = ctypes.c_void_p()
        context = self._context()
        try:
            code = self._lib.munge_encode(ctypes.byref(out), context, data, len(data))
            self._check(code, "sign a message")
            return ctypes.string_at(out.value or 0)
        finally:
            self._lib.munge_ctx_destroy(context)
            _free(out)

    def _decode(self, line: bytes) -> tuple[bytes, int]:
        out, length, uid, gid = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint32(), ctypes.c_uint32()
        context = self._context()
        try:
            code = self._lib.munge_decode(
                line, context, ctypes.byref(out), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
            )
            self._check(code, "check a signature")
            return ctypes.string_at(out.value or 0, length.value) if out.value else b"", uid.value
        finally:
            self._lib.munge_ctx_destroy(context)
            _free(out)

    def _context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p(self._lib.munge_ctx_create())
        if not context.value:
            raise AuthError("libmunge has no memory for a context")
        if self._socket:
            # A variadic C function: the path must be passed as the pointer it is.
            path = ctypes.c_char_p(self._socket.encode())
            code = self._lib.munge_ctx_set(context, ctypes.c_int(_OPT_SOCKET), path)
            if code:
                self._lib.munge_ctx_destroy(context)
                self._check(code, f"use the socket {self._socket}")
        return context

    def _check(self, code: int, doing: str) -> None:
        if not code:
            return
        reason = self._lib.munge_strerror(code).decode()
        if code in _NO_DAEMON:
            where = self._socket or DEFAULT_SOCKET
            raise AuthError(f"cannot {doing}: munged does not answer at {where} ({reason}); start it")
        if code in (_EXPIRED, _REWOUND):
            raise AuthError(f"cannot accept a message: {reason}; compare the clocks of the two hosts")
        if code == _REPLAYED:
            raise AuthError("cannot accept a message: it was sent before (replayed)")
        raise AuthError(f"cannot {doing}: {reason}; do both hosts have the same munge.key?")


@functools.cache
def _library() -> Any:
    try:
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as err:
        raise AuthError(f"libmunge.so.2 cannot be loaded ({err}); install munge (Debian: libmunge2)") from err
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_destroy.restype = None
    lib.munge_strerror.argtypes = [ctypes.c_int]
    lib.munge_strerror.restype = ctypes.c_char_p
    lib.munge_encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    lib.munge_decode.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 5]
    return lib


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(pointer)
